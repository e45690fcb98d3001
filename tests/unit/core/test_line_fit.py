"""Lines through recent points, by figures worked by hand."""

from __future__ import annotations

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


def test_of_one_place_only_the_height_is_known() -> None:
    assert fitted((3, 5), (3, 7)).fit() == (6, 0)


def test_the_slope_is_neither_negative_nor_steeper_than_from_the_origin() -> None:
    assert fitted((0, 8), (4, 4)).fit() == pytest.approx((6, 0))
    # Least squares says 3 a step; the mean is (2, 5), so at most 5 / 3.
    assert fitted((0, 0), (4, 10)).fit() == pytest.approx((5 / 3, 5 / 3))


def test_groups_of_different_height_share_the_slope() -> None:
    """One of them has points in one place, which tell nothing but its height."""
    line = fitted((0, 6), (1, 8), (4, 14))
    line.regroup()
    line.add(2, 30)
    assert line.fit() == pytest.approx((26, 2))
    line.add(4, 34)
    assert line.fit() == pytest.approx((26, 2))


def test_later_points_count_for_more() -> None:
    """Weights 1/4, 1/2 and 1: x sums to 4.5, y to 19, squares to 13, products to 49."""
    line = fitted((2, 10), (4, 11), (2, 11), keep=0.5)
    assert line.weight == 1.75
    assert line.fit() == pytest.approx((10.6, 0.1))
