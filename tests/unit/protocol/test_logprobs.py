"""What the edge accepts as log-probabilities, and what it keeps of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tandem.core.errors import InvalidArgument, ProtocolError
from tandem.policy.presets import find_preset
from tandem.protocol.logprobs import Telling, Told, check_logprobs, check_tells_logprobs
from tandem.protocol.messages import Tokens

LAW = np.array([0.5, 0.25, 0.25, 0.0], dtype=np.float32)


def test_each_message_takes_what_was_noted_since_the_last() -> None:
    telling = Telling(asked=True)
    telling.note(LAW, 0)
    telling.note(LAW, 1)
    assert telling.take() == (math.log(0.5), math.log(0.25))
    assert telling.take() == ()


def test_nothing_is_noted_unasked_nor_is_a_law_needed_then() -> None:
    telling = Telling(asked=False)
    telling.note(3, 3)
    assert telling.take() == ()
    assert Told(asked=False).of(0, 2) == ()


def test_what_was_told_stands_at_its_position() -> None:
    told = Told(asked=True)
    told.take(Tokens(1, 0, 5, 0, token_ids=(1, 2), logprobs=(-0.5, -1.5)))
    assert told.of(5, 1) == (-0.5,)
    assert told.of(6, 1) == (-1.5,)
    (unknown,) = told.of(7, 1)
    assert math.isnan(unknown)


@pytest.mark.parametrize(
    ("logprobs", "asked"),
    [
        *[((), True), ((-1.0,), True), ((-1.0, -2.0), False), ((-1.0, 0.5), True)],
        *[((-1.0, math.nan), True), ((-1.0, -math.inf), True)],
    ],
)
def test_one_for_each_token_and_none_unasked(logprobs: tuple[float, ...], asked: bool) -> None:
    with pytest.raises(ProtocolError):
        check_logprobs(logprobs, 2, asked, "Verdict")


def test_certainty_is_zero() -> None:
    check_logprobs((0.0, -1e30), 2, True, "Verdict")


def test_presets_that_draw_at_the_edge_cannot_tell() -> None:
    check_tells_logprobs(find_preset("coupled"))
    with pytest.raises(InvalidArgument, match="dssd") as refused:
        check_tells_logprobs(find_preset("dssd"))
    assert refused.value.field == "logprobs"
