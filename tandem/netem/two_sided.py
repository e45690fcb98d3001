"""One answer from documents on two sides in virtual time: two real machines, a modelled link.

Invariant: pure and seeded; nothing sleeps and no clock is read. Must not import asyncio, grpc,
torch or time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from tandem.core.aggregation import Side
from tandem.core.chance import Chance, SeededChance
from tandem.netem.link_model import Link, LinkPair
from tandem.netem.simulated_decoder import LocalLawOf, SimulatedDecoder, SimulatedStep
from tandem.netem.simulator import Faults
from tandem.netem.virtual_time import VirtualTime
from tandem.policy.local_choices import local_choices
from tandem.policy.placement import Placing
from tandem.protocol.aggregating import SideMachine
from tandem.protocol.aggregation_counting import Measuring
from tandem.protocol.aggregation_messages import CollaborationOpen, PeerMessage
from tandem.protocol.aggregation_outputs import (
    AggregationRequest,
    AggregationStats,
    SideOutput,
    ToDecoder,
    ToPeer,
    request_of,
)
from tandem.protocol.liveness import Liveness, LivenessTimes, LostCloud
from tandem.protocol.outputs import Commit, Finish, Reconnect
from tandem.protocol.phase import Phase

TICK_S = 0.2


@dataclass(frozen=True, slots=True)
class SimulatedSide:
    """One side's documents as a law over texts, their h, and what a draft takes.

    h may change along the answer, by position; `decode_s` may depend on how many steps the side has
    taken, as in a replayed trace.
    """

    law_of: LocalLawOf
    log_mass: float | Callable[[int], float]
    decode_s: float | Callable[[int], float] = 0.04

    def mass_at(self, position: int) -> float:
        return self.log_mass(position) if callable(self.log_mass) else self.log_mass

    def step_s(self, number: int) -> float:
        return self.decode_s(number) if callable(self.decode_s) else self.decode_s


@dataclass(frozen=True, slots=True)
class Span:
    """What took time at a side: "decode" is a draft that was not interrupted, "settle" the moment
    that tokens from `position` on were final there, a frame's name its way to the other side."""

    side: Side
    what: str
    start_s: float
    end_s: float
    position: int


@dataclass(frozen=True, slots=True)
class TwoSided:
    """What one simulated request did. `commits`: (virtual time, tokens)."""

    token_ids: tuple[int, ...]
    finish: Finish
    duration_s: float
    commits: tuple[tuple[float, Commit], ...]
    stats: dict[Side, AggregationStats]
    rollbacks: dict[Side, int]
    spans: tuple[Span, ...]


class PlacingFor(Protocol):
    """Makes the chooser of one side, and what is told its measurements."""

    def __call__(self, side: Side) -> tuple[Placing | None, Measuring | None]: ...


def no_placing(side: Side) -> tuple[Placing | None, Measuring | None]:
    return None, None


def simulate_two_sided(
    request: AggregationRequest,
    device: SimulatedSide,
    cloud: SimulatedSide,
    link: LinkPair,
    faults: Faults | None = None,
    lost_cloud: LostCloud = LostCloud.WAIT,
    liveness_times: LivenessTimes | None = None,
    size_of: Callable[[PeerMessage], int] = lambda message: 64,
    completes_stop: Callable[[int], bool] = lambda token_id: False,
    placing_for: PlacingFor = no_placing,
    chance: Chance | None = None,
    traced: bool = False,
) -> TwoSided:
    """Run one request to its end. Raises ProtocolError when the machines stop making progress."""
    run = _Run(
        request=request,
        sides={Side.DEVICE: device, Side.CLOUD: cloud},
        link=link,
        size_of=size_of,
        placing_for=placing_for,
        chance=chance or SeededChance(request.seed),
        traced=traced,
    )
    placing, measuring = placing_for(Side.DEVICE)
    run.machines[Side.DEVICE] = SideMachine(
        Side.DEVICE,
        request,
        log_mass=device.mass_at(len(request.prompt_ids)),
        liveness=Liveness(lost_cloud, liveness_times or LivenessTimes(), now=0.0),
        placing=placing,
        measuring=measuring,
        completes_stop=completes_stop,
        chance=chance,
    )
    run.schedule(faults or Faults())
    return run.to_the_end()


