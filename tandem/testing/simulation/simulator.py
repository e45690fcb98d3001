"""Requests in virtual time: real state machines, modelled links, distributions as functions.

A distribution depends on what the simulated KV cache holds, as in a real engine: a machine that
keeps a stale cache gets wrong text here too, or raises ProtocolError. Invariant: pure and seeded;
nothing sleeps and no clock is read, so a day of cuts takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tandem.control.estimates import WarmStart
from tandem.netem.link_model import LinkPair, LinkShape
from tandem.netem.link_trace import LinkTrace
from tandem.specdec.edge import EdgeMachine, EdgeStats
from tandem.specdec.events import Commit, EdgeRequest, Finish
from tandem.specdec.liveness import Liveness, LivenessTimes, LostCloud
from tandem.specdec.messages import CloudMessage, EdgeMessage
from tandem.testing.simulation.simulated_drafts import ProbsOf, SimulatedDrafts
from tandem.testing.simulation.simulated_session import SimulatedSession
from tandem.testing.simulation.simulated_verifier import SimulatedVerifier, TargetModel
from tandem.testing.simulation.virtual_time import Faults, VirtualTime

SizeOf = Callable[[EdgeMessage | CloudMessage], int]


@dataclass(frozen=True, slots=True)
class ModelTimes:
    """Seconds per draft step, per pass over one token, and per further token in it, whichever
    session it is of. `slowed`: where both sides share processors, a step or pass that begins beside
    one of the other side takes so many times as long. `exit_s`: what each early exit that is read
    adds to a pass; `branch_s`: what each further branch adds to a draft step. `layers_s`: where the
    target is split, a pass of its first layers at the edge, whose hidden states have `hidden_size`
    numbers; the pass in the cloud is then that of the others. `cloud_draft_s`: a step of the draft
    model in the cloud, where presets have one; None: a fifth of `draft_s`. A pass waits for the
    sessions that draft there. `offers_cloud_drafts`: whether it is there for presets that may have
    drafts of the cloud, and demand none. `loaded`: so many times as long all takes that begins
    while other load is there, which comes after each `load_every_s` seconds and stays as long; 0:
    there is none."""

    draft_s: float = 0.024
    verify_first_s: float = 0.072
    verify_further_s: float = 0.003
    slowed: float = 1.0
    layers_s: float = 0.0
    hidden_size: int = 1
    exit_s: float = 0.0
    branch_s: float = 0.0
    cloud_draft_s: float | None = None
    offers_cloud_drafts: bool = False
    loaded: float = 1.0
    load_every_s: float = 0.0

    @property
    def cloud_step_s(self) -> float:
        """A step of the draft model in the cloud."""
        return self.draft_s / 5 if self.cloud_draft_s is None else self.cloud_draft_s

    def pass_s(self, tokens: int) -> float:
        """Return the duration of a pass of the target over `tokens` tokens."""
        return self.verify_first_s + (tokens - 1) * self.verify_further_s

    def load_at(self, moment_s: float) -> float:
        """Return how many times as long a step or pass takes that begins at a moment."""
        there = self.load_every_s > 0 and int(moment_s / self.load_every_s) % 2 == 1
        return self.loaded if there else 1.0


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """What one simulated request did. `commits`: (virtual time, tokens, unverified)."""

    token_ids: tuple[int, ...]
    finish: Finish
    duration_s: float
    commits: tuple[tuple[float, Commit], ...]
    stats: EdgeStats
    measured: WarmStart
    """What it measured, for the requests after it."""


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """One request of several over a verifier that they share: its models, its link, and what
    happens to that. `start_s`: when it is asked. `link_changes`: other settings of the link,
    each from a moment on."""

    request: EdgeRequest
    draft_probs: ProbsOf
    target: TargetModel
    link: LinkPair
    start_s: float = 0.0
    faults: Faults = field(default_factory=Faults)
    link_changes: tuple[tuple[float, LinkShape], ...] = ()
    trace: LinkTrace | None = None
    lost_cloud: LostCloud = LostCloud.WAIT
    liveness_times: LivenessTimes = field(default_factory=LivenessTimes)
    size_of: SizeOf = lambda message: 64
    completes_stop: Callable[[int], bool] = lambda token_id: False


def simulate(
    request: EdgeRequest,
    draft_probs: ProbsOf,
    target_probs: ProbsOf,
    link: LinkPair,
    times: ModelTimes | None = None,
    faults: Faults | None = None,
    lost_cloud: LostCloud = LostCloud.WAIT,
    liveness_times: LivenessTimes | None = None,
    size_of: SizeOf = lambda message: 64,
    completes_stop: Callable[[int], bool] = lambda token_id: False,
    exit_distributions: Sequence[ProbsOf] = (),
    exit_depths: Sequence[float] | None = None,
) -> SimulationResult:
    """Run one request to its end. `draft_probs`, `target_probs`: context ids to the distribution
    after sampling settings, float32 [vocabulary]; `exit_distributions` those of the target's early
    exits, each after that share of a pass (evenly by default). Raises ProtocolError when the
    machines stop making progress, or rely on KV entries that are not there."""
    depths = exit_depths or _evenly(len(exit_distributions))
    simulated = SimulatedRequest(
        request,
        draft_probs,
        TargetModel(target_probs, exit_distributions, depths),
        link,
        faults=faults or Faults(),
        lost_cloud=lost_cloud,
        liveness_times=liveness_times or LivenessTimes(),
        size_of=size_of,
        completes_stop=completes_stop,
    )
    return simulate_together([simulated], times or ModelTimes())[0]


def simulate_together(
    requests: Sequence[SimulatedRequest], times: ModelTimes, until_s: float = float("inf")
) -> list[SimulationResult]:
    """Run requests over one verifier, each on an edge of its own, until all are over, or until a
    moment for those that are not: they end as cancelled. Raises as `simulate`."""
    time = VirtualTime()
    sessions: list[SimulatedSession] = []

    def slowed() -> float:
        beside = any(session.drafts.under_way for session in sessions)
        return times.load_at(time.now) * (times.slowed if beside else 1.0)

    verifier = SimulatedVerifier(
        time,
        times.pass_s,
        slowed,
        times.exit_s,
        times.cloud_step_s,
        offers_drafts=times.offers_cloud_drafts,
    )
    sessions += [_begin(request, times, time, verifier) for request in requests]
    open_sessions = list(sessions)
    while open_sessions:
        time.run_next(open_sessions[0].edge.phase)
        if time.now >= until_s:
            for session in open_sessions:
                session.cancel()
        open_sessions = [session for session in open_sessions if session.finish is None]
    return [_result(session) for session in sessions]


def _begin(
    request: SimulatedRequest, times: ModelTimes, time: VirtualTime, verifier: SimulatedVerifier
) -> SimulatedSession:
    liveness = Liveness(request.lost_cloud, request.liveness_times, now=request.start_s)
    edge = EdgeMachine(request.request, liveness, request.completes_stop)
    session = SimulatedSession(
        edge=edge,
        drafts=SimulatedDrafts(edge, request.draft_probs, times.draft_s),
        target=request.target,
        link=request.link,
        size_of=request.size_of,
        verifier=verifier,
        time=time,
        draft_s=times.draft_s,
        slowed=times.slowed,
        load_at=times.load_at,
        layers_s=times.layers_s,
        hidden_size=times.hidden_size,
        branch_s=times.branch_s,
    )
    session.schedule(request.start_s, request.faults, request.link_changes, trace=request.trace)
    return session


def _result(session: SimulatedSession) -> SimulationResult:
    edge = session.edge
    commits = tuple(session.commits)
    assert session.finish is not None, "the session is over"
    token_ids = edge.committed.since(len(edge.request.prompt_ids))
    measured = edge.controller.measured(session.ended_s)
    return SimulationResult(
        token_ids, session.finish, session.ended_s, commits, edge.stats, measured
    )


def _evenly(exits: int) -> tuple[float, ...]:
    return tuple((index + 1) / (exits + 1) for index in range(exits))
