"""Whether a figure that was sampled for a while is flat, or grows.

The first half of the samples is warm-up: caches fill, pools open. In the second half, samples are
averaged in blocks (neighbours are not independent; blocks nearly are), and a line is fitted to the
blocks by least squares. A figure grows if the line's slope is, with 97.5 % confidence, above 1 % an
hour of the figure's mean, and if the line rises over the half by more than LEAST_GROWTH: a page
table, a thread of a pool or one more status is no leak.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from statistics import fmean

BLOCKS = 12
SLOPE_LIMIT_PER_H = 0.01
STUDENT_T = 2.228
"""97.5 % quantile with BLOCKS - 2 degrees of freedom."""
LEAST_GROWTH = {
    "rss_bytes": 2.0 * 2**20,
    "descriptors": 2.0,
    "threads": 2.0,
    "label_values": 8.0,
}
"""A status that occurs late brings a value or two; a label that strangers choose, or one of
sessions, would bring one with each of hundreds of requests."""


@dataclass(frozen=True, slots=True)
class Trend:
    """Mean of the second half; slope and half the width of its interval, per hour, as shares of
    the mean; the fitted growth over the half."""

    mean: float
    slope_per_h: float
    margin_per_h: float
    growth: float
    grows: bool


def trend_of(figure: str, times_s: Sequence[float], values: Sequence[float]) -> Trend:
    """Return the trend of a figure. Raises ValueError for fewer than 2 · BLOCKS samples."""
    first = len(values) // 2
    times = times_s[first:]
    later = values[first:]
    if len(later) < BLOCKS:
        raise ValueError(f"{figure}: {len(values)} samples; at least {2 * BLOCKS} are needed")
    x, y = _block_means(times), _block_means(later)
    mean_x, mean_y = fmean(x), fmean(y)
    spread = sum((value - mean_x) ** 2 for value in x)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
    left = sum((b - mean_y - slope * (a - mean_x)) ** 2 for a, b in zip(x, y, strict=True))
    margin = STUDENT_T * sqrt(left / (BLOCKS - 2) / spread)
    scale = 3600.0 / mean_y if mean_y else 0.0
    growth = slope * (times[-1] - times[0])
    certain = (slope - margin) * scale > SLOPE_LIMIT_PER_H
    grows = certain and growth > LEAST_GROWTH.get(figure, 0.0)
    return Trend(mean_y, slope * scale, margin * scale, growth, grows)


def _block_means(values: Sequence[float]) -> list[float]:
    edges = [round(len(values) * number / BLOCKS) for number in range(BLOCKS + 1)]
    return [fmean(values[start:end]) for start, end in pairwise(edges)]
