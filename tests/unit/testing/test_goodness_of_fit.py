"""Cells of sequences, and the test that uses them: seeded, so it never flickers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tandem.core.probs import Array
from tandem.testing.goodness_of_fit import (
    FALSE_ALARM,
    Cells,
    Prefix,
    choose_cells,
    fit,
    tail_probability,
    upper_quantile,
)

FIRST = np.array([0.5, 0.3, 0.19, 0.01])
NEXT = np.array([[0.7, 0.3, 0, 0], [0.1, 0.2, 0.3, 0.4], [0.25] * 4, [1, 0, 0, 0]])


def next_probs(prefix: Prefix) -> Array:
    return NEXT[prefix[-1]] if prefix else FIRST


def drawn(samples: int, first: Array = FIRST, seed: int = 1) -> list[Prefix]:
    rng = np.random.default_rng(seed)
    tokens = rng.choice(4, size=samples, p=first)
    return [(int(token), int(rng.choice(4, p=NEXT[token]))) for token in tokens]


def test_cells_partition_the_sequences() -> None:
    cells = choose_cells(next_probs, 2, samples=200)
    assert sum(cells.probs) + cells.rest == pytest.approx(1)
    assert min(cells.probs) * 200 >= 5
    # 3 is too rare to be a cell, and (1, 0) is just common enough.
    assert {prefix[0] for prefix in cells.prefixes} == {0, 1, 2}
    assert dict(zip(cells.prefixes, cells.probs, strict=True))[1, 0] == pytest.approx(0.03)
    assert cells.rest == pytest.approx(0.01)
    counts = cells.counts([(0, 0), (0, 1), (0, 1), (3, 0), (9, 9)])
    found = {prefix: count for prefix, count in zip(cells.prefixes, counts, strict=False) if count}
    assert (found, counts[-1]) == ({(0, 0): 1, (0, 1): 2}, 2)


def test_what_follows_a_prefix_rarely_has_a_cell_together() -> None:
    many = np.full(100, 0.01)
    cells = choose_cells(lambda prefix: many if prefix else np.array([0.9, 0.1]), 2, samples=100)
    assert dict(zip(cells.prefixes, cells.probs, strict=True)) == {
        (0,): pytest.approx(0.9),
        (1,): pytest.approx(0.1),
    }


def test_a_sample_fits_its_own_distribution_and_no_other() -> None:
    cells = choose_cells(next_probs, 2, samples=2000)
    own = fit(cells, drawn(2000))
    assert own.fits
    assert own.total_variation < 2 * own.noise
    other = fit(cells, drawn(2000, np.array([0.4, 0.4, 0.19, 0.01])))
    assert not other.fits
    assert other.total_variation == pytest.approx(0.1, abs=0.03)


def test_the_stated_power_and_false_alarms_are_those_of_many_runs() -> None:
    """Of 400 samples, of the hardest distribution of that total variation and of the right one."""
    cells = Cells(tuple((token,) for token in range(20)), (0.05,) * 20)
    samples, runs = 1000, 400
    detectable = fit(cells, [(token % 20,) for token in range(samples)]).detectable
    change = np.tile([1 + 2 * detectable, 1 - 2 * detectable], 10)
    rng = np.random.default_rng(5)

    def found(probs: Array) -> int:
        counts = rng.multinomial(samples, probs, size=runs)
        statistics = ((counts - 50.0) ** 2 / 50).sum(axis=1)
        return int((statistics > upper_quantile(19, 3.719)).sum())

    assert found(np.full(20, 0.05) * change) >= 0.97 * runs
    assert found(np.full(20, 0.05)) <= 1


@pytest.mark.parametrize("freedom", [6, 10, 50, 200])
def test_quantiles_leave_the_stated_mass_above_them(freedom: int) -> None:
    """Exactly, as a Poisson sum, for even degrees of freedom."""
    half = upper_quantile(freedom, 3.719) / 2
    terms = (math.exp(k * math.log(half) - math.lgamma(k + 1) - half) for k in range(freedom // 2))
    assert sum(terms) == pytest.approx(FALSE_ALARM, rel=0.25)


@pytest.mark.parametrize(
    ("statistic", "freedom", "probability"),
    [(5.991, 2, 0.05), (18.307, 10, 0.05), (135.807, 100, 0.01), (10.0, 10, 0.4405)],
)
def test_tail_probabilities_are_those_of_tables(
    statistic: float, freedom: int, probability: float
) -> None:
    assert tail_probability(statistic, freedom) == pytest.approx(probability, rel=0.03)


def test_a_p_value_says_the_same_as_the_limit() -> None:
    cells = choose_cells(next_probs, 2, samples=2000)
    own = fit(cells, drawn(2000))
    assert own.p_value > FALSE_ALARM
    other = fit(cells, drawn(2000, np.array([0.4, 0.4, 0.19, 0.01])))
    assert not other.fits
    assert other.p_value < FALSE_ALARM
    assert tail_probability(own.limit, own.cells - 1) == pytest.approx(FALSE_ALARM, rel=0.01)
