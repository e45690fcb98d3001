"""Who decides a token, and whose drafts travel for it: two machines that talk to each other, of
which the device drafts 0 everywhere and the cloud 1."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from tandem.core.probs import SamplingParams
from tandem.core.processors import NO_PROCESSORS, Processors
from tandem.core.randomness import SeededRandom
from tandem.core.stopping import FinishReason
from tandem.core.tokens import TokenSource
from tandem.specdec.events import Commit
from tandem.two_sided.protocol.aggregation_rules import SharedCoin
from tandem.two_sided.protocol.draft_head import DraftHead
from tandem.two_sided.protocol.messages import (
    CollaborationOpen,
    SideDraftFrame,
    SideOutputs,
    TargetFrame,
    ToPeer,
)
from tandem.two_sided.protocol.mixture import Side, Weights, coupled_side, side_weights
from tandem.two_sided.protocol.side_machine import SideMachine
from tandem.two_sided.protocol.top_list import TopList
from tests.composed_presets import composed
from tests.unit.two_sided.side_frames import PROBS, frame, queued, request_for

START = 2
TOKENS = 11
EVERY = 3
RNG = SeededRandom(3)
NONE = float("-inf")
TOKEN_OF = {Side.DEVICE: 0, Side.CLOUD: 1}
HEAD = DraftHead(np.arange(len(PROBS)), PROBS.astype(np.float64))
SOURCE_OF = {Side.DEVICE: TokenSource.DEVICE, Side.CLOUD: TokenSource.CLOUD}


@dataclass
class Conversation:
    """Both machines from an opening on, frame by frame."""

    machines: dict[Side, SideMachine]
    masses: dict[Side, float]
    later: dict[Side, float]
    """What the drafts say after the answer's first stretch."""
    tokens: list[int] = field(default_factory=list)
    sources: list[TokenSource] = field(default_factory=list)
    drafts: defaultdict[int, dict[Side, SideDraftFrame]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    """The drafts that travelled, by position and sender."""
    targets: list[TargetFrame] = field(default_factory=list)
    _under_way: deque[tuple[Side, Any]] = field(default_factory=deque)

    def to_the_end(self) -> Conversation:
        self._apply(Side.DEVICE, self.machines[Side.DEVICE].connect(0.0))
        self._apply(Side.CLOUD, self.machines[Side.CLOUD].opened(self.masses[Side.CLOUD], 0.0))
        for _ in range(200):
            while self._under_way:
                side, message = self._under_way.popleft()
                self._apply(side, self.machines[side].receive(message, 0.0))
            if self.machines[Side.DEVICE].finish_reason is not None:
                return self
            for side, machine in self.machines.items():
                if machine.finish_reason is None and not queued(machine)[0]:
                    self._apply(side, machine.drafted(self._draft_of(side), 0.0))
        raise AssertionError("the machines wait for each other")

    def senders(self, position: int) -> set[Side]:
        return {*self.drafts[position]}

    def _draft_of(self, side: Side) -> SideDraftFrame:
        committed = self.machines[side].committed
        greedy = self.machines[side].request.sampling.greedy
        masses = self.masses if len(committed) < START + EVERY else self.later
        return frame(
            base=len(committed),
            prefix_hash=committed.prefix,
            token=TOKEN_OF[side],
            probs=PROBS if greedy else HEAD,
            log_mass=masses[side],
            committed=len(committed),
        )

    def _apply(self, sender: Side, outputs: SideOutputs) -> None:
        for output in outputs:
            match output:
                case ToPeer(CollaborationOpen()):
                    pass  # the cloud's machine is made of it
                case ToPeer(message):
                    if isinstance(message, SideDraftFrame):
                        self.drafts[message.base][sender] = message
                    if isinstance(message, TargetFrame):
                        self.targets.append(message)
                    self._under_way.append((sender.other, message))
                case Commit() if sender is Side.DEVICE:
                    self.tokens += output.token_ids
                    self.sources += output.token_sources


def converse(
    name: str,
    device: float = 0.0,
    cloud: float = 0.0,
    later: tuple[float, float] | None = None,
    temperature: float = 1.0,
    committed: tuple[int, ...] = (),
    processors: Processors = NO_PROCESSORS,
    **changes: Any,
) -> Conversation:
    """`device`, `cloud`: h of each side's documents."""
    preset = replace(composed(name), **changes)
    sampling = SamplingParams(temperature)
    request = request_for(
        name,
        preset=preset,
        sampling=sampling,
        max_tokens=TOKENS,
        committed_ids=committed,
        processors=processors,
    )
    masses = {Side.DEVICE: device, Side.CLOUD: cloud}
    machines = {
        Side.DEVICE: SideMachine(Side.DEVICE, request, log_mass=device),
        Side.CLOUD: SideMachine(Side.CLOUD, request, peer_log_mass=device),
    }
    told = masses if later is None else dict(zip(Side, later, strict=True))
    conversation = Conversation(machines, masses, told).to_the_end()
    assert machines[Side.DEVICE].finish_reason is FinishReason.LENGTH
    assert len(conversation.tokens) == TOKENS - len(committed)
    return conversation


def coins(device: float = 0.0, cloud: float = 0.0) -> dict[int, Side]:
    """Whose draft is the token of each position."""
    weights = side_weights(device, cloud)
    return {at: coupled_side(weights, RNG, at) for at in range(START, START + TOKENS)}


def test_a_coin_s_owner_alone_sends_and_is_waited_for() -> None:
    found, owners = converse("dragon-coupled", cloud=0.5), coins(cloud=0.5)
    assert {*owners.values()} == set(Side)
    assert found.tokens == [TOKEN_OF[owner] for owner in owners.values()]
    assert found.sources == [SOURCE_OF[owner] for owner in owners.values()]
    for position, owner in owners.items():
        assert found.senders(position) == {owner}
        assert found.drafts[position][owner].probs is None, "a draft is the token"
    assert found.targets == []


def test_where_weights_change_both_sides_drafts_travel_at_first_and_then_one() -> None:
    """The first drafts of a stretch carry what its weights are made of."""
    found, owners = converse("dragon-coupled", reweigh_every=EVERY), coins()
    assert found.tokens == [TOKEN_OF[owner] for owner in owners.values()]
    assert {*owners.values()} == set(Side)
    for position, owner in owners.items():
        begins = (position - START) % EVERY == 0
        assert found.senders(position) == (set(Side) if begins else {owner}), position


def test_a_stream_that_begins_within_a_stretch_tells_both_weights_at_once() -> None:
    """And goes on with the stretch as it was: it ends where it would have ended."""
    found, owners = converse("dragon-coupled", reweigh_every=EVERY, committed=(0,)), coins()
    later = [*owners][1:]
    assert found.tokens == [TOKEN_OF[owners[position]] for position in later]
    for position in later:
        begins = position == START + 1 or (position - START) % EVERY == 0
        expected = set(Side) if begins else {owners[position]}
        assert found.senders(position) == expected, position


def test_with_processors_both_sides_weights_are_new_at_each_token() -> None:
    """Of one side's distribution they leave more than of the other's, position by position."""
    banned = Processors(banned_token_ids=(3,))
    found = converse("dragon-coupled", processors=banned)
    assert found.tokens == [TOKEN_OF[owner] for owner in coins().values()]
    assert all(found.senders(at) == set(Side) for at in coins())


@pytest.mark.parametrize(("later", "owner"), [((9.0, -90.0), 0), ((-90.0, 9.0), 1)])
def test_a_stretch_has_the_weights_that_its_first_drafts_carry(
    later: tuple[float, float], owner: int
) -> None:
    found = converse("dragon-coupled", later=later, reweigh_every=EVERY)
    first = [TOKEN_OF[side] for side in coins().values()][:EVERY]
    assert found.tokens == [*first, *[owner] * (TOKENS - EVERY)]
    unchanged = converse("dragon-coupled", later=later)
    assert unchanged.tokens == [TOKEN_OF[side] for side in coins().values()]


@pytest.mark.parametrize("reweigh_every", [0, EVERY])
@pytest.mark.parametrize(("device", "cloud", "token"), [(0.0, -90.0, 0), (-90.0, 0.0, 1)])
def test_all_the_relevance_on_one_side_is_all_the_tokens(
    device: float, cloud: float, token: int, reweigh_every: int
) -> None:
    found = converse("dragon-coupled", device, cloud, reweigh_every=reweigh_every)
    assert {*found.tokens} == {token}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["dragon-device", "dragon placement=cloud"])
