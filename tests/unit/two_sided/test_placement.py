"""Who aggregates next."""

import pytest

from tandem.core.randomness import SeededRandom
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.placement import (
    BothSides,
    SideChoice,
    SideTimes,
    first_side,
    placement_policy_for,
)
from tandem.two_sided.protocol.presets import Placement

RNG = SeededRandom(3)


@pytest.mark.parametrize(
    ("placement", "side"), [(Placement.DEVICE, Side.DEVICE), (Placement.CLOUD, Side.CLOUD)]
)
def test_a_fixed_side_is_first_and_stays(placement: Placement, side: Side) -> None:
    placement_policy = placement_policy_for(placement, RNG)
    assert first_side(placement) is side
    assert {placement_policy.next_side(position, at) for position in range(9) for at in Side} == {
        side
    }


def test_chance_takes_both_sides_by_position_alone() -> None:
    placement_policy = placement_policy_for(Placement.RANDOM, RNG)
    sides = [placement_policy.next_side(position, Side.DEVICE) for position in range(400)]
    assert sides == [placement_policy.next_side(position, Side.CLOUD) for position in range(400)]
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
            assert placement_policy.next_side(1, at) is expected
    assert [choice.moves for choice in told] == [True, False, False, True]


def test_what_saves_next_to_nothing_is_not_worth_a_move() -> None:
    placement_policy = placement_policy_for(
        Placement.SCHEDULED, RNG, measured=lambda: sides(0.501, 0.5)
    )
    assert [placement_policy.next_side(1, at) for at in Side] == list(Side)


def test_while_nothing_is_measured_it_stays_and_says_so() -> None:
    said: list[bool] = []
    placement_policy = placement_policy_for(
        Placement.SCHEDULED, RNG, measured=lambda: None, unmeasured=lambda: said.append(True)
    )
    assert [placement_policy.next_side(1, at) for at in Side] == list(Side)
    assert len(said) == 2
