"""What a truncation would cut off, told without truncating."""

from __future__ import annotations

import numpy as np
import pytest

from tandem.core.probs import Truncation, truncate
from tandem.core.tails import tails_of

PROBS = np.array([0.05, 0.4, 0.0, 0.3, 0.2, 0.05], dtype=np.float32)


def test_the_tail_is_the_mass_that_a_truncation_leaves_out() -> None:
    for size, tail in zip((1, 2, 3), tails_of(PROBS, (1, 2, 3)), strict=True):
        kept = truncate(PROBS, Truncation(top_k=size)) > 0
        assert tail.entries == size == kept.sum()
        assert tail.mass == pytest.approx(float(PROBS[~kept].sum()), abs=1e-6)


def test_no_more_entries_are_kept_than_there_are() -> None:
    few, every = tails_of(PROBS, (64, 0))
    assert few == every
    assert few.entries == 5
    assert few.mass == pytest.approx(0.0, abs=1e-6)


def test_entries_that_no_frame_can_carry_are_of_the_tail() -> None:
    (tail,) = tails_of(PROBS, (64,), floor=0.6)
    assert tail.entries == 2
    assert tail.mass == pytest.approx(0.3, abs=1e-6)


def test_a_certain_token_has_no_tail() -> None:
    one_hot = np.zeros(8, dtype=np.float32)
    one_hot[3] = 1.0
    assert [(tail.entries, tail.mass) for tail in tails_of(one_hot, (1, 320))] == [(1, 0), (1, 0)]
