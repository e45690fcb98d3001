"""What the edge accepts as log-probabilities, and what it keeps of them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tandem.core.errors import InvalidArgument, ProtocolError
from tandem.core.sparse_payload import FullPayload, SparsePayload
from tandem.specdec.events import NO_PROBS, Drafted
from tandem.specdec.logprobs import (
    LogprobsBuffer,
    LogprobsRecorder,
    check_logprob_params,
    check_logprobs,
    check_logprobs_available,
)
from tandem.specdec.messages import Committed, GenerationParams, TokenLogprob
from tandem.specdec.observers import Settled
from tandem.specdec.presets import PRESETS

VOCABULARY = 4


def asking(logprobs: bool, top: int = 0) -> GenerationParams:
    return GenerationParams(logprobs=logprobs, top_logprobs=top)


def plain(*logprobs: float) -> tuple[TokenLogprob, ...]:
    return tuple(map(TokenLogprob, logprobs))


PROBS = np.array([0.5, 0.25, 0.25, 0.0], dtype=np.float32)


def test_each_message_takes_what_was_noted_since_the_last() -> None:
    recorder = LogprobsRecorder(enabled=True)
    recorder.note(PROBS, 0)
    recorder.note(PROBS, 1)
    assert recorder.take() == (TokenLogprob(math.log(0.5)), TokenLogprob(math.log(0.25)))
    assert recorder.take() == ()


def hear(buffer: LogprobsBuffer, message: Committed) -> None:
    buffer.on_committed(message, Settled.by(message, ()), (), 0.0)


def test_logprobs_are_kept_by_position() -> None:
    buffer = LogprobsBuffer(enabled=True)
    hear(buffer, Committed(1, 5, 0, token_ids=(1, 2), logprobs=plain(-0.5, -1.5)))
    assert buffer.of(5, 1) == plain(-0.5)
    assert buffer.of(6, 1) == plain(-1.5)
    (unknown,) = buffer.of(7, 1)
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
        check_logprobs(plain(*logprobs), 2, asking(asked), VOCABULARY, "Verdict")


@pytest.mark.parametrize("top", [1, 2, 5])
def test_the_likeliest_come_best_first_and_only_possible_ones(top: int) -> None:
    recorder = LogprobsRecorder(True, top)
    recorder.note(PROBS, 2)
    (noted,) = recorder.take()
    likeliest = ((0, math.log(0.5)), (1, math.log(0.25)), (2, math.log(0.25)))
    assert noted == TokenLogprob(math.log(0.25), likeliest[:top])
    check_logprobs([noted], 1, asking(True, top), VOCABULARY, "Tokens")


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
        check_logprobs([TokenLogprob(-1.0, top)], 1, asking(True, asked), VOCABULARY, "Tokens")


def test_no_more_are_asked_for_than_are_sent_and_none_alone() -> None:
    check_logprob_params(asking(True, 20))
    check_logprob_params(asking(False, 0))
    for logprobs, top in ((True, 21), (False, 1)):
        with pytest.raises(InvalidArgument, match="top_logprobs"):
            check_logprob_params(asking(logprobs, top))


def test_a_token_drawn_at_the_edge_is_told_from_what_it_was_drawn_from() -> None:
    probs = np.array([0.1, 0.4, 0.05, 0.25, 0.2], np.float32)
    sparse = SparsePayload(np.array([1, 3]), probs[[1, 3]], 0.35, np.array([4, 4]), probs[[4, 4]])
    buffer = LogprobsBuffer(enabled=True, top=2)
    for payload, token in ((FullPayload(probs), 2), (sparse, 3), (sparse, 4)):
        buffer.on_drawn(7, token, payload, Drafted(0, NO_PROBS))
        (told,) = buffer.of(7, 1)
        assert told.logprob == pytest.approx(np.log(probs[token]))
        assert [token_id for token_id, _ in told.top] == [1, 3]
        assert [logprob for _, logprob in told.top] == pytest.approx(np.log([0.4, 0.25]))
    silent = LogprobsBuffer(enabled=False)
    silent.on_drawn(7, 3, sparse, Drafted(0, NO_PROBS))
    assert silent.of(7, 1) == ()


def test_lossy_draws_at_the_edge_and_short_payloads_cannot_tell() -> None:
    for name in ("coupled", "dssd", "dssd-full", "picospec"):
        check_logprobs_available(PRESETS[name].verify_settings, 5)
    with pytest.raises(InvalidArgument, match="picospec-top-k") as refused:
        check_logprobs_available(PRESETS["picospec-top-k"].verify_settings)
    assert refused.value.field == "logprobs"
    short = replace(PRESETS["dssd"], payload_top=2)
    check_logprobs_available(short.verify_settings, 2)
    with pytest.raises(InvalidArgument, match="which is 2") as refused:
        check_logprobs_available(short.verify_settings, 3)
    assert refused.value.field == "top_logprobs"