def test_an_aggregator_decides_and_the_other_side_sends(name: str, temperature: float) -> None:
    found = converse(name, temperature=temperature)
    sender = Side.CLOUD if name == "dragon-device" else Side.DEVICE
    kind = TopList if temperature == 0 else DraftHead
    for position in range(START, START + TOKENS):
        assert found.senders(position) == {sender}
        assert isinstance(found.drafts[position][sender].probs, kind)
    told = [token for target in found.targets for token in target.token_ids]
    assert told == found.tokens


def test_at_temperature_0_without_an_aggregator_each_side_decides() -> None:
    found = converse("dragon-coupled", temperature=0.0, reweigh_every=EVERY)
    assert {*found.tokens} == {0}, "the mixture's likeliest"
    for position in range(START, START + TOKENS):
        assert found.senders(position) == set(Side)
        assert all(isinstance(each.probs, TopList) for each in found.drafts[position].values())
    assert found.targets == []


@pytest.mark.parametrize("name", ["crcg-device", "drcg-text", "drcg-kv"])
def test_one_side_s_documents_are_answered_there(name: str) -> None:
    found = converse(name)
    assert ({*found.tokens}, {*found.sources}) == ({0}, {TokenSource.DEVICE})
    assert (dict(found.drafts), found.targets) == ({}, [])


