"""The text of an answer that must have some tokens before a stop string may end it."""

from __future__ import annotations

import pytest

from tandem.testing.scripted import ScriptedTokenizer
from tandem.text.answer_text import AnswerText


@pytest.mark.parametrize(
    ("stop", "ends_at", "text"),
    [("<2><3>", 3, "<1>"), ("<1><2>", None, "<1><2><3><4>"), ("<3>", 3, "<1><2>")],
    ids=["begins before", "complete before", "after"],
)
def test_a_stop_string_counts_by_where_it_is_complete(
    stop: str, ends_at: int | None, text: str
) -> None:
    answer = AnswerText(ScriptedTokenizer(10), (stop,), min_tokens=2)
    completed = next((token for token in (1, 2, 3, 4) if answer.completes_stop(token)), None)
    assert completed == ends_at
    assert answer.take(completed or 4) + answer.rest() == text
