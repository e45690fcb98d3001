"""Logits processors against their definitions, written plainly."""

from math import inf, nan
from typing import Any

import numpy as np
import pytest

from tandem.core.errors import InvalidArgument
from tandem.core.probs import SamplingParams, probs_from_logits
from tandem.core.processors import (
    NO_PROCESSORS,
    Grammar,
    GrammarKind,
    LogitsProcessor,
    Processors,
    RowsAfter,
    keep_only,
    logits_processor,
    no_token_left,
)
from tandem.core.tokens import PrefixedTokens

LOGITS = np.array([1.0, -2.0, 0.5, 3.0, -1.0, 0.0], dtype=np.float32)
PROMPT = (3, 4)


def processed(answer: tuple[int, ...] = (), **asked: Any) -> list[float]:
    found: list[float] = (
        LogitsProcessor(Processors(**asked), PROMPT).processed(LOGITS, answer).tolist()
    )
    return found


def test_presence_and_frequency_penalty_count_the_answers_tokens() -> None:
    answer = (1, 1, 3)
    assert processed(answer, presence_penalty=0.5) == [1.0, -2.5, 0.5, 2.5, -1.0, 0.0]
    assert processed(answer, frequency_penalty=0.5) == [1.0, -3.0, 0.5, 2.5, -1.0, 0.0]
    both = processed(answer, presence_penalty=0.5, frequency_penalty=-1.0)
    assert both == [1.0, -0.5, 0.5, 3.5, -1.0, 0.0]


def test_repetition_penalty_counts_the_prompt_too_and_divides_or_multiplies() -> None:
    assert processed((1,), repetition_penalty=2.0) == [1.0, -4.0, 0.5, 1.5, -2.0, 0.0]
    assert processed(repetition_penalty=2.0) == [1.0, -2.0, 0.5, 1.5, -2.0, 0.0]


def test_bias_comes_after_penalties_and_masks_last() -> None:
    asked: dict[str, Any] = {"repetition_penalty": 2.0, "logit_bias": ((3, 1.0), (1, 100.0))}
    assert processed((1,), **asked) == [1.0, 96.0, 0.5, 2.5, -2.0, 0.0]
    banned = processed((1,), **asked, banned_token_ids=(1, 5))
    assert banned == [1.0, -inf, 0.5, 2.5, -2.0, -inf]
    allowed = processed(**asked, allowed_token_ids=(0, 1), banned_token_ids=(1,))
    assert allowed == [1.0, *[-inf] * 5]


def test_what_ends_a_text_may_not_come_before_its_minimum() -> None:
    asked = Processors(min_tokens=2, end_token_ids=(5,))
    processor = LogitsProcessor(asked, PROMPT, eos_token_ids=frozenset({3}))
    for answer in ((), (1,)):
        found = processor.processed(LOGITS, answer).tolist()
        assert found == [1.0, -2.0, 0.5, -inf, -1.0, -inf]
    assert processor.processed(LOGITS, (1, 1)).tolist() == LOGITS.tolist()
    only = LogitsProcessor(
        Processors(min_tokens=1, allowed_token_ids=(3,)), PROMPT, eos_token_ids=frozenset({3})
    )
    with pytest.raises(InvalidArgument, match=r"^min_tokens: no token may follow"):
        only.processed(LOGITS, ())
    with pytest.raises(InvalidArgument, match=r"^min_tokens: cannot be combined with a grammar"):
        Processors(min_tokens=1, grammar=Grammar(GrammarKind.REGEX, "a")).validate(6)


def test_where_nothing_is_left_the_target_is_an_error_and_a_draft_is_as_it_was() -> None:
    logits = np.array([-inf, 1.0, 2.0], dtype=np.float32)
    only = Processors(allowed_token_ids=(0,))
    with pytest.raises(InvalidArgument, match="allowed_token_ids"):
        LogitsProcessor(only, PROMPT).processed(logits, ())
    assert (LogitsProcessor(only, PROMPT, strict=False).processed(logits, ()) == logits).all()


@pytest.mark.parametrize("length", range(5))
def test_rows_of_a_pass_follow_the_answer_wherever_the_pass_begins(length: int) -> None:
    committed = PrefixedTokens((*PROMPT, 0, 5))
    processor = LogitsProcessor(Processors(frequency_penalty=1.0), PROMPT)
    rows = RowsAfter.text(processor, committed, length)
    fed = (*committed.since(length), 5)
    assert (rows.processed(LOGITS, fed) == processor.processed(LOGITS, (0, 5, 5))).all()


