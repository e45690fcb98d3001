"""Many edges and many verifiers in virtual time: who asks when, where each session goes, and how
long its tokens take. Pass budgets, turns of prompts and schedules are decided by the code that the
services run; answers go to the verifiers in turn, as gRPC's round_robin sends them to the replicas
of one name. Texts are not simulated: a draft is right by chance, as often as declared.

Invariant: a function of its plan; the same seed gives the same figures."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from dataclasses import replace
from math import ceil, inf
from random import Random

from lab.simulation.fleet_cloud import FleetCloud, FleetSession, Round
from lab.simulation.fleet_figures import FleetAnswer, FleetFigures, fleet_figures
from lab.simulation.fleet_plan import FleetPlan, TrafficKind
from lab.simulation.fleet_schedules import FleetSchedules

_ARRIVES, _OPENS, _TRIES, _FAILS, _STARTS, _SCALES, _WARM, _ENDS = range(8)
LOST, DRAINING = "lost", "draining"
"""Why a session moved."""
RETRY_S = 0.5
AT_ONCE = 2
RETRIES = 20
"""A session that finds no place tries others, so many at once, then each after so long."""
MOST = 200
FEW = 24


def simulate_fleet(plan: FleetPlan) -> FleetFigures:
    """Simulate a fleet; return the figures of the answers that begin after `warm_s`. Raises
    InvalidArgument naming a bad field."""
    plan.check()
    return _Fleet(plan).run()


def verifiers_needed(plan: FleetPlan, tpot_s: float, ttft_s: float) -> FleetFigures | None:
    """Return the figures with the fewest verifiers, at most MOST, that `keep` to these times; None
    if no number that was tried does. The number is found by doubling and halving, which takes more
    verifiers to be no worse. A few edges with a verifier each are tried first: what they cannot
    keep to, no fleet can."""
    few = min(plan.edges, FEW)
    if not simulate_fleet(replace(plan, edges=few, verifiers=few)).keeps(tpot_s, ttft_s):
        return None
    fails = 0
    keeps = 1
    while not (enough := simulate_fleet(replace(plan, verifiers=keeps))).keeps(tpot_s, ttft_s):
        if keeps == MOST:
            return None
        fails, keeps = keeps, min(MOST, 2 * keeps)
    while keeps - fails > 1:
        middle = (fails + keeps) // 2
        figures = simulate_fleet(replace(plan, verifiers=middle))
        if figures.keeps(tpot_s, ttft_s):
            keeps = middle
            enough = figures
        else:
            fails = middle
    return enough


class _Edge:
    __slots__ = ("acceptance_rate", "draft_s", "rtt_s")

    def __init__(self, plan: FleetPlan, source: Random) -> None:
        self.rtt_s = plan.rtt_s.draw(source)
        self.draft_s = plan.draft_s.draw(source)
        self.acceptance_rate = min(0.999, plan.acceptance_rate.draw(source))


class _Fleet:
    def __init__(self, plan: FleetPlan) -> None:
        self.plan = plan
        self.now = 0.0
        self.order, self.event = itertools.count(), -1
        self.source = Random(f"fleet {plan.seed}")
        self.rounds: list[Round] = []
        self.events: list[tuple[float, int, int, object, int]] = []
        """All others. These are many and far off; among the rounds, a heap apart, few is enough."""
        most = plan.verifiers if plan.scaling is None else plan.scaling.most
        self.full: set[int] = set()
        """Verifiers without room for one more session."""
        shared = plan, self.source, self.full, self.order, self.done
        self.clouds = [FleetCloud(number, *shared) for number in range(most)]
        for cloud in self.clouds[plan.verifiers :]:
            cloud.stop()
        self.edges = [_Edge(plan, self.source) for _ in range(plan.edges)]
        self.schedules = FleetSchedules(plan)
        self.turn = 0
        """The verifier that the next stream goes to, if it serves and has room."""
        self.tries: Counter[int] = Counter()
        self.moves: Counter[str] = Counter()
        self.refused = self.numbers = 0
        self.answers: list[FleetAnswer] = []
        self.starting = 0
        self.warm = (0, 0, 0, 0.0, 0.0, 0.0)
        """What `totals` had come to when the time began that counts."""
        self.verifier_s = self.counted_s = self.calm_since_s = 0.0

    def run(self) -> FleetFigures:
        plan = self.plan
        ends_s = self.plan.warm_s + self.plan.lasts_s
        self.at(plan.warm_s, _WARM, None)
        self.at(inf, _ENDS, None)
        self.begin()
        rounds = self.rounds
        replaced = heapq.heapreplace
        while True:
            while rounds and rounds[0] < self.events[0]:
                self.now, event, cloud, life = rounds[0]
                if self.now > ends_s:
                    break
                # Others join behind the event under way, which gives its place to the next.
                following = cloud.goes_on(self.now, event) if cloud.life == life else None
                if following is None:
                    heapq.heappop(rounds)
                else:
                    replaced(rounds, following)
            self.now, self.event, kind, subject, number = heapq.heappop(self.events)
            if self.now > ends_s:
                break
            self.rare(kind, subject, number)
        self.now = ends_s
        ended = self.totals()
        totals = [after - before for after, before in zip(ended, self.warm, strict=True)]
        moves = dict(self.moves)
        return fleet_figures(plan, self.answers, totals, moves, self.refused, ended[0])

    def totals(self) -> tuple[int, int, int, float, float, float]:
        """Return rounds, tokens and passes so far, and seconds: of verifiers that serve or start,
        of their passes, and of their draft steps."""
        self.count_verifiers()
        clouds = self.clouds
        passes = sum(cloud.passes for cloud in clouds)
        rounds, tokens = sum(c.rounds for c in clouds), sum(c.tokens for c in clouds)
        passing_s = sum(cloud.passing_s for cloud in clouds)
        drafting_s = sum(cloud.drafting_s for cloud in clouds)
        return rounds, tokens, passes, self.verifier_s, passing_s, drafting_s

    def begin(self) -> None:
        plan = self.plan
        if plan.traffic.kind is TrafficKind.CHATS:
            for number in range(plan.edges):
                self.at(self.source.uniform(0, plan.traffic.per_edge_s), _ARRIVES, None, number)
        else:
            self.arrivals = plan.traffic.arrivals(plan.edges, self.source)
            self.at(next(self.arrivals), _ARRIVES, None, self.source.randrange(plan.edges))
        if plan.failure_s < inf:
            for cloud in self.clouds:
                self.at(self.source.expovariate(1 / plan.failure_s), _FAILS, cloud)
        if plan.scaling is not None:
            self.at(plan.scaling.every_s, _SCALES, None)

    def at(self, moment: float, kind: int, subject: object, number: int = 0) -> None:
        heapq.heappush(self.events, (moment, next(self.order), kind, subject, number))

    def rare(self, kind: int, subject: object, number: int) -> None:
        """Handle an event that happens once an answer, or less often."""
        match subject:
            case FleetSession() if kind == _OPENS:
                self.opens(subject, number)
            case FleetSession():
                self.connect(subject)
            case FleetCloud() if kind == _FAILS:
                self.fails(subject)
            case FleetCloud() if kind == _STARTS:
                self.starts(subject, scaled=bool(number))
            case _ if kind == _ARRIVES:
                self.arrives(number)
            case _ if kind == _WARM:
                self.warm = self.totals()
            case _:
                self.scales()

    def arrives(self, edge_number: int) -> None:
        plan = self.plan
        edge = self.edges[edge_number]
        traffic = plan.traffic
        self.numbers += 1
        session = FleetSession(
            self.numbers,
            edge_number,
            self.now,
            edge.rtt_s,
            edge.draft_s,
            edge.acceptance_rate,
            max(1, round(traffic.prompt_tokens.draw(self.source))),
            max(2, round(traffic.answer_tokens.draw(self.source))),
        )
        self.connect(session)
        if traffic.kind is not TrafficKind.CHATS:
            self.at(next(self.arrivals), _ARRIVES, None, self.source.randrange(plan.edges))

    def connect(self, session: FleetSession) -> None:
        """Open a stream to the next verifier in turn."""
        session.place = self.next_in_turn()
        self.at(self.now + session.rtt_s / 2, _OPENS, session, session.stream)

    def next_in_turn(self) -> int:
        """Return the next verifier that serves and has room; where none does, the next."""
        count = len(self.clouds)
        turns = [(self.turn + step) % count for step in range(count)]
        open_ones = (n for n in turns if self.clouds[n].serving and n not in self.full)
        number = next(open_ones, turns[0])
        self.turn = (number + 1) % count
        return number

    def opens(self, session: FleetSession, stream: int) -> None:
        if session.stream != stream:
            return
        cloud = self.clouds[session.place]
        if not cloud.serving or cloud.number in self.full:
            self.refuse(session, cloud)
            return
        self.tries.pop(session.number, None)
        edge_s = self.now - session.rtt_s / 2
        session.begin(cloud, self.schedules.of(session, cloud, self.now), self.now, edge_s)
        if (following := cloud.join(session, self.now, self.event)) is not None:
            heapq.heappush(self.rounds, following)

    def refuse(self, session: FleetSession, cloud: FleetCloud) -> None:
        """Handle a session that found no verifier or no room: its edge looks for another, soon or
        after a while."""
        self.tries[session.number] += 1
        if self.tries[session.number] > RETRIES:
            self.refused += self.now >= self.plan.warm_s
            self.over(session)
        elif cloud.serving or self.tries[session.number] > AT_ONCE:
            self.at(self.now + RETRY_S, _TRIES, session)
        else:
            self.leave(session, LOST)

    def leave(self, session: FleetSession, reason: str) -> None:
        """Move a session for its edge: it resumes elsewhere, from what is committed."""
        if session.cloud is not None:
            session.cloud.leave(session)
        self.moves[reason] += 1
        self.connect(session)

    def done(self, session: FleetSession, now: float) -> None:
        if session.asked_s >= self.plan.warm_s:
            down_s = session.rtt_s / 2
            ttft_s = session.first_s + down_s - session.asked_s
            tpot_s = (now - session.first_s) / (session.wanted - 1)
            self.answers.append(FleetAnswer(session.edge, ttft_s, tpot_s, session.wanted))
        self.over(session)

    def over(self, session: FleetSession) -> None:
        self.tries.pop(session.number, None)
        traffic = self.plan.traffic
        if traffic.kind is TrafficKind.CHATS:
            think_s = self.source.expovariate(1 / traffic.per_edge_s)
            self.at(self.now + session.rtt_s / 2 + think_s, _ARRIVES, None, session.edge)

    def fails(self, cloud: FleetCloud) -> None:
        self.at(self.now + self.source.expovariate(1 / self.plan.failure_s), _FAILS, cloud)
        if not cloud.serving:
            return
        lost = sorted(cloud.sessions, key=lambda session: session.number)
        cloud.stop()
        self.at(self.now + self.plan.repair_s, _STARTS, cloud)
        for session in lost:
            self.leave(session, LOST)

    def starts(self, cloud: FleetCloud, scaled: bool) -> None:
        self.count_verifiers()
        self.starting -= scaled
        cloud.alive = cloud.serving = True

    def count_verifiers(self) -> None:
        """Add up the seconds of verifiers, before their number changes."""
        active = sum(cloud.alive for cloud in self.clouds) + self.starting
        self.verifier_s += active * (self.now - self.counted_s)
        self.counted_s = self.now

    def scales(self) -> None:
        scaling = self.plan.scaling
        assert scaling is not None, "only with an autoscaler"
        self.at(self.now + scaling.every_s, _SCALES, None)
        self.count_verifiers()
        serving = [cloud for cloud in self.clouds if cloud.serving]
        sessions = sum(len(cloud.sessions) for cloud in self.clouds)
        wanted = min(scaling.most, max(scaling.least, ceil(sessions / scaling.sessions_each)))
        have = len(serving) + self.starting
        if wanted >= have:
            self.calm_since_s = self.now
        idle = [cloud for cloud in self.clouds if not cloud.alive]
        for cloud in idle[self.starting :][: max(0, wanted - have)]:
            self.starting += 1
            self.at(self.now + scaling.start_s, _STARTS, cloud, 1)
        if self.now - self.calm_since_s >= scaling.calm_s:
            for cloud in serving[wanted:]:
                self.drain(cloud)

    def drain(self, cloud: FleetCloud) -> None:
        """Drain a verifier: move its sessions elsewhere, then stop it."""
        cloud.serving = False
        for session in sorted(cloud.sessions, key=lambda session: session.number):
            self.leave(session, DRAINING)
        cloud.stop()
