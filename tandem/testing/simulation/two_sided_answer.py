"""One answer from documents on two sides in virtual time: real machines, a modelled link.
Invariant: pure and seeded; nothing sleeps and no clock is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from tandem.core.randomness import RandomSource, SeededRandom
from tandem.netem.link_model import Link, LinkPair
from tandem.specdec.events import Commit, Finish, Reconnect
from tandem.specdec.liveness import Liveness, LivenessTimes, LostCloud, Phase
from tandem.testing.simulation.simulated_decoder import (
    LocalProbsOf,
    SimulatedDecoder,
    SimulatedStep,
)
from tandem.testing.simulation.virtual_time import Faults, VirtualTime
from tandem.two_sided.protocol.counters import AggregationStats
from tandem.two_sided.protocol.local_drafting import local_drafting
from tandem.two_sided.protocol.messages import (
    AggregationRequest,
    CollaborationOpen,
    PeerMessage,
    SideOutput,
    ToDecoder,
    ToPeer,
)
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.placement import PlacementPolicy
from tandem.two_sided.protocol.profiler import SideProfiler
from tandem.two_sided.protocol.side_machine import SideMachine

TICK_S = 0.2


@dataclass(frozen=True, slots=True)
class SimulatedSide:
    """One side's documents as a distribution over texts, their h, and the seconds of a step. h may
    depend on the text before, `decode_s` on the steps so far (a replayed trace)."""

    probs_of: LocalProbsOf
    log_mass: float | Callable[[tuple[int, ...]], float]
    decode_s: float | Callable[[int], float] = 0.04

    def mass_after(self, context: tuple[int, ...]) -> float:
        return self.log_mass(context) if callable(self.log_mass) else self.log_mass

    def step_s(self, number: int) -> float:
        return self.decode_s(number) if callable(self.decode_s) else self.decode_s


@dataclass(frozen=True, slots=True)
class BusySpan:
    """One span of a trace. `what`: "decode" is a draft that was not interrupted, "commit" when
    tokens from `position` on became final there, a frame's name its transfer."""

    side: Side
    what: str
    start_s: float
    end_s: float
    position: int


@dataclass(frozen=True, slots=True)
class TwoSidedAnswer:
    """What one simulated request did. `commits`: (virtual time, tokens)."""

    token_ids: tuple[int, ...]
    finish: Finish
    duration_s: float
    commits: tuple[tuple[float, Commit], ...]
    stats: dict[Side, AggregationStats]
    spans: tuple[BusySpan, ...]


class PlacementFor(Protocol):
    """Makes one side's placement policy and the recipient of its measurements."""

    def __call__(self, side: Side) -> tuple[PlacementPolicy | None, SideProfiler | None]: ...


def no_placement(side: Side) -> tuple[PlacementPolicy | None, SideProfiler | None]:
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
    placement_policy_for: PlacementFor = no_placement,
    rng: RandomSource | None = None,
    traced: bool = False,
) -> TwoSidedAnswer:
    """Run one request to its end. Raises ProtocolError when the machines stop making progress."""
    run = _Run(
        request=request,
        sides={Side.DEVICE: device, Side.CLOUD: cloud},
        link=link,
        size_of=size_of,
        placement_policy_for=placement_policy_for,
        rng=rng or SeededRandom(request.seed),
        traced=traced,
    )
    times = liveness_times or LivenessTimes()
    placement_policy, measuring = placement_policy_for(Side.DEVICE)
    run.device = SideMachine(
        Side.DEVICE,
        request,
        log_mass=device.mass_after(request.prompt_ids),
        liveness=Liveness(lost_cloud, times, now=0.0),
        placement_policy=placement_policy,
        measurements=measuring,
        completes_stop=completes_stop,
        rng=rng,
    )
    run.schedule(faults or Faults())
    return run.to_the_end()