@pytest.mark.parametrize(
    ("field", "asked"),
    [
        ("logit_bias", {"logit_bias": ((6, 1.0),)}),
        ("logit_bias", {"logit_bias": ((-1, 1.0),)}),
        ("logit_bias", {"logit_bias": ((1, 1.0), (1, 2.0))}),
        ("logit_bias", {"logit_bias": ((1, nan),)}),
        ("logit_bias", {"logit_bias": ((1, -100.5),)}),
        ("logit_bias", {"logit_bias": ((1, 0.0),) * 1025}),
        ("presence_penalty", {"presence_penalty": 2.5}),
        ("frequency_penalty", {"frequency_penalty": nan}),
        ("repetition_penalty", {"repetition_penalty": 0.0}),
        ("repetition_penalty", {"repetition_penalty": inf}),
        ("banned_token_ids", {"banned_token_ids": (6,)}),
        ("banned_token_ids", {"banned_token_ids": tuple(range(6))}),
        ("allowed_token_ids", {"allowed_token_ids": (0,) * 2**16 + (0,)}),
        ("allowed_token_ids", {"allowed_token_ids": (2,), "banned_token_ids": (2, 3)}),
    ],
)
def test_what_is_out_of_range_is_named(field: str, asked: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=rf"^{field}: "):
        Processors(**asked).validate(6)


def test_min_p_keeps_what_is_likely_enough_beside_the_likeliest() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.125, 0.125], dtype=np.float32))
    kept = probs_from_logits(logits, SamplingParams(min_p=0.5))
    assert kept == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert probs_from_logits(logits, SamplingParams(min_p=0.25)) == pytest.approx(np.exp(logits))
    assert probs_from_logits(logits, SamplingParams(min_p=1.0)).tolist() == [1, 0, 0, 0]
    after_top_p = probs_from_logits(logits, SamplingParams(top_p=0.8, min_p=0.3))
    assert after_top_p == pytest.approx([2 / 3, 1 / 3, 0, 0])


@pytest.mark.parametrize(
    ("field", "sampling"),
    [
        ("min_p", SamplingParams(min_p=-0.1)),
        ("min_p", SamplingParams(min_p=nan)),
        ("min_p", SamplingParams(min_p=1.1)),
        ("typical_p", SamplingParams(typical_p=0.0)),
        ("typical_p", SamplingParams(typical_p=1.1)),
        ("typical_p", SamplingParams(typical_p=nan)),
    ],
)
def test_cuts_out_of_range_are_named(field: str, sampling: SamplingParams) -> None:
    with pytest.raises(InvalidArgument, match=rf"^{field}: "):
        sampling.validate(6)


def test_a_mask_keeps_what_is_allowed_bit_for_bit() -> None:
    """Whatever the numbers are; what may not follow is gone, NaN included."""
    odd = [0.0, -0.0, 1e-45, -3e38, np.inf, -np.inf]
    scores = np.array([*odd, *odd, np.nan], dtype=np.float32)
    allowed = np.array([True] * 6 + [False] * 7)
    kept = scores.copy()
    keep_only(kept, allowed)
    assert kept[:6].tobytes() == scores[:6].tobytes()
    assert (kept[6:] == -np.inf).all()
    keep_only(kept, None)
    assert (kept == -np.inf).all()


class Mask:
    """Lets an even token follow an odd answer, and the other way round."""

    vocabulary_size = 6

    def prepare(self, answers: Any) -> None:
        """Nothing takes time here."""

    def allowed(self, answer: tuple[int, ...]) -> Any:
        return np.arange(6) % 2 != len(answer) % 2

    def forced(self, answer: tuple[int, ...]) -> int | None:
        return None


def test_a_grammar_s_mask_is_of_the_answer_so_far() -> None:
    processor = LogitsProcessor(NO_PROCESSORS, PROMPT, Mask())
    assert processor.processed(LOGITS, ()).tolist() == [-inf, -2.0, -inf, 3.0, -inf, 0.0]
    assert processor.processed(LOGITS, (1,)).tolist() == [1.0, -inf, 0.5, -inf, -1.0, -inf]


@pytest.mark.parametrize(
    ("processors", "field"),
    [
        (Processors(allowed_token_ids=(1,)), "allowed_token_ids"),
        (Processors(grammar=Grammar(GrammarKind.REGEX, "a")), "grammar"),
    ],
)
def test_what_leaves_no_token_is_named(processors: Processors, field: str) -> None:
    error = no_token_left(processors, 7)
    assert error.field == field
    assert "first 7 tokens" in str(error)


