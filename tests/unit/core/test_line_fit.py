"""Lines through recent points, by figures worked by hand."""

from __future__ import annotations

import sys
from math import inf
from types import FrameType
from typing import Any

import pytest

from tandem.core.line_fit import LineFit


def fitted(*points: tuple[float, float], keep: float = 1.0) -> LineFit:
    line = LineFit(keep)
    for point in points:
        line.add(*point)
    return line


def test_points_on_a_line_give_it() -> None:
    """y = 6 + 2x: below what a line through the origin, shifted by one, would have."""
    line = fitted((0, 6), (1, 8), (4, 14))
    assert line.fit() == pytest.approx((6, 2))
    assert line.mean == pytest.approx(28 / 3)


def test_who_asks_on_another_thread_sees_a_point_wholly_or_not_at_all() -> None:
    """Asked between any two lines of `add`."""
    line = fitted((0, 6), (1, 8), (40, 14), keep=0.5)
    seen: set[tuple[float, float, float]] = set()

    def look(frame: FrameType, event: str, arg: object) -> Any:
        seen.add((line.weight, *line.fit()))
        return look

    before = (line.weight, *line.fit())
    tracing = sys.gettrace()
    sys.settrace(look)
    try:
        line.add(9, 100)
    finally:
        sys.settrace(tracing)
    assert before in seen
    assert seen <= {before, (line.weight, *line.fit())}


def test_the_slope_is_neither_negative_nor_steeper_than_from_the_origin() -> None:
    assert fitted((0, 8), (4, 4)).fit() == pytest.approx((6, 0))
    # Least squares says 3 a step; the mean is (2, 5), so at most 5 / 3.
    assert fitted((0, 0), (4, 10)).fit() == pytest.approx((5 / 3, 5 / 3))


def test_later_points_count_for_more() -> None:
    """Weights 1/4, 1/2 and 1: x sums to 4.5, y to 19, squares to 13, products to 49."""
    line = fitted((2, 10), (4, 11), (2, 11), keep=0.5)
    assert line.weight == 1.75
    assert line.fit() == pytest.approx((10.6, 0.1))


def test_what_is_believed_of_the_slope_counts_as_so_many_points() -> None:
    """Points (0, 6) and (2, 10) lie on 6 + 2x, and are 1 from their mean: squares of 2 in all. The
    belief is a slope of a fifth of the height, which through (1, 8) is 8 / 6."""
    line = fitted((0, 6), (2, 10))
    assert line.fit() == pytest.approx((6, 2))
    believed = 0.2 * 8 / 1.2
    assert line.fit(0.2, inf) == pytest.approx((8 - believed, believed))
    half = (2 + believed) / 2
    assert line.fit(0.2, 2.0) == pytest.approx((8 - half, half))
    third = 2 + (believed - 2) / 3
    assert line.fit(0.2, 1.0) == pytest.approx((8 - third, third))
    assert fitted((1, 8), (1, 8)).fit(0.2, 1.0) == pytest.approx((8 - believed, believed))
