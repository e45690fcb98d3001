"""A line through recent points. Invariant: the slope is never below zero, nor steeper than a line
through the origin would be at the mean."""

from __future__ import annotations

from math import isinf


class LineFit:
    """y = first + further·x, by least squares; each point weighs `keep` times as much as the one
    after it. Points may come in groups of different height, which share the slope."""

    __slots__ = ("_apart_xx", "_apart_xy", "_keep", "_x", "_xx", "_xy", "_y", "weight")

    def __init__(self, keep: float) -> None:
        self.weight = 0.0
        self._apart_xx = self._apart_xy = 0.0
        self._keep = keep
        self._x = self._xx = self._y = self._xy = 0.0

    def add(self, x: float, y: float) -> None:
        keep = self._keep
        self.weight = keep * self.weight + 1
        self._x = keep * self._x + x
        self._xx = keep * self._xx + x * x
        self._y = keep * self._y + y
        self._xy = keep * self._xy + x * y
        self._apart_xx *= keep
        self._apart_xy *= keep

    def regroup(self) -> None:
        """Begin another group of points. It needs at least one point before `fit`."""
        self._apart_xx, self._apart_xy = self._apart()
        self.weight = self._x = self._xx = self._y = self._xy = 0.0

    def _apart(self) -> tuple[float, float]:
        """Return the sums of x·x and x·y, where x and y are distances from the mean of a point's
        group."""
        weight = self.weight
        x = self._x
        if not weight:
            return self._apart_xx, self._apart_xy
        xx = self._xx - x**2 / weight
        xy = self._xy - x * self._y / weight
        return self._apart_xx + (xx if xx > 0 else 0.0), self._apart_xy + xy

    @property
    def mean(self) -> float:
        """The mean of y; needs a point."""
        return self._y / self.weight

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
        mean_x = self._x / self.weight
        mean_y = self._y / self.weight
        sxx, sxy = self._apart()
        # Points at nearly one x say nothing about the slope: the quotient would be noise.
        slope = sxy / sxx if sxx > 0.05 * self.weight else 0.0
        if prior_weight:
            prior_slope = prior_ratio * mean_y / (1 + prior_ratio * mean_x)
            trust = 1.0 if isinf(prior_weight) else prior_weight / (sxx + prior_weight)
            slope += trust * (prior_slope - slope)
        slope = min(max(0.0, slope), mean_y / (1 + mean_x))
        return mean_y - slope * mean_x, slope
