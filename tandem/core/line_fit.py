"""A line through recent points. Invariant: the slope is never below zero, nor steeper than a line
through the origin would be at the mean."""

from __future__ import annotations


class LineFit:
    """y = first + further·x, by least squares; each point weighs `keep` times as much as the one
    after it."""

    def __init__(self, keep: float) -> None:
        self.weight = 0.0
        self._keep = keep
        self._x = self._xx = self._y = self._xy = 0.0

    def add(self, x: float, y: float) -> None:
        keep = self._keep
        self.weight = keep * self.weight + 1
        self._x = keep * self._x + x
        self._xx = keep * self._xx + x * x
        self._y = keep * self._y + y
        self._xy = keep * self._xy + x * y

    @property
    def mean(self) -> float:
        """Of y; needs a point."""
        return self._y / self.weight

    def fit(self, share: float = 0.0, weight: float = 0.0) -> tuple[float, float]:
        """(first, further); needs a point. The slope is believed to be `share` of the value at 0,
        as firmly as if points had told it whose squared distances from their mean sum to
        `weight`."""
        mean_x, mean_y = self._x / self.weight, self._y / self.weight
        spread = self._xx / self.weight - mean_x**2
        slope = (self._xy / self.weight - mean_x * mean_y) / spread if spread > 0.05 else 0.0
        if weight:
            told, believed = self.weight * max(0.0, spread), share * mean_y / (1 + share * mean_x)
            slope = (told * slope + weight * believed) / (told + weight)
        slope = min(max(0.0, slope), mean_y / (1 + mean_x))
        return mean_y - slope * mean_x, slope
