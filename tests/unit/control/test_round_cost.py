"""The closed form of a round against sums by hand, and what it says is cheapest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.control.conditions import PairTimes
from tandem.control.link_times import LinkTimes
from tandem.control.round_cost import (
    CutTail,
    RoundBytes,
    RoundConditions,
    RoundOptions,
    RoundSetting,
    cheapest_round,
    kept_share,
    round_cost,
)

NEAR = RoundConditions(
    pair=PairTimes(0.024, 0.072, 0.003),
    link=LinkTimes(0.030),
    bytes=RoundBytes(frame=30, node=3, verdict=40, rejection=40),
    first_rate=0.6,
    later_rate=0.8,
    further_rate=0.5,
    tails={0: CutTail(1, 0.0)},
)
CHAINS = RoundOptions(((1,) * 32,))


def chosen(options: RoundOptions, conditions: RoundConditions) -> RoundSetting:
    found = cheapest_round(options, conditions)
    assert found is not None
    return found[0]


def chain(length: int, kept: int = 0) -> RoundSetting:
    return RoundSetting((1,) * length, kept)


def test_a_chain_costs_drafts_link_and_pass_for_the_tokens_that_stand() -> None:
    seconds = 3 * 0.024 + 0.030 + 0.072 + 3 * 0.003
    tokens = 1 + 0.6 + 0.6 * 0.8 + 0.6 * 0.8 * 0.8
    assert round_cost(chain(3), NEAR) == pytest.approx(seconds / tokens)


def test_bytes_count_by_the_bandwidth_of_their_direction() -> None:
    narrow = replace(
        NEAR,
        link=LinkTimes(0.030, up_s=8e-6, down_s=8e-7),
        bytes=RoundBytes(frame=30, node=3, entry=64_000, verdict=40, rejection=128_000),
    )
    up_s = (30 + 2 * 3 + 2 * 64_000) * 8e-6
    whole = 0.6 * 0.8
    down_s = (whole * 40 + (1 - whole) * 128_000) * 8e-7
    seconds = 2 * 0.024 + 0.030 + 0.078 + up_s + down_s
    assert round_cost(chain(2), narrow) == pytest.approx(seconds / (1 + 0.6 + 0.48))


def test_a_tree_pays_for_nodes_and_gains_from_further_candidates() -> None:
    first = 1 - 0.4 * 0.5
    second = 1 - 0.2 * 0.5
    seconds = 2 * 0.024 + 0.030 + 0.072 + 6 * 0.003
    cost_s = round_cost(RoundSetting((2, 2)), NEAR)
    assert cost_s == pytest.approx(seconds / (1 + first + first * second))


def test_what_is_cut_off_costs_less_acceptance_than_its_mass() -> None:
    cut = replace(NEAR, seen_cut=0.1, tails={8: CutTail(8, 0.4), 64: CutTail(64, 0.1)})
    seconds = 0.024 + 0.030 + 0.075
    assert round_cost(chain(1, 64), cut) == pytest.approx(seconds / 1.6)
    left = (1 - 0.4 * 0.9) / (1 - 0.1 * 0.6)
    assert round_cost(chain(1, 8), cut) == pytest.approx(seconds / (1 + 0.6 * left))
    for mass in (0.0, 0.04, 0.3, 0.6, 1.0):
        assert 1 - mass <= kept_share(mass) <= 1, "the bound of the theorem"


def test_rounds_are_longer_the_farther_the_cloud_and_the_better_the_drafts() -> None:
    def best(rate: float, rtt_s: float) -> int:
        link = LinkTimes(rtt_s)
        conditions = replace(NEAR, link=link, first_rate=rate, later_rate=rate)
        return len(chosen(CHAINS, conditions).widths)

    assert best(0.3, 0.0) == 1
    assert best(0.3, 0.3) < best(0.6, 0.3) < best(0.9, 0.3)
    assert best(0.9, 0.0) < best(0.9, 0.3)


def test_a_narrow_uplink_shortens_rounds_and_keeps_fewer_entries() -> None:
    tails = {32: CutTail(32, 0.3), 320: CutTail(320, 0.1), 2560: CutTail(2560, 0.0)}
    options = RoundOptions(((1,) * 16,), sizes=(32, 320, 2560))
    sizes = RoundBytes(frame=30, node=3, entry=3, verdict=40, rejection=40)
    wide = replace(NEAR, bytes=sizes, tails=tails, link=LinkTimes(0.1, up_s=8e-8))
    narrow = replace(wide, link=LinkTimes(0.1, up_s=3e-5))
    at_wide = chosen(options, wide)
    at_narrow = chosen(options, narrow)
    assert at_wide.kept == 2560
    assert at_narrow.kept == 32
    assert len(at_narrow.widths) < len(at_wide.widths)


def test_shapes_that_may_not_end_early_stay_whole() -> None:
    hopeless = replace(NEAR, first_rate=0.01, later_rate=0.01)
    whole = RoundOptions(((1, 1, 1, 1),), ends_early=False)
    assert chosen(whole, hopeless) == chain(4)
    assert chosen(CHAINS, hopeless) == chain(1)


def test_no_round_has_more_drafts_than_the_cloud_takes() -> None:
    sure = replace(NEAR, link=LinkTimes(1.0), first_rate=0.95, later_rate=0.95, further_rate=0.9)
    trees = RoundOptions(((1,) * 8, (2, 2, 2, 1)), most_nodes=5)
    assert len(chosen(trees, sure).widths) == 5
    assert cheapest_round(replace(trees, most_nodes=0), sure) is None
