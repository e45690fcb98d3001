"""What a draft token costs a side to decode: a line over the context's length (DRAGON §5.2),
c_dec(t) = (k_a / k_b)·t + k_c. Fitted once, with the machine at rest; at runtime k_c stands and the
slope follows what is measured. Invariant: slope and intercept are never negative."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np

from tandem.core.errors import InvalidArgument

SLOPE_WEIGHT = 0.05
"""ζ: what one observation counts against all before it."""


@dataclass(frozen=True, slots=True)
class DecodeFit:
    """The line. `numerator` is k_a = mean of (c - k_c)·t, `denominator` k_b = mean of t²: the
    quotient of the two is the least squares slope through a given intercept `intercept_s`."""

    numerator: float
    denominator: float
    intercept_s: float

    def __post_init__(self) -> None:
        for field in ("numerator", "denominator", "intercept_s"):
            number = getattr(self, field)
            if not (isfinite(number) and number >= 0):
                raise InvalidArgument(field, f"{number} is not a number from 0")
        if self.denominator == 0:
            raise InvalidArgument("denominator", "is 0")

    @property
    def slope_s(self) -> float:
        """Seconds that each token of context adds."""
        return self.numerator / self.denominator

    def at(self, length: float) -> float:
        """Predicted seconds for a token after `length` tokens."""
        return self.slope_s * length + self.intercept_s

    def updated(self, length: int, duration_s: float, weight: float = SLOPE_WEIGHT) -> "DecodeFit":
        """The line after one more observation: the paper's moving averages of k_a and k_b. A step
        faster than the intercept counts as one without slope, not as a negative one."""
        _check_observation(length, duration_s)
        if not 0 <= weight <= 1:
            raise InvalidArgument("weight", f"{weight} is not a weight")
        above_s = max(0.0, duration_s - self.intercept_s)
        return DecodeFit(
            (1 - weight) * self.numerator + weight * above_s * length,
            (1 - weight) * self.denominator + weight * length * length,
            self.intercept_s,
        )


def fit_decoding(lengths: Sequence[int], durations_s: Sequence[float]) -> DecodeFit:
    """The least squares line through measured steps; where noise would make a term negative, it is
    0 and the other is fitted alone. Raises InvalidArgument for fewer than two observations or
    impossible ones."""
    if len(lengths) != len(durations_s):
        raise InvalidArgument("durations_s", f"{len(durations_s)} for {len(lengths)} lengths")
    if len(lengths) < 2:
        raise InvalidArgument("lengths", "two observations are needed for a line")
    for length, duration_s in zip(lengths, durations_s, strict=True):
        _check_observation(length, duration_s)
    t = np.asarray(lengths, dtype=np.float64)
    c = np.asarray(durations_s, dtype=np.float64)
    spread = float(((t - t.mean()) ** 2).sum())
    slope = float(((t - t.mean()) * (c - c.mean())).sum()) / spread if spread else 0.0
    intercept_s = float(c.mean()) - slope * float(t.mean())
    intercept_s = max(0.0, float(c.mean()) if slope < 0 else intercept_s)
    numerator = float(((c - intercept_s) * t).mean())
    return DecodeFit(max(0.0, numerator), float((t * t).mean()), intercept_s)


def _check_observation(length: int, duration_s: float) -> None:
    if length < 1:
        raise InvalidArgument("length", f"{length} tokens")
    if not (isfinite(duration_s) and duration_s >= 0):
        raise InvalidArgument("duration_s", f"{duration_s} is not a duration")