@dataclass(slots=True)
class _Run:
    request: AggregationRequest
    sides: dict[Side, SimulatedSide]
    link: LinkPair
    size_of: Callable[[PeerMessage], int]
    placing_for: PlacingFor
    chance: Chance
    traced: bool
    time: VirtualTime = field(default_factory=VirtualTime)
    stream: int = 0
    machines: dict[Side, SideMachine] = field(default_factory=dict)
    decoders: dict[Side, SimulatedDecoder] = field(default_factory=dict)
    steps: dict[Side, int] = field(default_factory=lambda: dict.fromkeys(Side, 0))
    rollbacks: dict[Side, int] = field(default_factory=lambda: dict.fromkeys(Side, 0))
    finish: Finish | None = None
    commits: list[tuple[float, Commit]] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    @property
    def device(self) -> SideMachine:
        return self.machines[Side.DEVICE]

    def schedule(self, faults: Faults) -> None:
        faults.plan(self.time, self.link, self._reset, self._depart)
        self.time.at(0.0, self._begin)
        self.time.at(TICK_S, self._tick)

    def to_the_end(self) -> TwoSided:
        while self.finish is None:
            self.time.go_on(self.device.phase)
            self._decode()
        for side, decoder in self.decoders.items():
            self.rollbacks[side] += decoder.rollbacks
        cloud = self.machines.get(Side.CLOUD)
        return TwoSided(
            self.device.committed.since(len(self.request.prompt_ids)),
            self.finish,
            self.time.now,
            tuple(self.commits),
            {
                Side.DEVICE: self.device.stats,
                Side.CLOUD: cloud.stats if cloud else AggregationStats(),
            },
            self.rollbacks,
            tuple(self.spans),
        )

    def _tick(self) -> None:
        self._apply(Side.DEVICE, self.device.tick(self.time.now))
        self.time.at(self.time.now + TICK_S, self._tick)

    def _reset(self) -> None:
        self._apply(Side.DEVICE, self.device.lost(self.time.now))

    def _depart(self) -> None:
        cloud = self.machines.get(Side.CLOUD)
        if cloud:
            self._apply(Side.CLOUD, cloud.going_away(1.0, self.time.now))

    def _begin(self) -> None:
        self._open_decoder(Side.DEVICE, self.request.prompt_ids)
        mass = self.sides[Side.DEVICE].mass_at(len(self.request.prompt_ids))
        self._apply(Side.DEVICE, self.device.opened(mass, self.time.now))
        self._connect()

    def _connect(self) -> None:
        if self.device.phase is Phase.CONNECTING:
            self._apply(Side.DEVICE, self.device.connect(self.time.now))

    def _open_decoder(self, side: Side, token_ids: tuple[int, ...]) -> None:
        request = self.request
        self.decoders[side] = SimulatedDecoder(
            side,
            self.sides[side].law_of,
            local_choices(request.preset, request.sampling).law,
            self.chance,
            token_ids,
            session=request.session,
            mass_at=self.sides[side].mass_at,
            ahead=request.preset.ahead,
            length_limit=len(request.prompt_ids) + request.max_tokens,
            decode_s=self.sides[side].step_s(0),
        )

    def _apply(self, side: Side, outputs: Sequence[SideOutput]) -> None:
        for output in outputs:
            match output:
                case ToPeer(message):
                    self._carry(side, message)
                case ToDecoder(message):
                    self._trace(side, "settle", self.time.now, self.time.now, message.base)
                    self.decoders[side].receive(message)
                case Commit() if side is Side.DEVICE:
                    self.commits.append((self.time.now, output))
                case Finish() if side is Side.DEVICE:
                    self.finish = output
                case Reconnect():
                    self._new_stream()

    def _new_stream(self) -> None:
        self.stream += 1
        self._drop_cloud()
        self.link.up.empty()
        self.link.down.empty()
        self.time.at(self.time.now + 0.001, self._connect)

    def _drop_cloud(self) -> None:
        self.machines.pop(Side.CLOUD, None)
        decoder = self.decoders.pop(Side.CLOUD, None)
        self.rollbacks[Side.CLOUD] += decoder.rollbacks if decoder else 0

    def _carry(self, sender: Side, message: PeerMessage) -> None:
        stream = self.stream
        link: Link = self.link.up if sender is Side.DEVICE else self.link.down
        arrival = link.send(self.size_of(message), self.time.now)
        self._trace(sender, type(message).__name__, self.time.now, arrival, message.base)

        def arrive() -> None:
            if stream == self.stream:
                self._deliver(sender.other, message)

        self.time.at(arrival, arrive)

    def _deliver(self, side: Side, message: PeerMessage) -> None:
        if isinstance(message, CollaborationOpen):
            self._open_cloud(message)
        elif (machine := self.machines.get(side)) is not None:
            self._apply(side, machine.receive(message, self.time.now))

    def _trace(self, side: Side, what: str, start_s: float, end_s: float, position: int) -> None:
        if self.traced:
            self.spans.append(Span(side, what, start_s, end_s, position))

    def _open_cloud(self, opening: CollaborationOpen) -> None:
        placing, measuring = self.placing_for(Side.CLOUD)
        self.machines[Side.CLOUD] = machine = SideMachine(
            Side.CLOUD,
            request_of(opening),
            peer_log_mass=opening.log_mass,
            placing=placing,
            measuring=measuring,
            chance=self.chance,
        )
        self._open_decoder(Side.CLOUD, (*opening.prompt_ids, *opening.committed_ids))
        mass = self.sides[Side.CLOUD].mass_at(opening.base)
        self._apply(Side.CLOUD, machine.opened(mass, self.time.now))

    def _decode(self) -> None:
        for side, decoder in list(self.decoders.items()):
            step = decoder.begin()
            if step is None:
                continue
            decoder.decode_s = self.sides[side].step_s(self.steps[side])
            self.steps[side] += 1
            end = self.time.now + decoder.decode_s
            self.time.at(end, partial(self._decoded, side, decoder, step, self.time.now))

    def _decoded(
        self, side: Side, decoder: SimulatedDecoder, step: SimulatedStep, start_s: float
    ) -> None:
        if decoder is not self.decoders.get(side):
            return
        draft = decoder.end(step)
        if draft is None:
            return
        self._trace(side, "decode", start_s, self.time.now, draft.base)
        machine = self.machines.get(side)
        if machine is not None:
            self._apply(side, machine.drafted(draft, self.time.now))
