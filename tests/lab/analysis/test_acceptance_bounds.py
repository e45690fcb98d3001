"""Theorem 4.14 by hand, and over random distributions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.analysis.acceptance_bounds import candidate_bounds, total_acceptance
from tandem.core.probs import Truncation, truncate


def test_two_candidates_by_hand() -> None:
    """P = (½, ½, 0), Q = (¼, ¼, ½) cut to its largest: the first candidate is never accepted."""
    target, draft = np.array([0.5, 0.5, 0.0]), np.array([0.25, 0.25, 0.5])
    first, second = candidate_bounds(target, draft, np.array([0.0, 0.0, 1.0]), 2)
    assert (first.uncut, first.cut, first.bound) == pytest.approx((0.5, 0.0, 0.5))
    assert (second.uncut, second.cut) == pytest.approx((0.5, 0.0))
    assert second.bound == pytest.approx((2 / 0.5 + 1) * 0.5)  # Z⁽²⁾ = ½, σ = ½
    assert total_acceptance([first, second]) == 0.0
    assert total_acceptance([first, second], cut=False) == pytest.approx(0.75)


def test_nothing_is_conditioned_on_a_refusal_that_cannot_be() -> None:
    same = np.array([0.3, 0.7])
    (only,) = candidate_bounds(same, same, same, 4)
    assert (only.uncut, only.cut, only.bound) == pytest.approx((1.0, 1.0, 0.0))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 11), st.floats(0.05, 3.0))
def test_no_candidate_moves_by_more_than_the_bound(seed: int, kept: int, sharpness: float) -> None:
    source = np.random.default_rng(seed)
    target, draft = (source.dirichlet(np.full(12, sharpness)) for _ in range(2))
    truncated = truncate(draft, Truncation(top_k=kept))
    for each in candidate_bounds(target, draft, truncated, 4):
        assert each.change <= each.bound + 1e-6


def test_truncation_that_cuts_nothing_changes_nothing() -> None:
    target, draft = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.3, 0.5])
    for each in candidate_bounds(target, draft, draft, 3):
        assert (each.change, each.bound) == (0.0, 0.0)