@dataclass(slots=True)
class _Run:
    request: AggregationRequest
    sides: Mapping[Side, SimulatedSide]
    link: LinkPair
    size_of: Callable[[PeerMessage], int]
    placement_policy_for: PlacementFor
    rng: RandomSource
    traced: bool
    device: SideMachine = field(init=False)
    cloud: SideMachine | None = None
    """Of the stream that is open now."""
    time: VirtualTime = field(default_factory=VirtualTime)
    stream: int = 0
    decoders: dict[Side, SimulatedDecoder] = field(default_factory=dict)
    steps: Counter[Side] = field(default_factory=Counter)
    finish: Finish | None = None
    commits: list[tuple[float, Commit]] = field(default_factory=list)
    spans: list[BusySpan] = field(default_factory=list)

    def schedule(self, faults: Faults) -> None:
        faults.plan(self.time, self.link, self._reset, self._depart)
        self.time.at(0.0, self._begin)
        self.time.at(TICK_S, self._tick)

    def to_the_end(self) -> TwoSidedAnswer:
        while self.finish is None:
            self.time.run_next(self.device.phase)
            self._decode()
        of_cloud = AggregationStats() if self.cloud is None else self.cloud.stats
        return TwoSidedAnswer(
            self.device.committed.since(len(self.request.prompt_ids)),
            self.finish,
            self.time.now,
            tuple(self.commits),
            {Side.DEVICE: self.device.stats, Side.CLOUD: of_cloud},
            tuple(self.spans),
        )

    def _tick(self) -> None:
        self._apply(Side.DEVICE, self.device.tick(self.time.now))
        self.time.at(self.time.now + TICK_S, self._tick)

    def _reset(self) -> None:
        self._apply(Side.DEVICE, self.device.lost(self.time.now))

    def _depart(self) -> None:
        if self.cloud is not None:
            self._apply(Side.CLOUD, self.cloud.going_away(self.time.now))

    def _begin(self) -> None:
        self._open_decoder(Side.DEVICE, self.request.prompt_ids)
        self._connect()

    def _connect(self) -> None:
        if self.device.phase is Phase.CONNECTING:
            self._apply(Side.DEVICE, self.device.connect(self.time.now))

    def _open_decoder(self, side: Side, token_ids: tuple[int, ...]) -> None:
        request = self.request
        simulated = self.sides[side]
        self.decoders[side] = SimulatedDecoder(
            side,
            simulated.probs_of,
            local_drafting(request.preset, request.sampling).probs,
            self.rng,
            token_ids,
            session=request.session,
            mass_after=simulated.mass_after,
            ahead=request.preset.ahead,
            length_limit=len(request.prompt_ids) + request.max_tokens,
            decode_s=simulated.step_s(0),
        )

    def _apply(self, side: Side, outputs: Sequence[SideOutput]) -> None:
        for output in outputs:
            match output:
                case ToPeer(message):
                    self._carry(side, message)
                case ToDecoder(message):
                    self._trace(side, "commit", self.time.now, self.time.now, message.base)
                    self.decoders[side].receive(message)
                case Commit() if side is Side.DEVICE:
                    self.commits.append((self.time.now, output))
                case Finish() if side is Side.DEVICE:
                    self.finish = output
                case Reconnect():
                    self._new_stream()

    def _new_stream(self) -> None:
        self.stream += 1
        self.cloud = None
        self.decoders.pop(Side.CLOUD, None)
        self.link.up.empty()
        self.link.down.empty()
        self.time.at(self.time.now + 0.001, self._connect)

    def _carry(self, sender: Side, message: PeerMessage) -> None:
        stream = self.stream
        way: Link = self.link.down if sender is Side.CLOUD else self.link.up
        arrival = way.send(self.size_of(message), self.time.now)
        self._trace(sender, type(message).__name__, self.time.now, arrival, message.base)

        def arrive() -> None:
            if stream == self.stream:
                self._deliver(sender.other, message)

        self.time.at(arrival, arrive)

    def _deliver(self, side: Side, message: PeerMessage) -> None:
        if isinstance(message, CollaborationOpen):
            self._open_cloud(message)
        elif (machine := self._machine(side)) is not None:
            self._apply(side, machine.receive(message, self.time.now))

    def _machine(self, side: Side) -> SideMachine | None:
        return self.device if side is Side.DEVICE else self.cloud

    def _trace(self, side: Side, what: str, start_s: float, end_s: float, position: int) -> None:
        if self.traced:
            self.spans.append(BusySpan(side, what, start_s, end_s, position))

    def _open_cloud(self, opening: CollaborationOpen) -> None:
        placement_policy, measuring = self.placement_policy_for(Side.CLOUD)
        request = opening.request
        self.cloud = SideMachine(
            Side.CLOUD,
            request,
            peer_log_mass=opening.log_mass,
            placement_policy=placement_policy,
            measurements=measuring,
            rng=self.rng,
        )
        text = (*request.prompt_ids, *request.committed_ids)
        self._open_decoder(Side.CLOUD, text)
        mass = self.sides[Side.CLOUD].mass_after(text)
        self._apply(Side.CLOUD, self.cloud.opened(mass, self.time.now))

    def _decode(self) -> None:
        for side, decoder in list(self.decoders.items()):
            if (step := decoder.begin()) is None:
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
        if (draft := decoder.end(step)) is None:
            return
        self._trace(side, "decode", start_s, self.time.now, draft.base)
        if (machine := self._machine(side)) is not None:
            self._apply(side, machine.drafted(draft, self.time.now))
