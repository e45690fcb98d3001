"""One answer from documents on two or more sides in virtual time: real machines, modelled links.
Invariant: pure and seeded; nothing sleeps and no clock is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from lab.simulation.simulated_decoder import LocalProbsOf, SimulatedDecoder, SimulatedStep
from lab.simulation.virtual_time import Faults, VirtualTime
from tandem.core.randomness import RandomSource, SeededRandom
from tandem.netem.link_model import Link, LinkPair
from tandem.specdec.events import Commit, Finish, Reconnect
from tandem.specdec.liveness import Liveness, LivenessTimes, LostCloud, Phase
from tandem.two_sided.many_sides import FromLink, ManySidesMachine, ToLink
from tandem.two_sided.protocol.counters import AggregationStats, MeasurementSink
from tandem.two_sided.protocol.local_drafting import local_drafting
from tandem.two_sided.protocol.messages import (
    AggregationRequest,
    CollaborationOpen,
    PeerMessage,
    ToDecoder,
    ToPeer,
)
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.placement import PlacementPolicy
from tandem.two_sided.protocol.presets import AggregationMode
from tandem.two_sided.protocol.side_machine import SideMachine
from tandem.two_sided.serving.device_session import DeviceOutput

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

    side: int
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
    stats: dict[int, AggregationStats]
    rollbacks: dict[int, int]
    spans: tuple[BusySpan, ...]


class PlacementFor(Protocol):
    """Makes one side's placement policy and the recipient of its measurements."""

    def __call__(self, side: Side) -> tuple[PlacementPolicy | None, MeasurementSink | None]: ...


