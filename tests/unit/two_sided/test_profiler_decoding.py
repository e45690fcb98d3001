"""The line of a decode step: least squares at rest, the slope followed at runtime."""

import random

import numpy as np
import pytest

from tandem.core.errors import InvalidArgument
from tandem.two_sided.protocol.profiler import DecodeFit, fit_decoding

LENGTHS = list(range(64, 256))


def measured(slope_s: float, intercept_s: float, noise_s: float, seed: int = 1) -> list[float]:
    source = random.Random(seed)
    return [
        max(0.0, slope_s * length + intercept_s + source.gauss(0, noise_s)) for length in LENGTHS
    ]


def test_the_fit_is_the_least_squares_line() -> None:
    steps_s = measured(2e-5, 0.004, 2e-4)
    fit = fit_decoding(LENGTHS, steps_s)
    slope, intercept = np.polyfit(LENGTHS, steps_s, 1)
    assert fit.slope_s == pytest.approx(slope, rel=1e-9)
    assert fit.intercept_s == pytest.approx(intercept, rel=1e-9)
    assert fit.at(100) == pytest.approx(2e-5 * 100 + 0.004, rel=0.05)


def test_noise_makes_no_term_negative() -> None:
    falling = fit_decoding(LENGTHS, [0.01 - 1e-5 * length for length in LENGTHS])
    assert falling.slope_s == pytest.approx(0, abs=1e-12)
    assert falling.intercept_s == pytest.approx(0.01 - 1e-5 * np.mean(LENGTHS))
    through_zero = fit_decoding(LENGTHS, [1e-5 * (length - 50) for length in LENGTHS])
    assert through_zero.intercept_s == 0
    wanted = np.dot(LENGTHS, [1e-5 * (length - 50) for length in LENGTHS]) / np.dot(
        LENGTHS, LENGTHS
    )
    assert through_zero.slope_s == pytest.approx(wanted)
    assert fit_decoding([100, 100], [0.01, 0.03]).at(100) == pytest.approx(0.02)
    assert fit_decoding([100, 100], [0.01, 0.03]).at(200) == pytest.approx(0.02)


def test_an_update_is_the_paper_s_formula() -> None:
    fit = DecodeFit(numerator=3.0, denominator=20_000.0, intercept_s=0.004)
    updated = fit.updated(120, 0.01, weight=0.1)
    wanted = (0.9 * 3.0 + 0.1 * (0.01 - 0.004) * 120) / (0.9 * 20_000.0 + 0.1 * 120**2)
    assert updated.slope_s == pytest.approx(wanted, rel=1e-12)
    assert updated.intercept_s == fit.intercept_s
    assert fit.updated(120, 0.01, weight=0) == fit
    assert fit.updated(120, 0.0, weight=1).slope_s == 0  # never below the intercept


def test_the_slope_follows_a_machine_that_became_busy() -> None:
    fit = fit_decoding(LENGTHS, measured(2e-5, 0.004, 0))
    for length in range(100, 200):
        fit = fit.updated(length, 2 * (2e-5 * length + 0.004))
    assert fit.at(200) == pytest.approx(2 * (2e-5 * 200 + 0.004), rel=0.1)


@pytest.mark.parametrize("numbers", [(-1, 1, 0), (0, 0, 0), (0, 1, float("inf"))])
def test_a_line_that_is_none_is_refused(numbers: tuple[float, float, float]) -> None:
    with pytest.raises(InvalidArgument):
        DecodeFit(*numbers)


def test_the_least_that_may_have_been_measured() -> None:
    assert fit_decoding([1, 2], [0.0, 0.0]).at(5) == 0.0
    assert DecodeFit(0.0, 1.0, 0.0).at(1000) == 0.0
