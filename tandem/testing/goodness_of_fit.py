"""Whether short sequences follow a distribution: cells, Pearson's statistic, what it finds.

Invariant: cells partition all sequences, and are chosen from the distribution alone, before any
sequence is seen. Quantiles by Wilson & Hilferty (1931); the power by the normal approximation of
the noncentral chi-squared distribution.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tandem.core.probs import Array

Prefix = tuple[int, ...]
LEAST_EXPECTED = 5.0
EXPANDED_FROM = 20.0
"""A prefix that fewer samples are expected to begin with is a cell of its own."""
FALSE_ALARM = 1e-4
POWER = 0.99
_ALARM_DEVIATIONS = 3.719
_POWER_DEVIATIONS = 2.326
"""Of the normal distribution, for FALSE_ALARM and POWER."""


@dataclass(frozen=True, slots=True)
class Cells:
    """Probabilities of the prefixes that are cells; every other sequence is in the last cell."""

    prefixes: tuple[Prefix, ...]
    probs: tuple[float, ...]

    @property
    def rest(self) -> float:
        return max(0.0, 1.0 - sum(self.probs))

    def counts(self, sequences: Iterable[Sequence[int]]) -> list[int]:
        """Return the count of each cell, that of all others last. A sequence is in the longest cell
        that fits."""
        places = {prefix: index for index, prefix in enumerate(self.prefixes)}
        counts = [0] * (len(self.prefixes) + 1)
        for sequence in sequences:
            ids = tuple(sequence)
            indices = (places.get(ids[:end]) for end in range(len(ids), 0, -1))
            place = next((index for index in indices if index is not None), len(self.prefixes))
            counts[place] += 1
        return counts


@dataclass(frozen=True, slots=True)
class Fit:
    """`total_variation`: between the cells' shares in the sample and their probabilities; `noise`
    is what it comes to by chance alone. `detectable`: any total variation as large is found out
    with probability POWER."""

    samples: int
    cells: int
    statistic: float
    limit: float
    total_variation: float
    noise: float
    detectable: float

    @property
    def fits(self) -> bool:
        return self.statistic <= self.limit

    @property
    def p_value(self) -> float:
        """The probability that a sample of the distribution has as large a statistic."""
        return tail_probability(self.statistic, max(1, self.cells - 1))


def choose_cells(next_probs: Callable[[Prefix], Array], length: int, samples: int) -> Cells:
    """Choose cells for `samples` sequences of `length` tokens. `next_probs` gives the distribution
    [V] of the token after a prefix; it is called for the likeliest prefixes, at most samples /
    EXPANDED_FROM for each position."""
    cells: dict[Prefix, float] = {}
    waiting: list[tuple[float, Prefix]] = [(-1.0, ())]
    while waiting:
        negative, prefix = heapq.heappop(waiting)
        mass = -negative
        left = -negative
        probs = next_probs(prefix)
        least = LEAST_EXPECTED / samples / mass
        for token in (probs >= least).nonzero()[0].tolist():
            share = mass * float(probs[token])
            left -= share
            longer = (*prefix, token)
            if len(longer) < length and share * samples >= EXPANDED_FROM:
                heapq.heappush(waiting, (-share, longer))
            else:
                cells[longer] = share
        if prefix and left * samples >= LEAST_EXPECTED:
            cells[prefix] = left  # followed by something rarer
    return Cells(tuple(cells), tuple(cells.values()))


def fit(cells: Cells, sequences: Sequence[Sequence[int]]) -> Fit:
    """Run Pearson's test on the sequences. The rest is a cell where enough is expected there."""
    samples = len(sequences)
    counts = cells.counts(sequences)
    probs = [*cells.probs, cells.rest]
    if probs[-1] * samples < LEAST_EXPECTED and len(probs) > 1:  # joins the last cell
        rest = probs.pop()
        probs[-1] += rest
        counts[-2:] = [counts[-2] + counts[-1]]
    freedom = max(1, len(probs) - 1)
    pairs = [(count, samples * prob) for count, prob in zip(counts, probs, strict=True)]
    statistic = sum((count - expected) ** 2 / expected for count, expected in pairs if expected)
    return Fit(
        samples=samples,
        cells=len(probs),
        statistic=statistic,
        limit=upper_quantile(freedom, _ALARM_DEVIATIONS),
        total_variation=sum(abs(count - expected) for count, expected in pairs) / (2 * samples),
        noise=sum(math.sqrt(expected * (1 - expected / samples)) for _, expected in pairs)
        * math.sqrt(2 / math.pi)
        / (2 * samples),
        detectable=min(1.0, math.sqrt(_noncentrality(freedom) / samples) / 2),
    )


def upper_quantile(freedom: int, deviations: float) -> float:
    """Return the chi-squared quantile at this many standard deviations of the normal
    distribution."""
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + deviations * math.sqrt(spread)) ** 3


def tail_probability(statistic: float, freedom: int) -> float:
    """Return the probability that a chi-squared variable is larger."""
    spread = 2 / (9 * freedom)
    deviations = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(deviations / math.sqrt(2))


def _noncentrality(freedom: int) -> float:
    """Return the noncentrality that lets the statistic exceed its limit with probability POWER. A
    total variation t has at least 4 t^2 of it a sample (Cauchy and Schwarz)."""
    limit = upper_quantile(freedom, _ALARM_DEVIATIONS)
    low = 0.0
    high = 10.0 * limit + 1000.0
    for _ in range(60):
        middle = (low + high) / 2
        spread = math.sqrt(2 * (freedom + 2 * middle))
        enough = freedom + middle - _POWER_DEVIATIONS * spread >= limit
        low, high = (low, middle) if enough else (middle, high)
    return high
