"""More than two sides, piece by piece: shares and coin, what the device decides from, what its
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
from tandem.specdec.events import Commit, Reconnect
from tandem.specdec.liveness import Liveness, LivenessTimes, LostCloud, Phase
from tandem.specdec.messages import Cancel, GoingAway, Ping
from tandem.two_sided.many_sides import (
    FromLink,
    JointLiveness,
    ManySidesMachine,
    SidesCommit,
    ToLink,
    coupled_number,
    mixture_of,
    preset_of_sides,
    shares_of,
)
from tandem.two_sided.protocol.decoder_messages import DecodingDraft
from tandem.two_sided.protocol.messages import (
    CloudSideMessage,
    CollaborationOpen,
    CollaborationOpened,
    Fetch,
    SideDraftFrame,
    TargetFrame,
    ToPeer,
)
from tandem.two_sided.protocol.mixture import Side, coupled_side, side_weights
from tandem.two_sided.protocol.presets import AGGREGATION_PRESETS, AggregationMode
from tandem.two_sided.protocol.side_machine import SideMachine
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


def test_a_coin_may_have_more_faces_and_other_methods_stay_of_two_sides() -> None:
    many = preset_of_sides(COUPLED, 3)
    assert many.mode is AggregationMode.DEVICE_COIN
    assert replace(many, mode=COUPLED.mode) == COUPLED
    assert not many.lossy
    assert preset_of_sides(COUPLED, 2) is COUPLED
    for name, preset in AGGREGATION_PRESETS.items():
        assert (preset_of_sides(preset, 5) is preset) == (name != "dragon-coupled"), name


def lives(count: int = 2, policy: LostCloud = LostCloud.FAIL) -> list[Liveness]:
    return [Liveness(policy, TIMES, 0.0) for _ in range(count)]


def test_the_most_silent_side_is_the_loss() -> None:
    links = lives(3)
    peers = JointLiveness(links)
    peers.connected(0.0)
    links[0].received(0.5)
    links[1].received(0.5)
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


def opened(limit: int = 4, log_mass: float = 0.0) -> CollaborationOpened:
    return CollaborationOpened(1, 0, 2, head(()), log_mass=log_mass, max_tokens=limit)


def device(count: int = 3, log_mass: float = -90.0, **changes: Any) -> ManySidesMachine:
    """A device before the other sides have opened."""
    preset = replace(preset_of_sides(COUPLED, count), **changes.pop("preset", {}))
    request = request_for("dragon-coupled", **{"preset": preset, **changes})
    return ManySidesMachine(request, log_mass=log_mass, others=lives(count - 1))


def running(*masses: float, **changes: Any) -> ManySidesMachine:
    """A device whose other sides have opened, by all sides' h."""
    machine = device(len(masses), masses[0], **changes)
    machine.connect(0.0)
    for link, mass in enumerate(masses[1:]):
        machine.receive(FromLink(link, opened(log_mass=mass)), 0.0)
    return machine


def frame(
    position: int, token: int, answer: tuple[int, ...] = (), log_mass: float = 0.0
) -> SideDraftFrame:
    return SideDraftFrame(1, 0, position, head(answer), token, None, log_mass, committed=2)


def draft(
    position: int, token: int, answer: tuple[int, ...] = (), probs: Any = None, log_mass: float = 0
) -> DecodingDraft:
    """The device's own."""
    return DecodingDraft(1, 0, position, head(answer), token, probs, log_mass, committed=2)


def told(outputs: Sequence[Any]) -> dict[int, list[Any]]:
    """What goes to each other side, by its link."""
    found: dict[int, list[Any]] = {}
    for output in outputs:
        if isinstance(output, ToPeer):
            assert isinstance(output.message, ToLink)
            found.setdefault(output.message.link, []).append(output.message.message)
    return found


def committed(outputs: Sequence[Any]) -> SidesCommit:
    (commit,) = (output for output in outputs if isinstance(output, Commit))
    assert isinstance(commit, SidesCommit)
    return commit


