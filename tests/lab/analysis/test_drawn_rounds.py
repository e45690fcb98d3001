"""Tokens of a round along a text that the target drew."""

import numpy as np
import pytest

from lab.analysis.cost_models import expected_tokens_per_round
from lab.analysis.drawn_rounds import tokens_per_round


@pytest.mark.parametrize("rate", [0.0, 0.5, 0.9])
def test_alike_positions_follow_the_geometric_sum(rate: float) -> None:
    found = tokens_per_round([rate] * 4000, 4)
    assert found == pytest.approx(expected_tokens_per_round(rate, 4), rel=1e-2)


def test_rounds_are_those_that_coins_give() -> None:
    """Every token's draft is accepted or not by a coin of its place, and rounds are cut so."""
    source = np.random.default_rng(1)
    accepted = source.random(30)
    rounds = [_rounds(source.random(30) < accepted, 3) for _ in range(4000)]
    assert tokens_per_round(accepted.tolist(), 3) == pytest.approx(30 / np.mean(rounds), rel=0.01)


def _rounds(right: np.ndarray, draft_length: int) -> int:
    place = rounds = 0
    while place < len(right):
        run = 0
        while run < draft_length and place + run < len(right) and right[place + run]:
            run += 1
        place += run + 1
        rounds += 1
    return rounds
