"""One request in virtual time: real state machines, a modelled link, distributions as functions.

A distribution depends on what the simulated KV cache holds, as in a real engine: a machine that
keeps a stale cache gets wrong text here too, or raises ProtocolError. Invariant: pure and seeded;
nothing sleeps and no clock is read, so a day of cuts takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from tandem.netem.link_model import Link, LinkPair
from tandem.simulation.simulated_drafts import ProbsOf, SimulatedDrafts, SimulatedKv
from tandem.simulation.virtual_time import Faults, VirtualTime
from tandem.specdec.cloud import CloudMachine, CloudModel
from tandem.specdec.edge import EdgeMachine
from tandem.specdec.events import (
    Commit,
    EdgeOutput,
    EdgeRequest,
    EdgeStats,
    Finish,
    Interrupt,
    Reconnect,
    Send,
)
from tandem.specdec.liveness import Liveness, LivenessTimes, LostCloud
from tandem.specdec.messages import CloudMessage, EdgeMessage, Open, Work
from tandem.specdec.verify_work import VerifyWork

Message = TypeVar("Message", bound=EdgeMessage | CloudMessage)


@dataclass(frozen=True, slots=True)
class ModelTimes:
    """Seconds per draft step, per pass over one token, and per further token in it."""

    draft_s: float = 0.024
    verify_first_s: float = 0.072
    verify_further_s: float = 0.003


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """What one simulated request did. `commits`: (virtual time, tokens, unverified)."""

    token_ids: tuple[int, ...]
    finish: Finish
    duration_s: float
    commits: tuple[tuple[float, Commit], ...]
    stats: EdgeStats


def simulate(
    request: EdgeRequest,
    draft_probs: ProbsOf,
    target_probs: ProbsOf,
    link: LinkPair,
    times: ModelTimes | None = None,
    faults: Faults | None = None,
    lost_cloud: LostCloud = LostCloud.WAIT,
    liveness_times: LivenessTimes | None = None,
    size_of: Callable[[EdgeMessage | CloudMessage], int] = lambda message: 64,
    completes_stop: Callable[[int], bool] = lambda token_id: False,
    exit_distributions: Sequence[ProbsOf] = (),
    exit_depths: Sequence[float] | None = None,
) -> SimulationResult:
    """Run one request to its end. `draft_probs`, `target_probs`: context ids to the distribution
    after sampling settings, float32 [vocabulary]; `exit_distributions` those of the target's early
    exits, each after that share of a pass (evenly by default). Raises ProtocolError when the
    machines stop making progress, or rely on KV entries that are not there."""
    liveness = Liveness(lost_cloud, liveness_times or LivenessTimes(), now=0.0)
    edge = EdgeMachine(request, liveness, completes_stop)
    times = times or ModelTimes()
    run = _Run(
        edge=edge,
        drafts=SimulatedDrafts(edge, draft_probs, times.draft_s),
        target_probs=target_probs,
        exit_distributions=exit_distributions,
        exit_depths=exit_depths or _evenly(len(exit_distributions)),
        link=link,
        times=times,
        size_of=size_of,
    )
    run.schedule(faults or Faults())
    return run.to_the_end()


def _evenly(exits: int) -> tuple[float, ...]:
    return tuple((index + 1) / (exits + 1) for index in range(exits))


@dataclass(slots=True)
class _Run:
    edge: EdgeMachine
    drafts: SimulatedDrafts
    target_probs: ProbsOf
    exit_distributions: Sequence[ProbsOf]
    exit_depths: Sequence[float]
    link: LinkPair
    times: ModelTimes
    size_of: Callable[[EdgeMessage | CloudMessage], int]
    time: VirtualTime = field(default_factory=VirtualTime)
    stream: int = 0
    cloud: CloudMachine | None = None
    cloud_kv: SimulatedKv = field(default_factory=SimulatedKv)
    finish: Finish | None = None
    commits: list[tuple[float, Commit]] = field(default_factory=list)

    def schedule(self, faults: Faults) -> None:
        faults.plan(self.time, self.link, self._reset, self._depart)
        self.time.at(0.0, self._connect)
        self.time.at(0.2, self._tick)

    def to_the_end(self) -> SimulationResult:
        while self.finish is None:
            self.time.run_next(self.edge.phase)
            self._draft()
            self._verify()
        prompt = len(self.edge.request.prompt_ids)
        token_ids, commits = self.edge.committed.since(prompt), tuple(self.commits)
        return SimulationResult(token_ids, self.finish, self.time.now, commits, self.edge.stats)

    def _tick(self) -> None:
        self._apply(self.edge.tick(self.time.now))
        self.time.at(self.time.now + 0.2, self._tick)

    def _reset(self) -> None:
        self._apply(self.edge.lost(self.time.now))

    def _depart(self) -> None:
        if self.cloud:
            self._to_edge([self.cloud.going_away(grace_s=1.0)])

    def _connect(self) -> None:
        self._apply(self.edge.connect(self.time.now))

    def _apply(self, outputs: Sequence[EdgeOutput]) -> None:
        for output in outputs:
            match output:
                case Send(message):
                    self._carry(self.link.up, message, self._at_cloud)
                case Commit():
                    self.commits.append((self.time.now, output))
                case Finish():
                    self.finish = output
                case Reconnect():
                    self._new_stream()
                case Interrupt(work):
                    self.drafts.interrupt(work)

    def _new_stream(self) -> None:
        self.stream += 1
        self.cloud = None
        self.link.up.empty()
        self.link.down.empty()
        self.time.at(self.time.now + 0.001, self._connect_if_waiting)

    def _connect_if_waiting(self) -> None:
        if self.edge.phase == "connecting":
            self._connect()

    def _carry(self, link: Link, message: Message, deliver: Callable[[Message], None]) -> None:
        stream = self.stream

        def arrive() -> None:
            if stream == self.stream:
                deliver(message)

        self.time.at(link.send(self.size_of(message), self.time.now), arrive)

    def _at_cloud(self, message: EdgeMessage) -> None:
        if isinstance(message, Open):
            model = CloudModel(
                model_name="simulated",
                vocabulary_hash=message.vocabulary_hash,
                vocabulary_size=message.vocabulary_size,
                context_length=1 << 20,
                eos_token_ids=self.edge.request.eos_token_ids,
                exits=len(self.exit_distributions),
            )
            self.cloud = CloudMachine(message, model)
            self.cloud_kv = SimulatedKv()
            self._to_edge([self.cloud.opened()])
        elif self.cloud:
            self._to_edge(self.cloud.receive(message))

    def _to_edge(self, messages: Sequence[CloudMessage]) -> None:
        for message in messages:
            self._carry(self.link.down, message, self._at_edge)

    def _at_edge(self, message: CloudMessage) -> None:
        self._apply(self.edge.receive(message, self.time.now))

    def _draft(self) -> None:
        while (work := self.edge.work(self.time.now)) is not None:
            self.drafts.start(work)
        if (number := self.drafts.begin_pass()) is not None:
            self.time.at(self.time.now + self.times.draft_s, lambda: self._drafted(number))

    def _drafted(self, number: int) -> None:
        for report in self.drafts.end_pass(number):
            outcome = (report.work, report.drafts, report.kv_length, report.draft_s)
            self._apply(self.edge.drafted(*outcome, self.time.now))

    def _verify(self) -> None:
        cloud = self.cloud
        work = cloud.work() if cloud else None
        if cloud is None or work is None:
            return
        times = self.times
        took_s = times.verify_first_s + (len(work.token_ids) - 1) * times.verify_further_s
        contexts = self._contexts(cloud, work)
        judgement = work.judge.judge(lambda row: self.target_probs(contexts[row]))

        def done() -> None:
            if cloud is self.cloud:
                self._to_edge(cloud.complete(judgement, Work(verify_s=took_s)))

        for index in work.early.exits if work.early else ():
            read_s = self.time.now + self.exit_depths[index] * took_s
            self.time.at(read_s, partial(self._read_exit, cloud, work, index, contexts))
        self.time.at(self.time.now + took_s, done)

    def _read_exit(
        self, cloud: CloudMachine, work: VerifyWork, index: int, contexts: Sequence[tuple[int, ...]]
    ) -> None:
        assert work.early is not None, "no exit is read"
        probs_of = self.exit_distributions[index]
        verdict = work.early.verdict(
            index,
            lambda row: probs_of(contexts[row]),
            lambda row: float(probs_of(contexts[row]).max()),
        )
        if cloud is self.cloud and verdict is not None:
            cloud.push_early_verdict(work, verdict)
            self._send_early(cloud)

    def _send_early(self, cloud: CloudMachine) -> None:
        """The next early verdict leaves when the link is free, unless the pass ends before."""
        if cloud is not self.cloud or not cloud.early_verdicts:
            return
        if self.link.down.free_at > self.time.now:
            self.time.at(self.link.down.free_at, partial(self._send_early, cloud))
            return
        self._to_edge([cloud.early_verdicts.pop()])
        self._send_early(cloud)

    def _contexts(self, cloud: CloudMachine, work: VerifyWork) -> list[tuple[int, ...]]:
        """The contexts of the distributions that the work asks for."""
        kv = self.cloud_kv
        kv.rewind(work.keep, work.path)
        contexts = work.contexts(kv.token_ids)
        fed = work.token_ids[: len(work.token_ids) - work.drafts]
        SimulatedKv((*kv.token_ids, *fed)).check(cloud.committed.since(0))
        kv.feed(work.token_ids, work.parents)
        return contexts
