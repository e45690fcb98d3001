"""Where documents stand in a conversation: before the system turn's text, whatever follows it."""

import pytest

from tandem.core.prompt import Turn
from tandem.testing.scripted import ScriptedTokenizer
from tandem.text.document_place import SYSTEM_TEXT, document_head, with_system_turn
from tandem.text.tokenizer import TextTokenizer
from tests.unit.text.family_tokenizers import (
    QWEN3,
    QWEN3_MARKS,
    deepseek_r1,
    family_tokenizer,
    harmony,
    qwen3,
)


def rendered(tokenizer: TextTokenizer, *turns: tuple[str, str]) -> list[int]:
    return tokenizer.chat([{"role": role, "content": content} for role, content in turns])


@pytest.mark.parametrize(
    ("tokenizer", "before"),
    [
        (qwen3(), "<|im_start|>system\n"),
        (harmony(), "<|start|>system<|message|>"),
        (deepseek_r1(), "<｜User｜>"),  # noqa: RUF001  # which writes the system's text as a user's
    ],
)
def test_every_conversation_begins_with_what_stands_before_documents(
    tokenizer: TextTokenizer, before: str
) -> None:
    head = document_head(tokenizer)
    assert tokenizer.prompt_end(head) == before
    for system in ("Be brief.", "\n\nA question?", "A"):
        ids = rendered(tokenizer, ("system", system), ("user", "How long?"))
        assert tuple(ids[: len(head)]) == head


@pytest.mark.parametrize(
    "template",
    [
        "",
        QWEN3.replace("{{ m.role }}", "{{ m.role }} on {{ strftime_now('%d') }}"),
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}",
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}",
    ],
    ids=["none", "dated", "without system turns", "refuses system turns"],
)
def test_documents_stand_before_the_conversation_of_other_templates(template: str) -> None:
    assert document_head(family_tokenizer(template, QWEN3_MARKS)) == ()


def test_a_tokenizer_that_cannot_tell_has_no_place_in_its_conversations() -> None:
    assert document_head(ScriptedTokenizer(64)) == ()


def test_a_conversation_keeps_its_system_turn_or_gets_one() -> None:
    asked = Turn("user", "How long?")
    strict = Turn("system", "Be strict.")
    assert with_system_turn([strict, asked]) == [strict, asked]
    assert with_system_turn([asked]) == [Turn("system", SYSTEM_TEXT), asked]
