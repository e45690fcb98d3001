"""More than two sides, piece by piece: shares and coin, the rule at the device, what the device's
machine tells each other side, and when it takes them for lost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tandem.core.errors import InvalidArgument, ProtocolError
from tandem.core.probs import SamplingParams
from tandem.core.processors import Processors
from tandem.core.randomness import Purpose, SeededRandom
from tandem.core.tokens import TokenSource
from tandem.specdec.events import Reconnect
from tandem.specdec.liveness import Liveness, LivenessTimes, LostCloud, Phase
from tandem.specdec.messages import Cancel, GoingAway, Ping
from tandem.two_sided.protocol.aggregation_rules import (
    ArgmaxRule,
    DeviceCoin,
    DeviceDecides,
    aggregation_rule_for,
)
from tandem.two_sided.protocol.counters import AggregationCounters
from tandem.two_sided.protocol.decoder_messages import DecodingDraft
from tandem.two_sided.protocol.draft_queues import FirstDrafts, QueuedDraft
from tandem.two_sided.protocol.messages import (
    CollaborationOpen,
    CollaborationOpened,
    Fetch,
    SideDraftFrame,
    SideOutput,
    TargetFrame,
    ToPeer,
)
from tandem.two_sided.protocol.mixture import (
    Side,
    coupled_number,
    coupled_side,
    mixture_of,
    shares_of,
    side_weights,
)
from tandem.two_sided.protocol.presets import AGGREGATION_PRESETS, AggregationMode
from tandem.two_sided.protocol.side_machine import JointLiveness, SideMachine
from tandem.two_sided.protocol.top_list import certified_argmax, top_list
from tests.exact import fractions, outcome_probs
from tests.unit.two_sided.test_side_machine import PROMPT, head, request_for

RNG = SeededRandom(3)
COUPLED = AGGREGATION_PRESETS["dragon-coupled"]
TIMES = LivenessTimes(ping_after_s=0.2, dead_after_s=0.6, give_up_after_s=1.0)


@pytest.mark.parametrize("weights", [(1, 2, 3), (0, 1, 1), (2, 0, 1, 4), (1, 1, 0), (3, 5)])
def test_each_side_makes_a_token_as_often_as_it_counts(weights: tuple[int, ...]) -> None:
    shares = [Fraction(weight, sum(weights)) for weight in weights]
    found = outcome_probs(lambda rng: coupled_number(shares, rng, 5))
    assert found == {number: share for number, share in enumerate(shares) if share}


def test_of_two_sides_the_coin_is_as_ever() -> None:
    weights = side_weights(0.3, 0.0)
    assert shares_of((0.3, 0.0)) == weights
    for position in range(64):
        asked = weights.device, weights.device + weights.cloud, position, Purpose.COIN
        side = Side.DEVICE if RNG.bernoulli(*asked) else Side.CLOUD
        assert coupled_number(weights, RNG, position) == side
        assert coupled_side(weights, RNG, position) is side


def test_shares_follow_from_all_h() -> None:
    assert np.allclose(shares_of((0.0, math.log(2), math.log(5))), (1 / 8, 2 / 8, 5 / 8))
    assert shares_of((1000.0, -math.inf, 1000.0)) == (0.5, 0.0, 0.5)
    assert shares_of((-math.inf,) * 3) == (0.0, 1.0, 0.0), "the cloud's model is no smaller"
    with pytest.raises(InvalidArgument, match="relevances"):
        shares_of((0.0, math.nan, 0.0))
    with pytest.raises(InvalidArgument, match="log_mass"):
        shares_of((-math.inf, -math.inf))


def test_the_mixture_of_any_number_of_sides() -> None:
    rows = [fractions(row) for row in ([1, 0, 1], [0, 1, 3], [1, 1, 0])]
    shares = [Fraction(1, 2), Fraction(1, 4), Fraction(1, 4)]
    assert mixture_of(rows, shares).tolist() == [
        *(Fraction(3, 8), Fraction(3, 16), Fraction(7, 16))
    ]
    with pytest.raises(InvalidArgument, match="probs"):
        mixture_of([np.ones(3), np.ones(3), np.ones(2)], shares)


def test_what_lists_of_three_sides_certify_is_the_argmax() -> None:
    certified = 0
    for seed in range(60):
        source = np.random.default_rng(seed)
        probs = list(source.dirichlet(np.full(12, 0.3), 3).astype(np.float32))
        shares = tuple(source.dirichlet((1, 1, 1)).tolist())
        brute = int(mixture_of(probs, shares).argmax())
        for count in (1, 3, 6):
            found = certified_argmax([top_list(each, count) for each in probs], shares)
            assert found in (None, brute), (seed, count)
            certified += found is not None
        assert certified_argmax([top_list(each, 12) for each in probs], shares) == brute
    assert certified > 60, "short lists should often be enough"


def at(position: int, *tokens: int | None, masses: Sequence[float] = (0.0,) * 9) -> FirstDrafts:
    drafts = [
        None if token is None else QueuedDraft(position, 0, 0, token, None, mass)
        for token, mass in zip(tokens, masses, strict=False)
    ]
    return FirstDrafts(drafts[0], drafts[1], tuple(drafts[2:]))


def coin(masses: Sequence[float | None], side: Side = Side.DEVICE, every: int = 0) -> DeviceCoin:
    return DeviceCoin(side, masses, RNG, every, start=2, first=7)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_draft_that_the_coin_names_is_the_token(number: int) -> None:
    masses = [-90.0] * 3
    masses[number] = 0.0
    rule = coin(masses)
    assert rule.decide(5, at(5, 10, 11, 12)) == 10 + number
    same = at(5, 10, 10, 10)
    assert rule.token_sides(10, same) == (number,), "whoever else drafted it"
    source = (TokenSource.DEVICE, TokenSource.CLOUD, TokenSource.SIDE)[number]
    assert rule.token_source(5, 10, same) is source
    alone: list[int | None] = [None] * 3
    alone[number] = 4
    assert rule.decide(6, at(6, *alone)) == 4
    rest: list[int | None] = [9] * 3
    rest[number] = None
    assert rule.decide(6, at(6, *rest)) is None


def test_the_device_alone_throws_it_once_it_knows_every_h() -> None:
    assert coin((0.0, None, 0.0)).decide(5, at(5, 1, 1, 1)) is None
    assert coin((0.0, 0.0), Side.CLOUD).decide(5, at(5, 1, 1)) is None
    coin((-math.inf, -math.inf), Side.CLOUD)  # another side may have documents
    for side in Side:
        rule = coin((0.0, 0.0, 0.0), side)
        assert rule.sends_targets
        assert not rule.tells_sources
        assert rule.here == (side is Side.DEVICE)
        assert rule.sends_draft(5) == (side is Side.CLOUD)
        assert rule.receives_drafts()


def test_where_weights_change_all_drafts_are_waited_for() -> None:
    """The answer begins at 2, this stream at 7, and every fourth token has new weights: 10, 14."""
    for position in (7, 10, 14):
        rule = coin((0.0, 0.0, 0.0), every=4)
        for missing in ((None, 1, 1), (1, None, 1), (1, 1, None)):
            assert rule.decide(position, at(position, *missing)) is None
        masses = (-90.0, -90.0, 9.0)
        assert rule.decide(position, at(position, 1, 2, 3, masses=masses)) == 3
        assert rule.decide(position + 1, at(position + 1, None, None, 3)) == 3
        assert rule.decide(position + 2, at(position + 2, 1, 2, None)) is None


def rule_for(temperature: float = 1.0, **changes: Any) -> Any:
    request = request_for("dragon-coupled", preset=COUPLED.of_sides(3))
    request = replace(request, sampling=SamplingParams(temperature), **changes)
    return aggregation_rule_for(request, Side.DEVICE, None, (0.0, 0.0, 0.0), RNG, 2)


def test_which_rule_more_sides_get() -> None:
    assert isinstance(rule_for(), DeviceCoin)
    cold = rule_for(0.0)
    assert isinstance(cold, DeviceDecides)
    assert isinstance(cold.token_rule, ArgmaxRule)
    assert cold.here
    for drafts, numbers, source in (
        (at(5, 1, 1, 2), (0, 1), TokenSource.BOTH),
        (at(5, 2, 2, 1), (2,), TokenSource.SIDE),
        (at(5, 2, 1, None), (1,), TokenSource.CLOUD),
        (at(5, 2, 2, 2), (), TokenSource.RECOVERED),
    ):
        assert cold.token_sides(1, drafts) == numbers
        assert cold.token_source(5, 1, drafts) is source
    processed = rule_for(processors=Processors(banned_token_ids=(3,)))
    assert processed.decide(9, at(9, 1, 1, None)) is None, "every token has weights of its own"
    reweighed = rule_for(preset=replace(COUPLED.of_sides(3), reweigh_every=4))
    assert reweighed.decide(6, at(6, 1, 1, None)) is None
    assert reweighed.decide(2, at(2, 1, 1, 1)) == 1
    wide = (at(position, 1, 1, 1) for position in (3, 4, 5))
    assert [reweighed.decide(3 + place, each) for place, each in enumerate(wide)] == [1, 1, 1]


def test_a_coin_may_have_more_faces_and_other_methods_stay_of_two_sides() -> None:
    many = COUPLED.of_sides(3)
    assert (many.mode, many.many_sided) == (AggregationMode.DEVICE_COIN, True)
    assert replace(many, mode=COUPLED.mode) == COUPLED
    assert not many.lossy
    assert COUPLED.of_sides(2) is COUPLED
    for name, preset in AGGREGATION_PRESETS.items():
        assert not preset.many_sided
        assert (preset.of_sides(5) is preset) == (name != "dragon-coupled"), name


def lives(count: int = 2, policy: LostCloud = LostCloud.FAIL) -> list[Liveness]:
    return [Liveness(policy, TIMES, 0.0) for _ in range(count)]


def test_every_side_is_pinged_and_the_most_silent_one_is_the_loss() -> None:
    peers = JointLiveness(lives(3))
    peers.connected(0.0)
    peers.received(1, 0.1)
    assert peers.pings_due(0.25) == [(0, 1), (2, 1)]
    assert peers.pings_due(0.31) == [(1, 1)]
    peers.received(0, 0.5)
    peers.received(1, 0.5)
    assert not peers.is_dead(0.59)
    assert peers.is_dead(0.6)
    assert peers.lost(0.7, 0.0) == 0.7
    assert not peers.is_given_up(0.99)
    assert peers.is_given_up(1.0)
    assert peers.is_dead(1.0)
    assert not peers.goes_on_alone
    assert JointLiveness(lives(2, LostCloud.EDGE)).goes_on_alone
    peers.tick(5.0)
    assert not peers.is_given_up(5.0), "this process did not get to run"


def test_nobody_is_missed_where_nobody_is_waited_for() -> None:
    peers = JointLiveness([])
    peers.connected(0.0)
    peers.received(0, 0.0)
    peers.tick(9.0)
    assert (peers.is_dead(9.0), peers.is_given_up(9.0), peers.pings_due(9.0)) == (False, False, [])
    assert peers.lost(9.0, 1.0) == 0.0


def test_counts_are_by_number() -> None:
    counters = AggregationCounters(None, 4)
    counters.verified(3, True)
    counters.verified(3, False)
    counters.decoded(2, 5, 0.5)
    for numbers in ((), (3,), (0, 3)):
        counters.made(numbers)
    stats = counters.stats
    assert stats.drafted == {0: 0, 1: 0, 2: 0, 3: 2}
    assert stats.accepted == {0: 0, 1: 0, 2: 0, 3: 1}
    assert stats.decode_s == {0: 0.0, 1: 0.0, 2: 0.5, 3: 0.0}
    assert stats.made == {3: 1}


def opened(link: int, limit: int = 4, log_mass: float = 0.0) -> CollaborationOpened:
    return CollaborationOpened(1, 0, 2, head(()), log_mass=log_mass, max_tokens=limit)


def device(count: int = 3, **changes: Any) -> SideMachine:
    """A device before the other sides have opened."""
    request = request_for("dragon-coupled", **{"preset": COUPLED.of_sides(count), **changes})
    first, *further = lives(count - 1)
    return SideMachine(Side.DEVICE, request, log_mass=-90.0, liveness=first, further=further)


def frame(position: int, token: int, answer: tuple[int, ...] = ()) -> SideDraftFrame:
    return SideDraftFrame(1, 0, position, head(answer), token, None, 0.0, committed=2)


def told(outputs: Sequence[SideOutput]) -> dict[int, list[Any]]:
    """What goes to each other side, by its link."""
    found: dict[int, list[Any]] = {}
    for output in outputs:
        if isinstance(output, ToPeer):
            found.setdefault(output.link, []).append(output.message)
    return found


def test_of_the_others_each_side_hears_the_tokens_and_nothing_else() -> None:
    machine = device()
    opens = told(machine.connect(0.0))
    assert opens[0] == opens[1]
    (opening,) = opens[0]
    assert isinstance(opening, CollaborationOpen)
    assert opening.log_mass == -90.0, "the device's own"
    machine.receive(opened(0), 0.0)
    assert not machine.receive(frame(2, 3), 0.1), "waits for the last side's h"
    assert not machine.receive(frame(2, 1), 0.1, link=1)
    targets = told(machine.receive(opened(1, log_mass=90.0), 0.2, link=1))
    expected = TargetFrame(1, 0, 2, head(()), (1,), False, ())
    assert targets == {0: [expected], 1: [expected]}
    assert machine.stats.made == {2: 1}
    assert machine.stats.drafted == {0: 0, 1: 1, 2: 1}
    assert machine.stats.accepted == {0: 0, 1: 0, 2: 1}
    assert machine.committed.since(2) == (1,)
    with pytest.raises(ProtocolError, match="CollaborationOpened"):
        machine.receive(opened(1), 0.3, link=1)
    assert told(machine.cancel()) == {link: [Cancel(1, 0, 3, head((1,)))] for link in (0, 1)}


def test_one_link_that_is_lost_begins_all_again() -> None:
    machine = device()
    machine.connect(0.0)
    machine.receive(opened(0), 0.0)
    machine.receive(opened(1), 0.0, link=1)
    machine.receive(frame(3, 1, (0,)), 0.0)
    machine.receive(frame(3, 1, (0,)), 0.0, link=1)
    assert machine.queued == (0, 2)
    assert machine.receive(GoingAway(1, 0, 2, head(()), grace_s=1.0), 0.1, link=1) == [Reconnect()]
    assert machine.queued == (0, 0)
    assert machine.phase is Phase.CONNECTING
    assert [*told(machine.connect(0.2))] == [0, 1]
    assert machine.tick(0.2) == []
    pings = told(machine.tick(0.41))
    assert [type(sent[0]) for sent in pings.values()] == [Ping, Ping]
    machine.receive(opened(0), 0.6)
    assert machine.tick(0.6) == machine.tick(0.79) == []
    assert machine.tick(0.81) == [Reconnect()], "link 1 was silent for 0.6 s"
    assert machine.stats.links_lost == 1


def test_drafts_beyond_the_room_of_another_side_are_no_fault() -> None:
    machine = device()
    machine.connect(0.0)
    machine.receive(opened(0, limit=2), 0.0)
    machine.receive(opened(1, limit=4), 0.0, link=1)
    assert not machine.receive(frame(4, 1, (1, 1)), 0.1, link=1)
    assert machine.queued == (0, 0)
    machine.receive(frame(3, 1, (1,)), 0.1, link=1)
    assert machine.queued == (0, 1)
    two = SideMachine(Side.DEVICE, request_for("dragon-coupled"), log_mass=0.0)
    two.connect(0.0)
    two.receive(opened(0, limit=2), 0.0)
    with pytest.raises(InvalidArgument, match="beyond the answer"):
        two.receive(frame(4, 1, (1, 1)), 0.1)


def test_longer_lists_are_asked_of_all_sides_once() -> None:
    machine = device(sampling=SamplingParams(0.0))
    machine.connect(0.0)
    for link in (0, 1):
        machine.receive(opened(link), 0.0, link=link)
    flat = np.full(4, 0.25, dtype=np.float32)
    heavy = np.array([0.2, 0.3, 0.25, 0.25], dtype=np.float32)
    machine.drafted(DecodingDraft(1, 0, 2, head(()), 0, flat, 0.0, committed=2), 0.1)
    light, other = frame(2, 0), replace(frame(2, 1), log_mass=5.0)
    assert not machine.receive(replace(light, probs=top_list(flat, 1)), 0.2)
    asked = told(machine.receive(replace(other, probs=top_list(heavy, 1)), 0.3, link=1))
    assert asked == {link: [Fetch(1, 0, 2, head(()), count=8)] for link in (0, 1)}
    assert machine.stats.fetches == 1
    longer = replace(light, probs=top_list(flat, 4))
    assert not machine.receive(longer, 0.4), "the other side's is still short, and asked for"
    assert machine.receive(replace(other, probs=top_list(heavy, 4)), 0.5, link=1)
    assert machine.committed.since(len(PROMPT)) == (1,)


def test_a_ping_is_answered_where_it_came_from() -> None:
    machine = device(4)
    machine.connect(0.0)
    ping = Ping(1, 0, 2, head(()), nonce=9)
    ((link, (pong,)),) = told(machine.receive(ping, 0.1, link=1)).items()
    assert (link, pong.nonce) == (1, 9)
