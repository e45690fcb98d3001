"""Pearson's goodness-of-fit test without scipy; for seeded samples, so it never flickers."""

from collections.abc import Sequence
from math import sqrt

import numpy as np

from tandem.core.probs import Array


def assert_fits(
    counts: Sequence[int] | Array, probs: Sequence[float] | Array, deviations: float = 4.75
) -> None:
    """Fail unless `counts` [n] look like a sample of `probs` [n]; wrong with the chance that a
    normal variable has beyond `deviations`: 10^-6, and 10^-4 for 3.719, which takes fewer samples.

    The distribution must leave at least five counts expected in every cell of positive probability.
    """
    observed = np.asarray(counts, dtype=float)
    expected = np.asarray(probs, dtype=float) * observed.sum() / np.sum(probs)
    cells = expected > 0
    assert not observed[~cells].any(), "an outcome of probability zero occurred"
    assert expected[cells].min() >= 5, "too few samples for this distribution"
    statistic = float((((observed - expected) ** 2)[cells] / expected[cells]).sum())
    limit = upper_quantile(int(cells.sum()) - 1, deviations)
    assert statistic <= limit, f"chi-squared {statistic:.1f} > {limit:.1f}"


def upper_quantile(freedom: int, deviations: float) -> float:
    """The chi-squared quantile at `deviations` of the normal distribution (Wilson & Hilferty
    1931)."""
    if freedom == 0:
        return 0.0
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + deviations * sqrt(spread)) ** 3