def test_of_the_others_each_side_hears_the_tokens_and_nothing_else() -> None:
    machine = device()
    opens = told(machine.connect(0.0))
    assert opens[0] == opens[1]
    (opening,) = opens[0]
    assert isinstance(opening, CollaborationOpen)
    assert opening.log_mass == -90.0, "the device's own"
    machine.receive(FromLink(0, opened()), 0.0)
    assert not machine.receive(FromLink(0, frame(2, 3)), 0.1), "waits for the last side's h"
    assert not machine.receive(FromLink(1, frame(2, 1)), 0.1)
    targets = told(machine.receive(FromLink(1, opened(log_mass=90.0)), 0.2))
    expected = TargetFrame(1, 0, 2, head(()), (1,), False, ())
    assert targets == {0: [expected], 1: [expected]}
    assert machine.stats.made == {2: 1}
    assert machine.stats.drafted == {0: 0, 1: 1, 2: 1}
    assert machine.stats.accepted == {0: 0, 1: 0, 2: 1}
    assert machine.committed.since(2) == (1,)
    assert machine.aggregation_side is Side.DEVICE
    with pytest.raises(ProtocolError, match="CollaborationOpened"):
        machine.receive(FromLink(1, opened()), 0.3)
    assert told(machine.cancel()) == {link: [Cancel(1, 0, 3, head((1,)))] for link in (0, 1)}


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_draft_of_the_side_that_the_coin_names_is_the_token(number: int) -> None:
    masses = [-90.0] * 3
    masses[number] = 0.0
    source = (TokenSource.DEVICE, TokenSource.CLOUD, TokenSource.SIDE)[number]
    events: list[Any] = [draft(2, 0), FromLink(0, frame(2, 1)), FromLink(1, frame(2, 2))]
    decisive = events.pop(number)
    machine = running(*masses)
    for event in events:
        assert not taken(machine, event), "the others' drafts decide nothing"
    commit = committed(taken(machine, decisive))
    assert (commit.token_ids, commit.token_sides) == ((number,), ((number,),))
    assert commit.token_sources == (source,)
    alone = committed(taken(running(*masses), decisive))
    assert alone == commit, "nobody else is waited for"
    same = running(*masses)
    for event in (draft(2, 3), FromLink(0, frame(2, 3)), FromLink(1, frame(2, 3))):
        if outputs := taken(same, event):
            assert committed(outputs).token_sides == ((number,),), "whoever else drafted it"


def taken(machine: ManySidesMachine, event: DecodingDraft | FromLink) -> Sequence[Any]:
    if isinstance(event, FromLink):
        return machine.receive(event, 0.1)
    return machine.drafted(event, 0.1)


@pytest.mark.parametrize(
    ("changes", "stretch"),
    [({"processors": Processors(banned_token_ids=(3,))}, 1), ({"preset": {"reweigh_every": 2}}, 2)],
)
def test_where_weights_change_all_drafts_are_waited_for(
    changes: dict[str, Any], stretch: int
) -> None:
    """The first drafts of a stretch say which side its tokens are of; before, it was the device."""
    masses = (90.0, 0.0, 0.0)
    if "processors" in changes:
        plain = device(3, 90.0, **changes)
        plain.connect(0.0)
        machine = plain
        for link in (0, 1):
            knows = replace(opened(), processes=True)
            machine.receive(FromLink(link, knows), 0.0)
    else:
        machine = running(*masses, **changes)
    assert not machine.drafted(draft(2, 0), 0.1)
    assert not machine.receive(FromLink(0, frame(2, 1)), 0.1)
    outputs = machine.receive(FromLink(1, frame(2, 2, log_mass=90.0)), 0.1)
    assert committed(outputs).token_ids == (2,)
    outputs = machine.receive(FromLink(1, frame(3, 1, (2,), log_mass=90.0)), 0.2)
    assert bool(outputs) == (stretch > 1), "one draft is enough within a stretch"