@pytest.mark.parametrize(
    ("forced", "asked", "left"),
    [
        (None, {}, None),
        (3, {}, 3),
        (0, {}, 0),
        (3, {"banned_token_ids": (3,)}, None),
        (3, {"banned_token_ids": (2, 4)}, 3),
        (3, {"allowed_token_ids": (2, 3)}, 3),
        (3, {"allowed_token_ids": (2, 4)}, None),
        (3, {"allowed_token_ids": (2, 3), "banned_token_ids": (3,)}, None),
    ],
)
def test_a_token_is_forced_where_nothing_else_forbids_it(
    forced: int | None, asked: dict[str, Any], left: int | None
) -> None:
    processor = LogitsProcessor(Processors(**asked), PROMPT, Forcing(forced))
    assert processor.forced((1,)) == left
    assert RowsAfter(processor, (1,)).forced(()) == left
    assert LogitsProcessor(Processors(**asked), PROMPT).forced((1,)) is None


def test_rows_are_prepared_by_the_grammar_after_the_prompt() -> None:
    mask = Forcing(3)
    processor = LogitsProcessor(NO_PROCESSORS, PROMPT, mask)
    RowsAfter(processor, (1,)).prepare([(), (2,)])
    RowsAfter(processor, (), skipped=2).prepare([(3, 4, 5)])
    assert mask.prepared == [(1,), (1, 2), (5,)]
    LogitsProcessor(NO_PROCESSORS, PROMPT).prepare([(1,)])
    assert RowsAfter(processor, ()).certain(3).tolist() == [0, 0, 0, 1, 0, 0]


class Forcing(Mask):
    """Forces one token, and keeps what it was told to prepare."""

    def __init__(self, token_id: int | None) -> None:
        self._token_id = token_id
        self.prepared: list[tuple[int, ...]] = []

    def prepare(self, answers: Any) -> None:
        self.prepared += answers

    def forced(self, answer: tuple[int, ...]) -> int | None:
        assert answer == (1,)
        return self._token_id


def test_dead_ends_are_seen_whatever_forbids() -> None:
    """One token, and that one is banned, or not the grammar's. Where the model itself has no token
    nothing that was asked is to blame."""
    alone = np.array([-inf, -inf, 1.0, -inf, -inf, -inf], dtype=np.float32)
    for processor in (
        LogitsProcessor(Processors(banned_token_ids=(2,)), PROMPT),
        LogitsProcessor(NO_PROCESSORS, PROMPT, Mask()),
        logits_processor(Processors(grammar=Grammar(GrammarKind.REGEX, "a")), PROMPT, Mask()),
    ):
        assert processor is not None
        with pytest.raises(InvalidArgument):
            processor.processed(alone, ())
        nothing = np.full(6, -inf, np.float32)
        assert (processor.processed(nothing, ()) == nothing).all()
    draft = logits_processor(Processors(banned_token_ids=(2,)), PROMPT, None, strict=False)
    assert draft is not None
    assert (draft.processed(alone, ()) == alone).all()
    assert draft.prompt_length == 2


def test_biases_are_added_in_single_precision() -> None:
    """Both ends compute with the wire's numbers: 0.1 is 13421773 / 2^27 there."""
    tiny = np.array([0.3, 1e-9, -0.1, 7.7], dtype=np.float32)
    biases = tuple(enumerate((0.1, 0.7, 0.3, 1e-7)))
    found = LogitsProcessor(Processors(logit_bias=biases), ()).processed(tiny, ())
    expected = tiny + np.array([bias for _, bias in biases], dtype=np.float32)
    assert found.tobytes() == expected.tobytes()


def test_a_grammar_has_65536_characters_at_most_and_must_be_let_end() -> None:
    Processors(grammar=Grammar(GrammarKind.REGEX, "a" * 65_536)).validate(6)
    for grammar, ignore_eos in (("a" * 65_537, False), ("a", True)):
        with pytest.raises(InvalidArgument, match="grammar"):
            Processors(grammar=Grammar(GrammarKind.REGEX, grammar)).validate(6, ignore_eos)


class Ended(Mask):
    """A grammar whose text is complete."""

    def allowed(self, answer: tuple[int, ...]) -> Any:
        return None


def test_nothing_follows_a_text_that_is_complete() -> None:
    processor = LogitsProcessor(NO_PROCESSORS, PROMPT, Ended(), strict=False)
    assert not RowsAfter(processor, ()).allows(1, ())
    assert (processor.processed(LOGITS, ()) == LOGITS).all(), "a draft may be anything"
    asked = Processors(grammar=Grammar(GrammarKind.REGEX, "a"))
    target = LogitsProcessor(asked, PROMPT, Ended())
    with pytest.raises(InvalidArgument, match="grammar"):
        target.processed(LOGITS, ())
