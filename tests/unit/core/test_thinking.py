"""A budget for thinking and a grammar after it, as masks over tokens, against their definitions."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np
import pytest

from tandem.core.errors import InvalidArgument
from tandem.core.processors import LogitsProcessor, Processors, Thinking
from tandem.core.thinking import ThinkingMask, with_thinking

VOCABULARY = 8
BEGIN = 5
END = 6
AFTER = 7
EOS = 0
EVERYTHING = {*range(VOCABULARY)}


class TwoThenEnd:
    """A grammar of the texts (1, 2), which counts what it was asked to prepare."""

    vocabulary_size = VOCABULARY

    def __init__(self) -> None:
        self.prepared: list[tuple[int, ...]] = []

    def allowed(self, answer: tuple[int, ...]) -> np.ndarray | None:
        follows = {(): 1, (1,): 2, (1, 2): EOS}
        if answer not in follows:
            return None
        return np.array([token == follows[answer] for token in range(VOCABULARY)])

    def forced(self, answer: tuple[int, ...]) -> int | None:
        return {(): 1, (1,): 2}.get(answer)

    def prepare(self, answers: Sequence[tuple[int, ...]]) -> Future[None] | None:
        self.prepared += answers
        return None


def allowed(mask: ThinkingMask, *answer: int) -> set[int]:
    found = mask.allowed(answer)
    return set() if found is None else {int(each) for each in np.flatnonzero(found)}


def test_a_budget_ends_the_thinking_that_the_prompt_has_opened() -> None:
    mask = ThinkingMask(Thinking((END, AFTER), budget=2), VOCABULARY)
    assert allowed(mask) == allowed(mask, 1) == EVERYTHING
    assert allowed(mask, 1, 1) == {END}
    assert mask.forced((1, 1)) == END
    assert allowed(mask, 1, 1, END) == {AFTER}
    assert allowed(mask, 1, 1, END, AFTER) == allowed(mask, 1, 1, END, AFTER, 3) == EVERYTHING
    assert mask.forced((1, 1, END, AFTER)) is None


def test_a_model_that_ends_it_by_itself_goes_on_as_it_likes() -> None:
    mask = ThinkingMask(Thinking((END, AFTER), budget=2), VOCABULARY)
    assert allowed(mask, 1, END) == allowed(mask, 1, END, 3, 3, 3) == EVERYTHING


def test_no_budget_is_no_limit_and_none_at_all_ends_it_at_once() -> None:
    endless = ThinkingMask(Thinking((END,)), VOCABULARY)
    assert allowed(endless, *[1] * 50) == EVERYTHING
    assert allowed(ThinkingMask(Thinking((END,), budget=0), VOCABULARY)) == {END}


def test_a_budget_counts_only_after_the_opening_mark() -> None:
    mask = ThinkingMask(Thinking((END,), begin_ids=(BEGIN, 4), budget=1), VOCABULARY)
    assert allowed(mask) == allowed(mask, BEGIN) == allowed(mask, BEGIN, 4) == EVERYTHING
    assert allowed(mask, BEGIN, 4, 1) == {END}
    assert allowed(mask, 1, BEGIN, 4, 1, 1) == EVERYTHING, "it answered at once"
    assert allowed(mask, BEGIN, 3, 1, 1) == EVERYTHING


def test_a_grammar_holds_for_what_follows_the_thinking() -> None:
    grammar = TwoThenEnd()
    mask = ThinkingMask(Thinking((END,), (BEGIN,)), VOCABULARY, grammar, frozenset({EOS}))
    assert allowed(mask) == {1, BEGIN}
    assert mask.forced(()) is None
    assert allowed(mask, BEGIN, 3, 3) == EVERYTHING - {EOS}, "no answer ends in its thinking"
    assert allowed(mask, BEGIN, 3, END) == {1}
    assert mask.forced((BEGIN, 3, END)) == 1
    assert allowed(mask, BEGIN, 3, END, 1, 2) == allowed(mask, 1, 2) == {EOS}
    assert allowed(mask, 1) == {2}, "an answer without thinking"
    mask.prepare([(BEGIN,), (BEGIN, END, 1), (1,)])
    assert grammar.prepared == [(1,), (1,)]


def test_before_a_grammar_all_of_the_end_follows() -> None:
    """What a model needs to begin its answer: it may not choose another way to go on."""
    mask = ThinkingMask(Thinking((END, AFTER)), VOCABULARY, TwoThenEnd(), frozenset({EOS}))
    assert allowed(mask, 3, END) == {AFTER}
    assert allowed(mask, 3, END, AFTER) == {1}


def test_a_forced_end_is_certain_whatever_the_model_says() -> None:
    thinking = Thinking((END,), budget=1)
    processors = Processors(thinking=thinking, logit_bias=((END, -100.0),))
    mask = with_thinking(thinking, None, vocabulary_size=VOCABULARY, eos_token_ids=frozenset())
    processor = LogitsProcessor(processors, (1,), mask)
    logits = np.linspace(5, -5, VOCABULARY)
    assert np.flatnonzero(np.isfinite(processor.processed(logits, (3,)))).tolist() == [END]
    assert np.isfinite(processor.processed(logits, ())).all()
    assert processor.forced((3,)) == END


@pytest.mark.parametrize(
    ("processors", "field"),
    [
        (Processors(thinking=Thinking(())), "thinking.end_ids"),
        (Processors(thinking=Thinking((8,))), "thinking.end_ids"),
        (Processors(thinking=Thinking((END,), (9,))), "thinking.begin_ids"),
        (Processors(thinking=Thinking((END,) * 65)), "thinking.end_ids"),
        (Processors(thinking=Thinking((END,), budget=-1)), "thinking_token_budget"),
        (
            Processors(thinking=Thinking((END,), budget=1), banned_token_ids=(END,)),
            "thinking_token_budget",
        ),
        (
            Processors(thinking=Thinking((END,), budget=1), allowed_token_ids=(1,)),
            "thinking_token_budget",
        ),
    ],
)
def test_what_cannot_be_is_named(processors: Processors, field: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^{field}: "):
        processors.validate(VOCABULARY)


def test_masks_that_are_shared_between_answers_cannot_be_changed() -> None:
    """Whoever adds a token to one must copy it: all answers of the session are given the same."""
    grammar = TwoThenEnd()
    mask = ThinkingMask(Thinking((END,), (BEGIN,)), VOCABULARY, grammar, frozenset({EOS}))
    while_thinking = mask.allowed((BEGIN, 3))
    afterwards = ThinkingMask(Thinking((END,), budget=0), VOCABULARY).allowed((END, 1))
    for found in (while_thinking, afterwards):
        assert found is not None
        with pytest.raises(ValueError, match="read-only"):
            found[EOS] = True
    assert allowed(mask, BEGIN, 3) == EVERYTHING - {EOS}


def test_an_opening_mark_that_is_begun_is_completed_or_left() -> None:
    """Until its last token an answer may still be one without thinking."""
    grammar = TwoThenEnd()
    mask = ThinkingMask(Thinking((END,), (BEGIN, 4)), VOCABULARY, grammar, frozenset({EOS}))
    assert allowed(mask) == {1, BEGIN}
    assert allowed(mask, BEGIN) == {4}, "no text of the grammar begins so"
    assert mask.forced((BEGIN,)) is None
    assert allowed(mask, BEGIN, 4) == EVERYTHING - {EOS}
    assert mask.forced((1,)) == 2
    assert mask.forced((BEGIN, 4, 3)) is None


def test_a_grammar_prepares_nothing_while_the_answer_thinks() -> None:
    grammar = TwoThenEnd()
    mask = ThinkingMask(Thinking((END,), budget=2), VOCABULARY, grammar, frozenset({EOS}))
    assert mask.prepare([(), (1,), (1, 1)]) is None
    assert grammar.prepared == [], "one thinks, and the end of one that has thought enough is due"
    mask.prepare([(1, END), (1, 1, END, 1)])
    assert grammar.prepared == [(), (1,)]
    assert ThinkingMask(Thinking((END,)), VOCABULARY).prepare([(END,)]) is None


@pytest.mark.parametrize(
    ("processors", "fits"),
    [
        (Processors(thinking=Thinking((END,) * 64, (BEGIN,) * 64, budget=0)), True),
        (Processors(thinking=Thinking((END,), (BEGIN,) * 65)), False),
        (Processors(thinking=Thinking((END,)), banned_token_ids=(END,)), True),
        (Processors(thinking=Thinking((END, AFTER), budget=1), allowed_token_ids=(END,)), False),
        (
            Processors(thinking=Thinking((END, AFTER), budget=1), allowed_token_ids=(END, AFTER)),
            True,
        ),
        (Processors(thinking=Thinking((END, AFTER), budget=1), banned_token_ids=(AFTER,)), False),
        (Processors(thinking=Thinking((END,), budget=1), banned_token_ids=(1,)), True),
    ],
)
def test_a_budget_that_can_be_kept(processors: Processors, fits: bool) -> None:
    """Without a budget it does not matter whether the end is allowed."""
    if fits:
        processors.validate(VOCABULARY)
        return
    with pytest.raises(InvalidArgument, match="thinking"):
        processors.validate(VOCABULARY)
