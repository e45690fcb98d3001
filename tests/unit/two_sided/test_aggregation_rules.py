"""Who decides a token, whose drafts travel for it, and which rule a preset gets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tandem.core.probs import SamplingParams
from tandem.core.randomness import SeededRandom
from tandem.core.tokens import TokenSource
from tandem.two_sided.protocol.aggregation_rules import (
    AggregationRule,
    ArgmaxRule,
    MixtureRule,
    NeedsTopList,
    OneSide,
    ReweightedCoin,
    SharedCoin,
    SingleAggregator,
    TokenRule,
    aggregation_rule_for,
)
from tandem.two_sided.protocol.draft_queues import BothDrafts, FirstDrafts, QueuedDraft
from tandem.two_sided.protocol.messages import AggregationRequest
from tandem.two_sided.protocol.mixture import Side, coupled_side, side_weights
from tandem.two_sided.protocol.presets import (
    AGGREGATION_PRESETS,
    Draw,
    Placement,
    find_aggregation_preset,
)
from tandem.two_sided.protocol.top_list import TopList, top_list

RNG = SeededRandom(3)
START, FIRST, EVERY = 2, 7, 4
NOTHING = FirstDrafts(None, None)
PROBS = np.array([0.4, 0.3, 0.2, 0.1], dtype=np.float32)


def drafted(position: int, token: int = 0, log_mass: float = 0.0, probs: Any = None) -> QueuedDraft:
    return QueuedDraft(position, 0, 0, token, probs, log_mass)


def both(position: int, device_mass: float = 0.0, cloud_mass: float = 0.0) -> FirstDrafts:
    """The device drafts 0, the cloud 1."""
    return FirstDrafts(drafted(position, 0, device_mass), drafted(position, 1, cloud_mass))


def reweighted(side: Side, first: int = FIRST) -> ReweightedCoin:
    return ReweightedCoin(
        side, side_weights(0.0, 0.0), rng=RNG, every=EVERY, start=START, first=first
    )


def test_where_weights_may_change_both_sides_send_and_wait_for_both_drafts() -> None:
    """The answer begins at 2, this stream at 7, and every fourth token has new weights: 10, 14."""
    for side in Side:
        rule = reweighted(side)
        assert [rule.sends_draft(position) for position in (7, 10, 14)] == [True] * 3
        for position in (7, 10, 14):
            one = FirstDrafts(drafted(position), None)
            assert rule.decide(position, one) is None
            assert rule.decide(position, FirstDrafts(None, one.device)) is None
            assert rule.decide(position, both(position)) is not None


def test_in_between_one_draft_is_enough_and_only_its_owner_sends_it() -> None:
    rules = {side: reweighted(side) for side in Side}
    for rule in rules.values():
        rule.decide(7, both(7))
    for position in (8, 9):
        owner = coupled_side(side_weights(0.0, 0.0), RNG, position)
        assert {side for side in Side if rules[side].sends_draft(position)} == {owner}
        for rule in rules.values():
            one = both(position)
            alone = replace(one, device=None) if owner is Side.CLOUD else replace(one, cloud=None)
            assert rule.decide(position, alone) == int(owner is Side.CLOUD)
            other = replace(one, cloud=None) if owner is Side.CLOUD else replace(one, device=None)
            assert rule.decide(position, other) is None


def test_nothing_is_sent_of_a_stretch_whose_weights_are_not_known() -> None:
    rules = [reweighted(side, first=START) for side in Side]
    for known, unknown in (((), (3, 4, 5, 7, 8, 9)), ((2,), (7, 8, 9)), ((6,), (11, 12, 13))):
        for rule in rules:
            for position in known:
                rule.decide(position, both(position))
        for position in unknown:
            assert not any(rule.sends_draft(position) for rule in rules)
    assert all(sum(rule.sends_draft(position) for rule in rules) == 1 for position in (7, 8, 9))
    late = reweighted(Side.DEVICE, first=9)
    late.decide(9, both(9))
    other = reweighted(Side.CLOUD, first=9)
    other.decide(9, both(9))
    assert not any(rule.sends_draft(position) for rule in (late, other) for position in (11, 12))


def test_a_stretch_has_the_weights_that_its_first_drafts_carry() -> None:
    for masses, owner in (((9.0, -90.0), Side.DEVICE), ((-90.0, 9.0), Side.CLOUD)):
        rule = reweighted(Side.DEVICE, first=START)
        rule.decide(2, both(2))
        for position in (6, 7, 8, 9):
            assert rule.decide(position, both(position, *masses)) == int(owner is Side.CLOUD)
            assert rule.token_source(position, 9, NOTHING) is (
                TokenSource.DEVICE if owner is Side.DEVICE else TokenSource.CLOUD
            )


def test_a_coin_s_owner_alone_sends_and_is_waited_for() -> None:
    weights = side_weights(0.0, 0.5)
    rules = {side: SharedCoin(side, weights, RNG) for side in Side}
    owners = [coupled_side(weights, RNG, position) for position in range(40)]
    assert set(owners) == set(Side)
    for position, owner in enumerate(owners):
        assert {side for side in Side if rules[side].sends_draft(position)} == {owner}
        for rule in rules.values():
            assert rule.receives_drafts()
            assert rule.decide(position, both(position)) == int(owner is Side.CLOUD)
            assert rule.decide(position, NOTHING) is None


def test_an_aggregator_decides_and_the_other_side_sends() -> None:
    for here in Side:
        rule = SingleAggregator(here, Side.CLOUD, MixtureRule(RNG))
        assert rule.sends_targets
        assert rule.here == (here is Side.CLOUD)
        assert rule.sends_draft(5) == (here is Side.DEVICE)
        pair = FirstDrafts(drafted(5, 0, 0.0, PROBS), drafted(5, 0, 0.0, PROBS))
        assert (rule.decide(5, pair) is None) == (here is Side.DEVICE)
        assert rule.decide(5, replace(pair, device=None)) is None
        assert rule.decide(5, replace(pair, cloud=None)) is None


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("owner", list(Side))
@pytest.mark.parametrize("side", list(Side))
def test_one_side_s_drafts_travel_as_they_come_or_whole(
    side: Side, owner: Side, whole: bool
) -> None:
    rule = OneSide(side, owner, whole)
    speaks = side is Side.CLOUD and owner is Side.CLOUD
    assert rule.sends_draft(5) == (speaks and not whole)
    assert (rule.whole_answer, rule.sends_targets) == (speaks and whole, speaks and whole)
    assert rule.receives_drafts() == (side is not owner)
    assert rule.decide(5, both(5)) == int(owner is Side.CLOUD)
    assert rule.decide(5, NOTHING) is None
    assert rule.token_source(5, 9, NOTHING).value == owner.name.lower()


def test_a_draft_that_is_the_token_has_no_distribution() -> None:
    rule = TokenRule()
    assert rule.payload(drafted(5, probs=PROBS), 3) is None
    assert rule.accepts(None)
    assert not rule.accepts(PROBS)
    mixed = MixtureRule(RNG)
    assert mixed.payload(drafted(5, probs=PROBS), 2) is PROBS
    assert (mixed.accepts(PROBS), mixed.accepts(None)) == (True, False)
    argmax = ArgmaxRule()
    listed = argmax.payload(drafted(5, probs=PROBS), 2)
    assert isinstance(listed, TopList)
    assert listed.ids.tolist() == [0, 1]
    assert [argmax.accepts(probs) for probs in (listed, PROBS, None)] == [True, False, False]


def test_a_top_list_that_proves_nothing_is_asked_for_eight_times_as_long() -> None:
    flat = np.full(4, 0.25, dtype=np.float32)
    rule = ArgmaxRule()
    for at in Side:
        for count in (1, 2):
            theirs = drafted(5, probs=top_list(flat[::-1].copy(), count))
            pair = (drafted(5, probs=PROBS[::-1].copy()), theirs)
            device, cloud = pair if at is Side.DEVICE else pair[::-1]
            assert rule.token(BothDrafts(device, cloud), at, 5) == NeedsTopList(8 * count)
            certain = drafted(5, probs=top_list(np.array([0, 0, 0, 1], dtype=np.float32), count))
            device, cloud = (pair[0], certain) if at is Side.DEVICE else (certain, pair[0])
            assert rule.token(BothDrafts(device, cloud), at, 5) == 3


def rule_for(
    name: str,
    side: Side = Side.DEVICE,
    device: float | None = 0.0,
    cloud: float | None = 0.0,
    aggregation_side: Side | None = None,
    temperature: float = 1.0,
    **changes: Any,
) -> AggregationRule | None:
    preset = replace(AGGREGATION_PRESETS[name], **changes)
    sampling = SamplingParams(temperature=temperature)
    request = AggregationRequest(1, (1, 2), "h", 4, sampling, 3, 4, preset)
    return aggregation_rule_for(
        request,
        side,
        aggregation_side=aggregation_side,
        log_masses={Side.DEVICE: device, Side.CLOUD: cloud},
        rng=RNG,
        first=FIRST,
    )


@pytest.mark.parametrize("name", ["crcg-device", "drcg-text", "drcg-kv"])
def test_one_side_s_documents_are_answered_there(name: str) -> None:
    rule = rule_for(name, device=None, cloud=None)
    assert isinstance(rule, OneSide)
    assert rule.decide(5, both(5)) == 0
    away = rule_for("crcg-cloud", device=None, cloud=None)
    assert isinstance(away, OneSide)
    assert away.decide(5, both(5)) == 1
    assert away.receives_drafts(), "they come one by one"
    there = rule_for("crcg-cloud", Side.CLOUD, device=None, cloud=None)
    assert there is not None
    assert there.sends_draft(5)
    assert not there.sends_targets


@pytest.mark.parametrize("name", ["dragon", "dragon-coupled", "drdg-sw"])
@pytest.mark.parametrize(
    ("device", "cloud", "owner"),
    [
        (-np.inf, 0.0, Side.CLOUD),
        (0.0, -np.inf, Side.DEVICE),
        (-np.inf, -np.inf, Side.CLOUD),
        (-np.inf, None, Side.CLOUD),
        (None, -np.inf, Side.DEVICE),
    ],
)
def test_a_side_without_documents_leaves_the_answer_to_the_other(
    name: str, device: float | None, cloud: float | None, owner: Side
) -> None:
    rule = rule_for(name, device=device, cloud=cloud)
    assert isinstance(rule, OneSide)
    assert rule.decide(5, both(5)) == int(owner is Side.CLOUD)
    assert not rule.whole_answer


def test_a_very_relevant_document_is_one() -> None:
    assert rule_for("dragon-coupled", device=np.inf, cloud=None) is None
    assert isinstance(rule_for("dragon", device=None, cloud=None), SingleAggregator)


def test_aggregating_begins_where_the_preset_says_and_goes_on_where_it_is() -> None:
    for placement, side in ((Placement.DEVICE, Side.DEVICE), (Placement.CLOUD, Side.CLOUD)):
        rule = rule_for("dragon", placement=placement)
        assert isinstance(rule, SingleAggregator)
        assert rule.aggregation_side is side
        moved = rule_for("dragon", placement=placement, aggregation_side=side.other)
        assert isinstance(moved, SingleAggregator)
        assert moved.aggregation_side is side.other
    for temperature, token_rule in ((1.0, MixtureRule), (0.0, ArgmaxRule)):
        found = rule_for("dragon", temperature=temperature)
        assert found is not None
        assert isinstance(found.token_rule, token_rule)


@pytest.mark.parametrize("name", ["dragon-coupled", "drdg-sw"])
def test_a_coin_waits_for_both_sides_documents(name: str) -> None:
    assert rule_for(name, device=None) is None
    assert rule_for(name, cloud=None) is None
    assert rule_for(name) is not None


def test_one_coin_for_the_answer_falls_where_it_begins() -> None:
    """With all the relevance on one side it falls there."""
    for device, cloud, owner in ((0.0, -90.0, Side.DEVICE), (-90.0, 0.0, Side.CLOUD)):
        for side in Side:
            rule = rule_for("drdg-sw", side, device, cloud)
            assert isinstance(rule, OneSide)
            assert rule.decide(FIRST, both(FIRST)) == int(owner is Side.CLOUD)
            assert rule.whole_answer == (owner is Side.CLOUD is side)
            assert not rule.sends_draft(FIRST)
    for mass in np.linspace(-1, 1, 21):
        rule = rule_for("drdg-sw", device=mass)
        assert rule is not None
        expected = coupled_side(side_weights(mass, 0.0), RNG, START)
        assert rule.decide(FIRST, both(FIRST)) == int(expected is Side.CLOUD)


def test_coins_have_the_weights_of_both_sides_and_change_them_where_asked() -> None:
    for every in (0, EVERY):
        for device, cloud, token in ((0.0, -90.0, 0), (-90.0, 0.0, 1)):
            rule = rule_for("dragon-coupled", device=device, cloud=cloud, reweigh_every=every)
            assert isinstance(rule, ReweightedCoin if every else SharedCoin)
            assert isinstance(rule, ReweightedCoin) == bool(every)
            assert rule.decide(FIRST, both(FIRST, device, cloud)) == token
            assert rule.decide(FIRST + 1, both(FIRST + 1)) == token
            assert rule.decide(FIRST, NOTHING) is None
    reweighing = rule_for("dragon-coupled", reweigh_every=EVERY)
    assert reweighing is not None
    assert [reweighing.sends_draft(position) for position in (FIRST, START + 2 * EVERY)] == [
        True,
        True,
    ]


def test_at_temperature_0_without_an_aggregator_each_side_decides() -> None:
    rule = rule_for("dragon-coupled", temperature=0.0, reweigh_every=EVERY)
    assert type(rule) is AggregationRule
    assert isinstance(rule.token_rule, ArgmaxRule)
    assert rule.sends_draft(5)
    assert rule.receives_drafts()
    assert not rule.sends_targets
    assert not rule.whole_answer
    assert rule.decide(5, replace(both(5), device=None)) is None


def test_one_preset_draws_both_drafts_by_one_noise() -> None:
    draws = {name: preset.probs.draw for name, preset in AGGREGATION_PRESETS.items()}
    assert draws["dragon"] is not draws["dragon-gumbel"] is Draw.GUMBEL


def test_sides_that_wait_for_every_token_draft_none_ahead() -> None:
    ahead = {name: preset.ahead for name, preset in AGGREGATION_PRESETS.items()}
    assert (ahead.pop("drdg-tw"), {*ahead.values()}) == (1, {8})
    assert {preset.top for preset in AGGREGATION_PRESETS.values()} == {16}


def test_lossy_presets_and_those_of_two_sides() -> None:
    assert {name for name, preset in AGGREGATION_PRESETS.items() if preset.lossy} == {
        "dragon-lossy",
        "drdg-sw",
    }
    alone = {name for name, preset in AGGREGATION_PRESETS.items() if not preset.two_sided}
    assert alone == {"crcg-device", "crcg-cloud", "drcg-text", "drcg-kv"}
    assert find_aggregation_preset("dragon").with_draft_length(3).ahead == 3
