"""A line through recent points. Invariant: the slope is never below zero, nor steeper than a line
through the origin would be at the mean."""

from __future__ import annotations

from math import isinf
from typing import NamedTuple


class _Sums(NamedTuple):
    """Of the points, by weight."""

    weight: float = 0.0
    x: float = 0.0
    xx: float = 0.0
    y: float = 0.0
    xy: float = 0.0


class LineFit:
    """y = first + further·x, by least squares; each point weighs `keep` times as much as the one
    after it. One thread adds them; others may ask meanwhile, since the sums are replaced as a
    whole."""

    __slots__ = ("_keep", "_sums")

    def __init__(self, keep: float) -> None:
        self._keep = keep
        self._sums = _Sums()

    @property
    def weight(self) -> float:
        """Of all points."""
        return self._sums.weight

    def add(self, x: float, y: float) -> None:
        keep = self._keep
        weight, xs, xxs, ys, xys = self._sums
        self._sums = _Sums(
            keep * weight + 1,
            keep * xs + x,
            keep * xxs + x * x,
            keep * ys + y,
            keep * xys + x * y,
        )

    @property
    def mean(self) -> float:
        """The mean of y; needs a point."""
        sums = self._sums
        return sums.y / sums.weight

    def fit(self, prior_ratio: float = 0.0, prior_weight: float = 0.0) -> tuple[float, float]:
        """Fit a line by weighted least squares, with an optional prior on its slope. The slope is
        kept between 0 and that of a line with y = 0 at x = -1.

        Args:
            prior_ratio: prior of the slope, as a multiple of the line's value at x = 0.
            prior_weight: strength of the prior, as the sum of squares (x - mean x)^2 of points
                that would count as much. 0: no prior. Infinite: the prior alone.

        Returns:
            The line's value at x = 0 and its slope.

        Raises:
            ZeroDivisionError: no point was added.
        """
        sums = self._sums
        mean_x = sums.x / sums.weight
        mean_y = sums.y / sums.weight
        sxx = max(0.0, sums.xx - sums.x * mean_x)
        sxy = sums.xy - sums.x * mean_y
        # Points at nearly one x say nothing about the slope: the quotient would be noise.
        slope = sxy / sxx if sxx > 0.05 * sums.weight else 0.0
        if prior_weight:
            prior_slope = prior_ratio * mean_y / (1 + prior_ratio * mean_x)
            trust = 1.0 if isinf(prior_weight) else prior_weight / (sxx + prior_weight)
            slope += trust * (prior_slope - slope)
        slope = min(max(0.0, slope), mean_y / (1 + mean_x))
        return mean_y - slope * mean_x, slope
