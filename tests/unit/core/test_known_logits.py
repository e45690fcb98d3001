"""Rows of which only the largest logits are known: what is decided is the model's own choice."""

from __future__ import annotations

import numpy as np
import pytest

from tandem.core.default_sampling import DefaultSampling
from tandem.core.errors import FailedPrecondition
from tandem.core.known_logits import check_row, decidable_defaults
from tandem.core.probs import Array, SamplingParams

KNOWN = 5
GREEDY = SamplingParams(temperature=0.0)


def row(told: int, others: float = -9.0) -> Array:
    """A row [20] of which `told` logits are known."""
    logits = np.full(20, others)
    logits[:told] = -np.arange(told, dtype=float)
    return logits


def check(logits: Array, processed: Array, sampling: SamplingParams) -> None:
    check_row(logits, processed, sampling, known=KNOWN, remedy="more")


def test_a_row_as_it_was_told_decides_what_was_promised() -> None:
    for others in (-9.0, -np.inf):
        logits = row(KNOWN, others)
        check(logits, logits, GREEDY)
        check(logits, logits, SamplingParams(top_k=KNOWN))


def test_a_row_that_tells_of_fewer_decides_less() -> None:
    """Some of the tokens that were told of are in no vocabulary."""
    logits = row(KNOWN - 2, -np.inf)
    check(logits, logits, GREEDY)
    check(logits, logits, SamplingParams(top_k=KNOWN - 2))
    with pytest.raises(FailedPrecondition, match="set top_k to less"):
        check(logits, logits, SamplingParams(top_k=KNOWN - 1))
    with pytest.raises(FailedPrecondition):
        check(np.full(20, -np.inf), np.full(20, -np.inf), GREEDY)


def test_what_a_request_forbids_leaves_others_that_are_unknown() -> None:
    logits = row(KNOWN)
    processed = logits.copy()
    processed[:3] = -np.inf
    check(logits, processed, GREEDY)
    check(logits, processed, SamplingParams(top_k=2))
    with pytest.raises(FailedPrecondition, match="forbids or"):
        check(logits, processed, SamplingParams(top_k=3))
    processed[:KNOWN] = -np.inf
    with pytest.raises(FailedPrecondition, match="forbids or"):
        check(logits, processed, GREEDY)


@pytest.mark.parametrize(("top_k", "kept"), [(None, KNOWN), (3, 3), (KNOWN + 1, KNOWN)])
def test_a_model_s_own_settings_leave_out_what_cannot_be_decided(
    top_k: int | None, kept: int
) -> None:
    recommended = DefaultSampling(temperature=0.7, top_k=top_k, repetition_penalty=1.1)
    decidable = decidable_defaults(recommended, known=KNOWN)
    assert decidable == DefaultSampling(temperature=0.7, top_k=kept, repetition_penalty=None)
