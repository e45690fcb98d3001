"""What the edge accepts as log-probabilities, and what it keeps of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

from tandem.core.errors import InvalidArgument, ProtocolError
from tandem.policy.presets import find_preset
from tandem.protocol.logprobs import (
    MOST_TOP_LOGPROBS,
    Telling,
    Told,
    check_logprobs,
    check_tells_logprobs,
    check_top_logprobs,
)
from tandem.protocol.messages import TokenLogprob, Tokens


@dataclass(frozen=True)
class Asking:
    """Of a vocabulary of LAW's size."""

    logprobs: bool
    top_logprobs: int
    vocabulary_size: int = 4


def asking(logprobs: bool, top: int = 0) -> Asking:
    return Asking(logprobs, top)


def plain(*logprobs: float) -> tuple[TokenLogprob, ...]:
    return tuple(map(TokenLogprob, logprobs))


LAW = np.array([0.5, 0.25, 0.25, 0.0], dtype=np.float32)


def test_each_message_takes_what_was_noted_since_the_last() -> None:
    telling = Telling(asked=True)
    telling.note(LAW, 0)
    telling.note(LAW, 1)
    assert telling.take() == (TokenLogprob(math.log(0.5)), TokenLogprob(math.log(0.25)))
    assert telling.take() == ()


def test_nothing_is_noted_unasked_nor_is_a_law_needed_then() -> None:
    telling = Telling(asked=False)
    telling.note(3, 3)
    assert telling.take() == ()
    assert Told(asked=False).of(0, 2) == ()


def test_what_was_told_stands_at_its_position() -> None:
    told = Told(asked=True)
    told.take(Tokens(1, 0, 5, 0, token_ids=(1, 2), logprobs=plain(-0.5, -1.5)))
    assert told.of(5, 1) == plain(-0.5)
    assert told.of(6, 1) == plain(-1.5)
    (unknown,) = told.of(7, 1)
    assert math.isnan(unknown.logprob)
    assert unknown.top == ()


@pytest.mark.parametrize(
    ("logprobs", "asked"),
    [
        *[((), True), ((-1.0,), True), ((-1.0, -2.0), False), ((-1.0, 0.5), True)],
        *[((-1.0, math.nan), True), ((-1.0, -math.inf), True)],
    ],
)
def test_one_for_each_token_and_none_unasked(logprobs: tuple[float, ...], asked: bool) -> None:
    with pytest.raises(ProtocolError):
        check_logprobs(plain(*logprobs), 2, asking(asked), "Verdict")


@pytest.mark.parametrize("top", [1, 2, 5])
def test_the_likeliest_are_told_best_first_and_only_possible_ones(top: int) -> None:
    telling = Telling(True, top)
    telling.note(LAW, 2)
    (told,) = telling.take()
    likeliest = ((0, math.log(0.5)), (1, math.log(0.25)), (2, math.log(0.25)))
    assert told == TokenLogprob(math.log(0.25), likeliest[:top])
    check_logprobs([told], 1, asking(True, top), "Tokens")


@pytest.mark.parametrize(
    ("top", "asked"),
    [
        *[((), 2), (((0, -1.0),), 0), (((0, -1.0), (1, -2.0)), 1)],
        *[(((4, -1.0),), 1), (((-1, -1.0),), 1), (((0, 0.5),), 1), (((0, math.nan),), 1)],
    ],
)
def test_likeliest_tokens_are_those_asked_for_and_of_the_vocabulary(
    top: tuple[tuple[int, float], ...], asked: int
) -> None:
    with pytest.raises(ProtocolError):
        check_logprobs([TokenLogprob(-1.0, top)], 1, asking(True, asked), "Tokens")


def test_no_more_are_asked_for_than_are_told_and_none_alone() -> None:
    check_top_logprobs(True, MOST_TOP_LOGPROBS)
    check_top_logprobs(False, 0)
    for logprobs, top in ((True, MOST_TOP_LOGPROBS + 1), (False, 1)):
        with pytest.raises(InvalidArgument, match="top_logprobs"):
            check_top_logprobs(logprobs, top)


def test_certainty_is_zero() -> None:
    check_logprobs(plain(0.0, -1e30), 2, asking(True), "Verdict")


def test_presets_that_draw_at_the_edge_cannot_tell() -> None:
    check_tells_logprobs(find_preset("coupled"))
    with pytest.raises(InvalidArgument, match="dssd") as refused:
        check_tells_logprobs(find_preset("dssd"))
    assert refused.value.field == "logprobs"