def test_one_link_that_is_lost_begins_all_again() -> None:
    machine = running(-90.0, 0.0, 0.0)
    machine.receive(FromLink(0, frame(3, 1, (0,))), 0.0)
    machine.receive(FromLink(1, frame(3, 1, (0,))), 0.0)
    assert machine.queued == (0, 2)
    leaves = FromLink(1, GoingAway(1, 0, 2, head(()), grace_s=1.0))
    assert machine.receive(leaves, 0.1) == [Reconnect()]
    assert machine.queued == (0, 0)
    assert machine.phase is Phase.CONNECTING
    assert [*told(machine.connect(0.2))] == [0, 1]
    assert machine.tick(0.2) == []
    pings = told(machine.tick(0.41))
    assert [type(sent[0]) for sent in pings.values()] == [Ping, Ping]
    machine.receive(FromLink(0, opened()), 0.6)
    assert machine.tick(0.6) == machine.tick(0.79) == []
    assert machine.tick(0.81) == [Reconnect()], "link 1 was silent for 0.6 s"
    assert machine.stats.links_lost == 1


def test_the_silent_side_alone_is_pinged() -> None:
    machine = running(0.0, 0.0, 0.0)
    machine.receive(FromLink(1, frame(3, 1, (0,))), 0.15)
    pinged = {now: [*told(machine.tick(now))] for now in (0.1, 0.2, 0.25, 0.3, 0.36)}
    assert pinged == {0.1: [], 0.2: [0], 0.25: [], 0.3: [], 0.36: [1]}


def test_drafts_beyond_the_room_of_another_side_are_no_fault() -> None:
    machine = device()
    machine.connect(0.0)
    machine.receive(FromLink(0, opened(limit=2)), 0.0)
    machine.receive(FromLink(1, opened(limit=4)), 0.0)
    assert not machine.receive(FromLink(1, frame(4, 1, (1, 1))), 0.1)
    assert machine.queued == (0, 0)
    machine.receive(FromLink(1, frame(3, 1, (1,))), 0.1)
    assert machine.queued == (0, 1)
    two = SideMachine(Side.DEVICE, request_for("dragon-coupled"), log_mass=0.0)
    two.connect(0.0)
    two.receive(opened(limit=2), 0.0)
    with pytest.raises(InvalidArgument, match="beyond the answer"):
        two.receive(frame(4, 1, (1, 1)), 0.1)


def test_longer_lists_are_asked_of_all_sides_once() -> None:
    machine = running(-90.0, 0.0, 0.0, sampling=SamplingParams(0.0))
    flat = np.full(4, 0.25, dtype=np.float32)
    heavy = np.array([0.2, 0.3, 0.25, 0.25], dtype=np.float32)
    machine.drafted(draft(2, 0, probs=flat), 0.1)
    light, other = frame(2, 0), frame(2, 1, log_mass=5.0)
    assert not machine.receive(FromLink(0, replace(light, probs=top_list(flat, 1))), 0.2)
    short = replace(other, probs=top_list(heavy, 1))
    asked = told(machine.receive(FromLink(1, short), 0.3))
    assert asked == {link: [Fetch(1, 0, 2, head(()), count=8)] for link in (0, 1)}
    assert machine.stats.fetches == 1
    longer = replace(light, probs=top_list(flat, 4))
    assert not machine.receive(FromLink(0, longer), 0.4), "the other side's is still short"
    outputs = machine.receive(FromLink(1, replace(other, probs=top_list(heavy, 4))), 0.5)
    assert machine.committed.since(len(PROMPT)) == (1,)
    assert committed(outputs).token_sides == ((2,),), "no other side had drafted it"


@pytest.mark.parametrize(
    ("tokens", "numbers", "source"),
    [
        ((1, 1, 2), (0, 1), TokenSource.BOTH),
        ((2, 2, 1), (2,), TokenSource.SIDE),
        ((2, 1, 2), (1,), TokenSource.CLOUD),
        ((2, 2, 2), (), TokenSource.RECOVERED),
    ],
)
def test_at_temperature_0_a_token_is_of_all_who_drafted_it(
    tokens: tuple[int, int, int], numbers: tuple[int, ...], source: TokenSource
) -> None:
    machine = running(0.0, 0.0, 0.0, sampling=SamplingParams(0.0))
    probs = np.array([0, 0.9, 0.1, 0], dtype=np.float32)
    machine.drafted(draft(2, tokens[0], probs=probs), 0.1)
    listed = [replace(frame(2, token), probs=top_list(probs, 4)) for token in tokens[1:]]
    assert not machine.receive(FromLink(0, listed[0]), 0.1), "all drafts are waited for"
    commit = committed(machine.receive(FromLink(1, listed[1]), 0.1))
    assert commit.token_ids == (1,)
    assert commit.token_sides == (numbers,)
    assert commit.token_sources == (source,)