def no_placement(side: Side) -> tuple[PlacementPolicy | None, MeasurementSink | None]:
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
    others: Sequence[tuple[SimulatedSide, LinkPair]] = (),
) -> TwoSidedAnswer:
    """Run one request to its end; `others`: the sides beyond the cloud, each at its link. `faults`
    are those of the cloud and its link. Raises ProtocolError when the machines stop making
    progress."""
    run = _Run(
        request=request,
        sides=(device, cloud, *(side for side, _ in others)),
        links=(link, *(side_link for _, side_link in others)),
        size_of=size_of,
        placement_policy_for=placement_policy_for,
        rng=rng or SeededRandom(request.seed),
        traced=traced,
    )
    times = liveness_times or LivenessTimes()
    lives = [Liveness(lost_cloud, times, now=0.0) for _ in run.links]
    log_mass = device.mass_after(request.prompt_ids)
    if request.preset.mode is AggregationMode.DEVICE_COIN:
        run.device = ManySidesMachine(
            request, log_mass=log_mass, others=lives, completes_stop=completes_stop, rng=rng
        )
    else:
        placement_policy, measuring = placement_policy_for(Side.DEVICE)
        run.device = SideMachine(
            Side.DEVICE,
            request,
            log_mass=log_mass,
            liveness=lives[0],
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
    sides: Sequence[SimulatedSide]
    links: Sequence[LinkPair]
    size_of: Callable[[PeerMessage], int]
    placement_policy_for: PlacementFor
    rng: RandomSource
    traced: bool
    device: SideMachine | ManySidesMachine = field(init=False)
    time: VirtualTime = field(default_factory=VirtualTime)
    stream: int = 0
    machines: dict[int, SideMachine] = field(default_factory=dict)
    """Of the other sides, by their numbers."""
    decoders: dict[int, SimulatedDecoder] = field(default_factory=dict)
    steps: Counter[int] = field(default_factory=Counter)
    rollbacks: dict[int, int] = field(default_factory=dict)
    finish: Finish | None = None
    commits: list[tuple[float, Commit]] = field(default_factory=list)
    spans: list[BusySpan] = field(default_factory=list)

    def schedule(self, faults: Faults) -> None:
        self.rollbacks |= dict.fromkeys(range(len(self.sides)), 0)
        faults.plan(self.time, self.links[0], self._reset, self._depart)
        self.time.at(0.0, self._begin)
        self.time.at(TICK_S, self._tick)

    def to_the_end(self) -> TwoSidedAnswer:
        while self.finish is None:
            self.time.run_next(self.device.phase)
            self._decode()
        for side, decoder in self.decoders.items():
            self.rollbacks[side] += decoder.rollbacks
        stats = {Side.DEVICE.value: self.device.stats}
        stats |= {number: machine.stats for number, machine in self.machines.items()}
        return TwoSidedAnswer(
            self.device.committed.since(len(self.request.prompt_ids)),
            self.finish,
            self.time.now,
            tuple(self.commits),
            {number: stats.get(number, AggregationStats()) for number in range(len(self.sides))},
            self.rollbacks,
            tuple(self.spans),
        )

    def _tick(self) -> None:
        self._apply(Side.DEVICE, self.device.tick(self.time.now))
        self.time.at(self.time.now + TICK_S, self._tick)

    def _reset(self) -> None:
        self._apply(Side.DEVICE, self.device.lost(self.time.now))

    def _depart(self) -> None:
        if cloud := self.machines.get(Side.CLOUD):
            self._apply(Side.CLOUD, cloud.going_away(1.0, self.time.now))

    def _begin(self) -> None:
        self._open_decoder(Side.DEVICE, self.request.prompt_ids)
        self._connect()

    def _connect(self) -> None:
        if self.device.phase is Phase.CONNECTING:
            self._apply(Side.DEVICE, self.device.connect(self.time.now))

    def _open_decoder(self, number: int, token_ids: tuple[int, ...]) -> None:
        request = self.request
        side = self.sides[number]
        self.decoders[number] = SimulatedDecoder(
            Side(min(number, Side.CLOUD)),
            side.probs_of,
            local_drafting(request.preset, request.sampling).probs,
            self.rng,
            token_ids,
            session=request.session,
            mass_after=side.mass_after,
            ahead=request.preset.ahead,
            length_limit=len(request.prompt_ids) + request.max_tokens,
            decode_s=side.step_s(0),
        )

    def _apply(self, number: int, outputs: Sequence[DeviceOutput]) -> None:
        for output in outputs:
            match output:
                case ToPeer(ToLink(link, message)):
                    self._carry(number, message, link)
                case ToPeer(message):
                    self._carry(number, message)
                case ToDecoder(message):
                    self._trace(number, "commit", self.time.now, self.time.now, message.base)
                    self.decoders[number].receive(message)
                case Commit() if number == Side.DEVICE:
                    self.commits.append((self.time.now, output))
                case Finish() if number == Side.DEVICE:
                    self.finish = output
                case Reconnect():
                    self._new_stream()

    def _new_stream(self) -> None:
        self.stream += 1
        for number, link in enumerate(self.links, start=Side.CLOUD):
            self._drop(number)
            link.up.empty()
            link.down.empty()
        self.time.at(self.time.now + 0.001, self._connect)

    def _drop(self, number: int) -> None:
        self.machines.pop(number, None)
        decoder = self.decoders.pop(number, None)
        self.rollbacks[number] += decoder.rollbacks if decoder else 0

    def _carry(self, sender: int, message: PeerMessage, link: int = 0) -> None:
        stream = self.stream
        to_device = sender != Side.DEVICE
        number = sender if to_device else Side.CLOUD + link  # of the other end of the link
        pair = self.links[number - Side.CLOUD]
        way: Link = pair.down if to_device else pair.up
        arrival = way.send(self.size_of(message), self.time.now)
        self._trace(sender, type(message).__name__, self.time.now, arrival, message.base)

        def arrive() -> None:
            if stream != self.stream:
                return
            if to_device:
                self._apply(Side.DEVICE, self._at_device(message, number - Side.CLOUD))
            else:
                self._deliver(number, message)

        self.time.at(arrival, arrive)

    def _at_device(self, message: Any, link: int) -> Sequence[DeviceOutput]:
        if isinstance(self.device, ManySidesMachine):
            return self.device.receive(FromLink(link, message), self.time.now)
        return self.device.receive(message, self.time.now)

    def _deliver(self, number: int, message: PeerMessage) -> None:
        if isinstance(message, CollaborationOpen):
            self._open_other(number, message)
        elif (machine := self.machines.get(number)) is not None:
            self._apply(number, machine.receive(message, self.time.now))

    def _trace(self, number: int, what: str, start_s: float, end_s: float, position: int) -> None:
        if self.traced:
            self.spans.append(BusySpan(number, what, start_s, end_s, position))

    def _open_other(self, number: int, opening: CollaborationOpen) -> None:
        placement_policy, measuring = self.placement_policy_for(Side.CLOUD)
        request = opening.request
        self.machines[number] = machine = SideMachine(
            Side.CLOUD,
            request,
            peer_log_mass=opening.log_mass,
            placement_policy=placement_policy,
            measurements=measuring,
            rng=self.rng,
        )
        text = (*request.prompt_ids, *request.committed_ids)
        self._open_decoder(number, text)
        mass = self.sides[number].mass_after(text)
        self._apply(number, machine.opened(mass, self.time.now))

    def _decode(self) -> None:
        for number, decoder in list(self.decoders.items()):
            if (step := decoder.begin()) is None:
                continue
            decoder.decode_s = self.sides[number].step_s(self.steps[number])
            self.steps[number] += 1
            end = self.time.now + decoder.decode_s
            self.time.at(end, partial(self._decoded, number, decoder, step, self.time.now))

    def _decoded(
        self, number: int, decoder: SimulatedDecoder, step: SimulatedStep, start_s: float
    ) -> None:
        if decoder is not self.decoders.get(number):
            return
        if (draft := decoder.end(step)) is None:
            return
        self._trace(number, "decode", start_s, self.time.now, draft.base)
        machine = self.device if number == Side.DEVICE else self.machines.get(number)
        if machine is not None:
            self._apply(number, machine.drafted(draft, self.time.now))
