"""Readings of several sources joined, and what a request's own frames show."""

import random
from dataclasses import replace
from math import isnan

import numpy as np
import pytest

from tandem.core.errors import InvalidArgument
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.placement import UNKNOWN, BothSides, SideTimes, choose_side
from tandem.two_sided.protocol.profiler import (
    DecodeFit,
    SideProfiler,
    fit_decoding,
)

FULL = BothSides(SideTimes(0.11, 0.05, 0.7), SideTimes(0.04, 0.05, 0.8))


def test_each_number_comes_from_the_fresher_source_that_has_it() -> None:
    fresh = BothSides(SideTimes(decode_s=0.2), SideTimes(acceptance=0.0, queue_s=0.5))
    assert fresh.or_else(FULL) == BothSides(
        replace(FULL.device, decode_s=0.2), replace(FULL.cloud, acceptance=0.0, queue_s=0.5)
    )
    assert BothSides().or_else(FULL) == FULL.or_else(BothSides()) == FULL
    assert BothSides().or_else(fresh).cloud.queue_s == 0.5


def test_nothing_is_decided_while_anything_is_unknown() -> None:
    assert FULL.complete
    assert not BothSides().complete
    for field in ("decode_s", "transfer_s", "acceptance"):
        for side in Side:
            known = {name: FULL[Side[name.upper()]] for name in ("device", "cloud")}
            name = side.name.lower()
            known[name] = replace(known[name], **{field: UNKNOWN})
            assert not BothSides(**known).complete


def test_the_stream_s_numbers_make_a_decision() -> None:
    profiler = SideProfiler()
    assert not profiler.sides().complete
    for position in range(20):
        profiler.decoded(Side.DEVICE, 100 + position, 0.060)
        profiler.decoded(Side.CLOUD, 300 + position, 0.050)
        profiler.exchanged(80, 60, elapsed_s=0.25, held_s=0.05)
        profiler.verified(Side.DEVICE, 1)
        profiler.verified(Side.CLOUD, position % 2)
    sides = profiler.sides()
    assert sides.complete
    assert sides.device.decode_s == pytest.approx(0.060)
    assert sides.round_trip_s == pytest.approx(0.2)
    assert sides.device.acceptance == 1
    assert sides.cloud.acceptance == pytest.approx(0.5, abs=0.07)
    assert choose_side(sides, Side.DEVICE).side is Side.CLOUD


def test_what_was_refused_just_now_moves_the_aggregation_there() -> None:
    """All else equal, and both sides' drafts accepted as often before."""
    for refused in Side:
        profiler = SideProfiler()
        for side in Side:
            profiler.decoded(side, 100, 0.06)
            for accepted in (1, 0) * 5:
                profiler.verified(side, accepted)
        profiler.exchanged(80, 60, elapsed_s=0.3)
        profiler.verified(refused, 0)
        profiler.verified(refused.other, 1)
        sides = profiler.sides()
        assert choose_side(sides, refused.other).side is refused
        assert choose_side(sides, refused).side is refused


def test_a_fit_from_rest_is_the_start_and_grows_with_the_context() -> None:
    profiler = SideProfiler({Side.CLOUD: DecodeFit(2.0, 20_000.0, 0.01)})
    assert profiler.sides().cloud.decode_s == pytest.approx(0.01, rel=0.02)
    profiler.decoded(Side.CLOUD, 100, 0.01 + 100 * 1e-4)
    assert profiler.sides().cloud.decode_s == pytest.approx(0.02)
    profiler.decoded(Side.CLOUD, 200, 0.01 + 200 * 1e-4)
    assert profiler.sides().cloud.decode_s == pytest.approx(0.03)
    assert isnan(profiler.sides().device.decode_s)


def test_the_size_of_drafts_counts_where_bandwidth_is_scarce() -> None:
    profiler = SideProfiler()
    for size in (100, 10_000) * 50:
        profiler.exchanged(size, 100, elapsed_s=0.01 + size / 1e5)
    profiler.drafted(Side.DEVICE, 20_000)
    profiler.drafted(Side.CLOUD, 100)
    sides = profiler.sides()
    assert sides.device.transfer_s == pytest.approx(0.005 + 0.2, rel=0.05)
    assert sides.cloud.transfer_s == pytest.approx(0.005, rel=0.2)


def test_averages_go_a_tenth_of_the_way() -> None:
    profiler = SideProfiler()
    profiler.decoded(Side.DEVICE, 1, 0.1)
    profiler.decoded(Side.DEVICE, 2, 0.2)
    assert profiler.sides().device.decode_s == pytest.approx(0.11)
    profiler.decoded(Side.DEVICE, 3, 0.0)
    assert profiler.sides().device.decode_s == pytest.approx(0.099)
    transfers_s = []
    for sizes in ((100, 200, 0, 109), (100,), (100, 200, 109)):
        profiler = SideProfiler()
        for number in range(200):
            bulk = 20_000 * (number % 2)
            profiler.exchanged(bulk, 100, elapsed_s=0.01 + bulk / 1e5)
        for size in sizes:
            profiler.drafted(Side.DEVICE, size)
        transfers_s.append(profiler.sides().device.transfer_s)
    assert transfers_s[0] == pytest.approx(transfers_s[1], rel=1e-6), "110, 99, and 100 again"
    assert transfers_s[0] != pytest.approx(transfers_s[2], rel=1e-6)


def test_a_refused_draft_counts_more_than_the_one_before() -> None:
    profiler = SideProfiler()
    for accepted in (1, 1, 0):
        profiler.verified(Side.CLOUD, accepted)
    assert profiler.sides().cloud.acceptance == pytest.approx((0.64 + 0.8) / (0.64 + 0.8 + 1))
    assert isnan(profiler.sides().device.acceptance)
    profiler.verified(Side.DEVICE, 0)
    assert profiler.sides().device.acceptance == 0.0


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
    updated = fit.updated(120, 0.01)
    wanted = (0.95 * 3.0 + 0.05 * (0.01 - 0.004) * 120) / (0.95 * 20_000.0 + 0.05 * 120**2)
    assert updated.slope_s == pytest.approx(wanted, rel=1e-12)
    assert updated.intercept_s == fit.intercept_s
    faster = fit.updated(120, 0.0)
    assert faster.numerator == pytest.approx(0.95 * 3.0), "never below the intercept"


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