def test_drafts_of_the_cloud_s_documents_come_one_by_one() -> None:
    found = converse("crcg-cloud")
    assert ({*found.tokens}, {*found.sources}) == ({1}, {TokenSource.CLOUD})
    assert all(found.senders(at) == {Side.CLOUD} for at in range(START, START + TOKENS))
    assert found.targets == []


@pytest.mark.parametrize("name", ["dragon-device", "dragon-coupled", "drdg-sw"])
@pytest.mark.parametrize(
    ("device", "cloud", "owner"),
    [(NONE, 0.0, Side.CLOUD), (0.0, NONE, Side.DEVICE), (NONE, NONE, Side.CLOUD)],
)
def test_a_side_without_documents_leaves_the_answer_to_the_other(
    name: str, device: float, cloud: float, owner: Side
) -> None:
    found = converse(name, device, cloud)
    assert {*found.tokens} == {TOKEN_OF[owner]}
    assert {*found.sources} == {SOURCE_OF[owner]}
    assert found.targets == []


@pytest.mark.parametrize("name", ["dragon-coupled", "drdg-sw"])
def test_a_coin_waits_for_both_sides_documents(name: str) -> None:
    request = request_for(name)
    device = SideMachine(Side.DEVICE, request, log_mass=0.0)
    device.connect(0.0)
    cloud = SideMachine(Side.CLOUD, request, peer_log_mass=0.0)
    for machine in (device, cloud):
        for answer in ((), (0,)):
            assert machine.drafted(frame(answer), 0.0) == []
        assert queued(machine) == (2, 0)


def test_no_draft_of_the_next_stretch_is_sent_before_its_weights_are_known() -> None:
    """Of a stream that begins at the end of a stretch of four."""
    rule = SharedCoin(Side.DEVICE, Weights(1.0, 0.0), rng=RNG, every=4, start=START, first=5)
    drafts = {
        side: frame(base=5, log_mass=mass) for side, mass in zip(Side, (0.0, NONE), strict=True)
    }
    assert rule.decide(5, drafts) == 0
    assert [at for at in range(5, 12) if rule.sends_draft(at)] == [5, 6, 10]
