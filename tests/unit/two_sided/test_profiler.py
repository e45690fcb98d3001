"""Readings of several sources joined, and what a request's own frames show."""

from dataclasses import replace
from math import isnan

import pytest

from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.placement import UNKNOWN, BothSides, SideTimes, choose_side
from tandem.two_sided.protocol.profiler import (
    DecodeFit,
    SideProfiler,
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
