"""The tokens that come next, and how likely beside the one that was taken."""

from __future__ import annotations

import numpy as np
import pytest

from tandem.core.distribution import gumbel_runners_up, likely_runners_up
from tandem.core.gumbel import gumbel
from tandem.core.probs import Array, confidence

PROBS: Array = np.array([0.5, 0.0, 0.3, 0.2], dtype=np.float32)


@pytest.mark.parametrize(
    ("token_id", "count", "expected"),
    [
        (0, 2, [(2, 0.6), (3, 0.4)]),
        (0, 1, [(2, 0.6)]),
        (0, 3, [(2, 0.6), (3, 0.4)]),
        (2, 2, [(0, 1.0), (3, 2 / 3)]),
        (3, 1, [(0, 1.0)]),
        (1, 2, [(0, 1.0), (2, 1.0)]),
    ],
)
def test_the_likeliest_others_by_their_share_of_the_token_s_own(
    token_id: int, count: int, expected: list[tuple[int, float]]
) -> None:
    """At most as likely as the token itself; never one of probability zero."""
    found = likely_runners_up(PROBS, token_id, count)
    assert [other for other, _ in found] == [other for other, _ in expected]
    assert [share for _, share in found] == pytest.approx([share for _, share in expected])


def test_under_gumbel_coupling_the_next_best_scores() -> None:
    scores = {
        token: float(np.log(PROBS[token]) + gumbel(7, 11, np.array([token]))[0])
        for token in (0, 2, 3)
    }
    best, second, third = sorted(scores, key=lambda token: -scores[token])
    found = gumbel_runners_up(PROBS, best, 7, 11, 2)
    assert [other for other, _ in found] == [second, third]
    shares = [float(np.exp(scores[other] - scores[best])) for other in (second, third)]
    assert [share for _, share in found] == pytest.approx(shares, rel=1e-5)
    assert gumbel_runners_up(PROBS, best, 7, 11, 1) == found[:1]
    assert gumbel_runners_up(np.eye(4, dtype=np.float32)[2], 2, 7, 11, 3) == ()


@pytest.mark.parametrize("shift", [0.0, -1000.0, 1000.0])
def test_confidence_is_the_largest_probability(shift: float) -> None:
    logits = np.log(np.array([0.15, 0.75, 0.1], dtype=np.float64)) + shift
    assert confidence(logits) == pytest.approx(0.75, rel=1e-3)
    assert np.isnan(confidence(np.full(3, -np.inf, dtype=np.float32)))