def test_round_trips_are_told_by_side_without_what_was_held_back() -> None:
    machine = device()
    machine.connect(1.0)
    machine.receive(FromLink(0, opened()), 1.25)
    machine.receive(FromLink(1, opened()), 1.25)
    answer = replace(frame(3, 1, (0,)), heard=1, held_s=0.25, decode_s=0.5)
    machine.receive(FromLink(1, answer), 2.0)
    assert machine.stats.round_trip_s(2) == 0.75
    assert machine.stats.round_trip_s(Side.CLOUD) is None
    assert machine.stats.decode_s == {0: 0.0, 1: 0.0, 2: 0.5}
    endless = replace(answer, heard=1, held_s=math.inf)
    machine.receive(FromLink(0, endless), 2.0)
    assert machine.stats.round_trip_s(Side.CLOUD) is None, "no duration"


def test_a_ping_is_answered_where_it_came_from() -> None:
    machine = device(4)
    machine.connect(0.0)
    ping: Any = Ping(1, 0, 2, head(()), nonce=9)
    ((link, (pong,)),) = told(machine.receive(FromLink(1, ping), 0.1)).items()
    assert (link, pong.nonce) == (1, 9)


@pytest.mark.parametrize(
    "message",
    [Fetch(1, 0, 2, head(()), count=4), TargetFrame(1, 0, 2, head(()), (1,))],
    ids=["fetch", "target"],
)
def test_nobody_fetches_the_device_s_distributions_or_decides_for_it(
    message: CloudSideMessage,
) -> None:
    machine = running(0.0, 0.0, 0.0, sampling=SamplingParams(0.0))
    machine.drafted(draft(2, 0, probs=np.full(4, 0.25, dtype=np.float32)), 0.1)
    with pytest.raises(ProtocolError, match=type(message).__name__):
        machine.receive(FromLink(0, message), 0.1)


def other_side(**changes: Any) -> SideMachine:
    """The two-sided machine of any other side."""
    request = request_for("dragon-coupled", preset=preset_of_sides(COUPLED, 3), **changes)
    machine = SideMachine(Side.CLOUD, request, peer_log_mass=-math.inf)
    machine.opened(-math.inf, 0.0)  # others may have documents
    return machine


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_another_side_sends_every_draft_and_takes_the_tokens(temperature: float) -> None:
    machine = other_side(sampling=SamplingParams(temperature))
    assert machine.aggregation_side is None
    probs = np.full(4, 0.25, dtype=np.float32)
    (sent,) = machine.drafted(draft(2, 1, probs=probs), 0.1)
    assert isinstance(sent, ToPeer)
    assert isinstance(sent.message, SideDraftFrame)
    assert (sent.message.token_id, sent.message.probs is not None) == (1, temperature == 0)
    commit = machine.receive(TargetFrame(1, 0, 2, head(()), (3,)), 0.2)[1]
    assert commit == Commit((3,))
    assert machine.committed.since(2) == (3,)


def test_another_side_is_never_handed_the_decision() -> None:
    machine = other_side()
    with pytest.raises(InvalidArgument, match="hands_over"):
        machine.receive(TargetFrame(1, 0, 2, head(()), (3,), hands_over=True), 0.2)
    assert machine.committed.since(2) == ()


def test_another_side_has_no_use_for_the_drafts_of_others() -> None:
    machine = other_side()
    for position, answer in ((2, ()), (3, (1,))):
        assert machine.receive(frame(position, 1, answer), 0.1) == []
    assert machine.queued == (0, 0)
    assert machine.committed.since(2) == ()
