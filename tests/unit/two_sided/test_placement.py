"""Who aggregates next."""

from __future__ import annotations

import random

import pytest

from tandem.core.randomness import SeededRandom
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.placement import (
    BothSides,
    SideChoice,
    SideTimes,
    choose_side,
    first_side,
    placement_policy_for,
    token_time_s,
)
from tandem.two_sided.protocol.presets import Placement

RNG = SeededRandom(3)


@pytest.mark.parametrize(
    ("placement", "side"), [(Placement.DEVICE, Side.DEVICE), (Placement.CLOUD, Side.CLOUD)]
)
def test_a_fixed_side_is_first_and_stays(placement: Placement, side: Side) -> None:
    placement_policy = placement_policy_for(placement, RNG)
    assert first_side(placement) is side
    assert {placement_policy(position, at) for position in range(9) for at in Side} == {side}


def test_chance_takes_both_sides_by_position_alone() -> None:
    placement_policy = placement_policy_for(Placement.RANDOM, RNG)
    sides = [placement_policy(position, Side.DEVICE) for position in range(400)]
    assert sides == [placement_policy(position, Side.CLOUD) for position in range(400)]
    assert 160 < sides.count(Side.CLOUD) < 240


def sides(device_acceptance: float, cloud_acceptance: float) -> BothSides:
    return BothSides(
        SideTimes(0.05, 0.1, device_acceptance), SideTimes(0.05, 0.1, cloud_acceptance)
    )


def test_by_delay_it_goes_where_the_other_side_is_accepted_more() -> None:
    told: list[SideChoice] = []
    for known, expected in ((sides(0.9, 0.2), Side.CLOUD), (sides(0.2, 0.9), Side.DEVICE)):
        placement_policy = placement_policy_for(
            Placement.SCHEDULED,
            RNG,
            measured=lambda known=known: known,  # type: ignore[misc]
            decided=lambda choice, _: told.append(choice),
        )
        for at in Side:
            assert placement_policy(1, at) is expected
    assert [choice.moves for choice in told] == [True, False, False, True]


def test_while_nothing_is_measured_it_stays_and_says_so() -> None:
    said: list[bool] = []
    placement_policy = placement_policy_for(
        Placement.SCHEDULED, RNG, unmeasured=lambda: said.append(True)
    )
    assert [placement_policy(1, at) for at in Side] == list(Side)
    assert len(said) == 2


@pytest.mark.parametrize("acceptance", [0.0, 1.0])
def test_a_link_that_takes_no_time_and_rates_of_all_or_nothing_are_measurements(
    acceptance: float,
) -> None:
    times = SideTimes(0.0, 0.0, acceptance, 0.0)
    assert choose_side(BothSides(times, times), Side.CLOUD) == SideChoice(Side.CLOUD, 0.0, False)


def test_the_time_of_a_token_is_the_slower_draft_s_and_a_round_trip_where_one_is_refused() -> None:
    """Equation 7, by hand: the device has its draft after 50 ms, the cloud after 10 + 20; the way
    there and back takes 100 + 40."""
    both = BothSides(SideTimes(0.05, 0.1, 0.25), SideTimes(0.02, 0.04, 0.75, queue_s=0.01))
    at_device = 0.75 * 0.05 + 0.25 * (0.03 + 0.14)
    at_cloud = 0.25 * 0.05 + 0.75 * (0.05 + 0.14)
    assert token_time_s(both, Side.DEVICE) == pytest.approx(at_device)
    assert token_time_s(both, Side.CLOUD) == pytest.approx(at_cloud)
    choice = choose_side(both, Side.CLOUD)
    assert (choice.side, choice.moves) == (Side.DEVICE, True)
    assert choice.gain_s == pytest.approx(at_cloud - at_device)
    stays = choose_side(both, Side.DEVICE)
    assert (stays.side, stays.moves) == (Side.DEVICE, False)
    assert stays.gain_s == pytest.approx(at_device - at_cloud)


def test_a_move_must_save_more_than_the_hysteresis() -> None:
    both = BothSides(SideTimes(0.25, 0.0, 0.5), SideTimes(0.25, 0.5, 1.0))
    saved_s = 0.25  # a refused draft of the device, every second time, costs 500 ms
    for hysteresis_s, moves in ((0.0, True), (0.24, True), (saved_s, False)):
        assert choose_side(both, Side.CLOUD, hysteresis_s).moves is moves


@pytest.mark.parametrize(("saved_s", "moves"), [(0.0015, False), (0.0025, True)])
def test_two_milliseconds_a_token_are_worth_a_move(saved_s: float, moves: bool) -> None:
    both = BothSides(SideTimes(0.01, 0.0, 0.0), SideTimes(0.01, saved_s, 1.0))
    placement_policy = placement_policy_for(Placement.SCHEDULED, RNG, measured=lambda: both)
    expected = Side.DEVICE if moves else Side.CLOUD
    assert placement_policy(1, Side.CLOUD) is expected


def at_rates(
    device_s: float, cloud_s: float, rtt_s: float, device_rate: float, cloud_rate: float
) -> BothSides:
    return BothSides(
        SideTimes(device_s, 0.3 * rtt_s, device_rate), SideTimes(cloud_s, 0.7 * rtt_s, cloud_rate)
    )


def random_sides(source: random.Random) -> BothSides:
    device_s, cloud_s, rtt_s = (source.uniform(0.01, 0.2) for _ in range(3))
    return at_rates(device_s, cloud_s, rtt_s, source.random(), source.random())


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
