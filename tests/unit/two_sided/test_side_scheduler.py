"""The choice of the aggregating side against DRAGON's own formulas."""

import random

import pytest

from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.placement import (
    BothSides,
    SideTimes,
    choose_side,
)


def sides(
    device_s: float, cloud_s: float, rtt_s: float, device_rate: float, cloud_rate: float
) -> BothSides:
    return BothSides(
        SideTimes(device_s, 0.3 * rtt_s, device_rate), SideTimes(cloud_s, 0.7 * rtt_s, cloud_rate)
    )


def random_sides(source: random.Random) -> BothSides:
    device_s, cloud_s, rtt_s = (source.uniform(0.01, 0.2) for _ in range(3))
    return sides(device_s, cloud_s, rtt_s, source.random(), source.random())


def piecewise_gain_s(both: BothSides, aggregating: Side) -> float:
    """ΔZ by cases, with DRAGON's misprints corrected; l aggregates."""
    here, there = both[aggregating], both[aggregating.other]
    rtt_s, lead_s = both.round_trip_s, there.decode_s - here.decode_s
    own, other = here.acceptance, there.acceptance
    if here.decode_s <= there.decode_s - rtt_s:
        return (1 - other) * rtt_s
    if here.decode_s <= there.decode_s:
        return (1 - own) * lead_s + (own - other) * rtt_s
    if here.decode_s <= there.decode_s + rtt_s:
        return (1 - other) * lead_s + (own - other) * rtt_s
    return (own - 1) * rtt_s


def test_the_difference_is_the_paper_s_by_cases() -> None:
    source = random.Random(1)
    for _ in range(500):
        both = random_sides(source)
        for side in Side:
            choice = choose_side(both, side)
            assert choice.gain_s == pytest.approx(piecewise_gain_s(both, side), abs=1e-12)
            assert choice.moves == (choice.gain_s > 0)
            assert choice.side == (side.other if choice.moves else side)
