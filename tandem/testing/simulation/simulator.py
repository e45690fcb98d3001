"""Requests in virtual time: real state machines, modelled links, distributions as functions.

A distribution depends on what the simulated KV cache holds, as in a real engine: a machine that
keeps a stale cache gets wrong text here too, or raises ProtocolError. Invariant: pure and seeded;
nothing sleeps and no clock is read, so a day of cuts takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tandem.control.estimates import WarmStart
from tandem.netem.link_model import LinkPair, LinkShape
from tandem.specdec.edge import EdgeMachine
from tandem.specdec.edge_stats import EdgeStats
from tandem.specdec.events import Commit, EdgeRequest, Finish
from tandem.specdec.liveness import Liveness, LivenessTimes, LostCloud
from tandem.specdec.messages import CloudMessage, EdgeMessage
from tandem.testing.simulation.model_times import ModelTimes
from tandem.testing.simulation.simulated_drafts import ProbsOf, SimulatedDrafts
from tandem.testing.simulation.simulated_session import SimulatedSession
from tandem.testing.simulation.simulated_verifier import SimulatedVerifier, TargetModel
from tandem.testing.simulation.virtual_time import Faults, VirtualTime

SizeOf = Callable[[EdgeMessage | CloudMessage], int]


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
) -> SimulationResult:
    """Run one request to its end. `draft_probs`, `target_probs`: context ids to the distribution
    after sampling settings, float32 [vocabulary]; `exit_distributions` those of the target's early
    exits, spread evenly over a pass. Raises ProtocolError when the
    machines stop making progress, or rely on KV entries that are not there."""
    exits = len(exit_distributions)
    depths = tuple((index + 1) / (exits + 1) for index in range(exits))
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
    requests: Sequence[SimulatedRequest], times: ModelTimes
) -> list[SimulationResult]:
    """Run requests over one verifier, each on an edge of its own, until all are over. Raises as
    `simulate`."""
    time = VirtualTime()
    sessions: list[SimulatedSession] = []
    verifier = SimulatedVerifier(
        time, times, lambda: any(session.drafts.under_way for session in sessions)
    )
    sessions += [_begin(request, times, time, verifier) for request in requests]
    open_sessions = list(sessions)
    while open_sessions:
        time.run_next(open_sessions[0].edge.phase)
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
        times=times,
    )
    session.schedule(request.start_s, request.faults, request.link_changes)
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
