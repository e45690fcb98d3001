"""A verifier of a simulated fleet: the sessions that share its passes. A round of a session is one
step of this file's two loops; what it drafted meanwhile is arithmetic, not events.

Invariants: one pass at a time, which takes all that is due when it starts; how many drafts it takes
of a session is the real `PassBudget`'s decision, when pieces of prompts go in `PrefillTurns`'s, and
how many tokens the cloud drafts itself `CloudDraftBudget`'s. It drafts them in step, before the
pass: that takes the fewest passes, and so it is the strongest that a cloud which drafts can be."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from math import inf
from random import Random

from lab.simulation.fleet_plan import FleetPlan
from lab.simulation.recent_passes import RecentPasses
from tandem.control.acceptance import SessionAcceptanceRate
from tandem.control.cloud_draft_budget import CloudDraftBudget
from tandem.control.pass_budget import PassBudget
from tandem.runtime.chunked_prefill import CHUNK_ROWS, CHUNKS_ALONE, PrefillTurns
from tandem.specdec.choices import Schedule
from tandem.specdec.cloud_drafting import PROBE_LENGTH, probe_interval

Round = tuple[float, int, "FleetCloud", int]
"""The end of a verifier's pass, or drafts that come to it: when, which of all events, the verifier,
and which of its lives is meant."""


class FleetSession:
    """One answer of one edge. Positions count the answer's tokens. Since the last correction, or
    since the cloud overtook it, the i-th draft after `base`, up to where the edge had drafted by
    then, arrives at `origin_s` + i·`draft_s`."""

    __slots__ = (
        *("acceptance_rate", "draft_s", "edge", "number", "rtt_s", "wanted"),
        *("asked_s", "first_s", "cloud", "place", "prompt_left", "prompt_tokens", "stream"),
        *("goes_on", "in_rounds", "awaited", "chunk", "round_s", "window"),
        *("base", "committed", "due_s", "estimate", "origin_s", "taken"),
        *("by_cloud", "cloud_estimate", "rested"),
    )

    def __init__(
        self,
        number: int,
        edge: int,
        asked_s: float,
        rtt_s: float,
        draft_s: float,
        acceptance_rate: float,
        prompt_tokens: int,
        wanted: int,
    ) -> None:
        self.number = number
        self.edge = edge
        self.asked_s = asked_s
        self.rtt_s = rtt_s
        self.draft_s = draft_s
        self.acceptance_rate = acceptance_rate
        self.prompt_tokens = self.prompt_left = prompt_tokens
        self.wanted = wanted
        self.committed = 0
        self.first_s = -1.0
        self.cloud: FleetCloud | None = None
        self.place = 0
        """The verifier that its stream goes to."""
        self.estimate: SessionAcceptanceRate | None = None
        self.cloud_estimate: SessionAcceptanceRate | None = None
        self.by_cloud = False
        """Whether the drafts that the pass takes are the cloud's own."""
        self.rested = 0
        """Passes in a row before which no draft of the cloud was worth its time."""
        self.stream = self.window = self.chunk = self.taken = self.base = 0
        self.goes_on = True
        self.in_rounds = False
        self.awaited = 1
        self.origin_s = self.due_s = self.round_s = 0.0

    def begin(self, cloud: FleetCloud, schedule: Schedule, now: float, edge_s: float) -> None:
        """Begin at a verifier that the stream has reached, with a prompt and what is committed to
        feed; the edge began to draft at `edge_s`."""
        self.cloud = cloud
        self.window = schedule.window
        self.chunk = schedule.chunk
        self.in_rounds = schedule.stop_and_wait and schedule.window > 0
        self.awaited = schedule.chunk if self.in_rounds else 1
        self.round_s = schedule.chunk * self.draft_s
        self.goes_on = schedule.decode_when_idle or not schedule.window
        self.prompt_left = self.prompt_tokens + self.committed
        self.base = self.committed
        self.origin_s = edge_s + self.rtt_s / 2
        self.estimate = SessionAcceptanceRate(cloud.budget.acceptance) if cloud.in_parts else None
        if (drafts := cloud.cloud_drafts) is not None:
            self.cloud_estimate = SessionAcceptanceRate(drafts.acceptance)
            self.rested = 0
        self.due_s = now


class FleetCloud:
    """`full` has this cloud's number while it has no room; `order` numbers the events of the whole
    fleet; `done(session, now)`: its answer is complete, at the cloud."""

    __slots__ = (
        *("cloud_drafts", "drafting_s", "passing_s"),
        *("alive", "budget", "in_parts", "life", "number", "passes", "recent", "rounds", "serving"),
        *("sessions", "tokens", "_began_s", "_coming", "_done", "_draw", "_ends", "_full"),
        *("_hit_rate", "_jitter_s", "_order", "_passing", "_piece", "_plan", "_prompts"),
        *("_some_left", "_turns", "_usual_of", "_usual_s", "_waiting"),
    )

    def __init__(
        self,
        number: int,
        plan: FleetPlan,
        source: Random,
        full: set[int],
        order: Iterator[int],
        done: Callable[[FleetSession, float], None],
    ) -> None:
        self.number = number
        self._plan = plan
        self._full = full
        self._order = order
        self._done = done
        self._draw = source.random
        self._jitter_s = plan.jitter_s
        self._hit_rate = plan.hit_rate if plan.preset.branch_tokens else 0.0
        self.in_parts = plan.preset.verify_settings.allows_partial_verification
        self.budget, self.recent = PassBudget(), RecentPasses()
        self.cloud_drafts: CloudDraftBudget | None = None
        if plan.preset.drafts_in_cloud:
            self.cloud_drafts = CloudDraftBudget(self.budget)
        self.drafting_s = self.passing_s = 0.0
        """Seconds of draft steps and of passes, so far."""
        self.sessions: set[FleetSession] = set()
        self.serving = True
        self.alive = True
        self._ends = -1
        """The event by which the pass under way ends."""
        self.passes = self.rounds = self.tokens = self.life = 0
        self._began_s = self._usual_s = 0.0
        self._usual_of = 0
        """The pass that had been made so often when `_usual_s` was what one takes."""
        self._coming: list[tuple[float, int, FleetSession, int]] = []
        """A heap: when drafts come that a session waits for, by which event, and its stream. While
        a pass runs they concern nobody: the verifier's next event takes up what has come."""
        self._passing: list[FleetSession] = []
        self._waiting: list[FleetSession] = []
        self._some_left = False
        """Whether a session that waits may have gone elsewhere."""
        self._prompts: deque[FleetSession] = deque()
        self._turns = PrefillTurns()
        self._piece: tuple[FleetSession, int] | None = None

    def goes_on(self, now: float, event: int) -> Round | None:
        """Handle the event by which the pass ends, or by which drafts come to a verifier without a
        pass. Return what comes next."""
        if event == self._ends:
            self._end_pass(now, event)
        elif self._ends < 0:
            self._drafts_come(now, event)
        else:
            return None
        return self._next(now)

    def _next(self, now: float) -> Round | None:
        """Return the end of the pass that starts now, if anything is due, else when drafts come."""
        if (self._waiting or self._prompts) and (took_s := self._start_pass(now)) < inf:
            self._ends = next(self._order)
            return now + took_s, self._ends, self, self.life
        if not self._coming:
            return None
        moment, event, *_ = self._coming[0]
        return moment, event, self, self.life

    def join(self, session: FleetSession, now: float, event: int) -> Round | None:
        """Let a session join: with this event its prompt, which is its first work, is due. Return
        what comes next if no pass is under way."""
        self._drafts_come(now, event)
        self.sessions.add(session)
        if len(self.sessions) >= self._plan.max_sessions:
            self._full.add(self.number)
        if session.prompt_left > CHUNK_ROWS:
            self._prompts.append(session)
        else:
            self._waiting.append(session)
        return self._next(now) if self._ends < 0 else None

    def _drafts_come(self, now: float, event: int) -> None:
        """Take in the drafts up to this event that sessions waited for."""
        coming = self._coming
        until = (now, event + 1)
        while coming and coming[0] < until:
            moment, _, session, stream = heappop(coming)
            if session.stream == stream:
                session.due_s = moment
                self._waiting.append(session)

    def leave(self, session: FleetSession) -> None:
        """Remove a session that goes elsewhere or is over; what a pass under way finds for it is
        void."""
        self.sessions.discard(session)
        self._full.discard(self.number)
        session.cloud = None
        self._some_left = True
        session.stream += 1

    def stop(self) -> None:
        """End this verifier's life, with all that it held."""
        self.life += 1
        self.alive = self.serving = False
        self._ends = -1
        self._passing = []
        self._waiting = []
        self._piece = None
        self._prompts.clear()
        self._coming.clear()

    def _start_pass(self, now: float) -> float:
        """Start a pass; return its seconds, infinite if nothing is due."""
        plan = self._plan
        budget = self.budget
        in_parts = self.in_parts
        passing, self._waiting = self._waiting, []
        if self._some_left:
            passing = [session for session in passing if session.cloud is self]
            self._some_left = False
        ready: Sequence[FleetSession] = ()
        if self.cloud_drafts is not None:
            ready = [
                session for session in passing if session.committed and not session.prompt_left
            ]
        tokens = prompt_tokens = 0
        for session in passing:
            if session.prompt_left:
                prompt_tokens += session.prompt_left
                session.prompt_left = session.taken = 0
                continue
            tokens += 1
            if session.in_rounds:
                session.taken = taken = session.chunk
                tokens += taken
                continue
            session.taken = 0
            most = session.window
            after_s = now - session.origin_s
            if not most or after_s < 0:  # nothing has come since the last correction
                continue
            come = int(after_s / session.draft_s) if session.draft_s else most
            taken = session.base + come - session.committed
            if taken <= 0:
                continue
            if taken > most:
                taken = most
            if (estimate := session.estimate) is not None:
                taken = budget.drafts(estimate.next_rate, taken)
            session.taken = taken
            tokens += taken
        drafts, drafting_s = self._draft_in_cloud(ready)
        tokens += drafts
        if self._prompts:
            prompt_tokens += self._piece_due(now, alone=not passing)
        if not passing and self._piece is None:
            return inf
        self._passing = passing
        self._began_s = now
        took_s = plan.verify_first_s + (tokens - 1 if tokens else 0) * plan.verify_further_s
        took_s += prompt_tokens * plan.prompt_token_s + plan.pass_overhead_s
        self.passes += 1
        self.drafting_s += drafting_s
        self.passing_s += took_s
        if passing:
            if in_parts or ready:  # who else would ask it
                budget.passed(took_s, tokens + prompt_tokens, len(passing))
            self.recent.waited(now - passing[-1].due_s, now)
        took_s += drafting_s
        self.recent.passed(took_s, now + took_s)
        return took_s

    def _draft_in_cloud(self, ready: Sequence[FleetSession]) -> tuple[int, float]:
        """Draft for those of these sessions of whose edges no draft has come; return the number of
        drafts, and the seconds that they take."""
        if (budget := self.cloud_drafts) is None:
            return 0, 0.0
        plan = self._plan
        counts = list[int]()
        for session in ready:
            session.by_cloud = not session.taken
            if session.taken or (estimate := session.cloud_estimate) is None:
                continue
            most = min(plan.preset.cloud_draft_length, session.wanted - session.committed - 1)
            count = budget.drafts(estimate.next_rate, most)
            session.rested = 0 if count else session.rested + 1
            if session.rested >= probe_interval(budget):
                session.rested, count = 0, min(PROBE_LENGTH, most)
            session.taken = count
            counts.append(count)
        drafting_s = 0.0
        for step in range(max(counts, default=0)):
            sessions = sum(count > step for count in counts)
            step_s = plan.cloud_draft_s + (sessions - 1) * plan.cloud_draft_further_s
            budget.drafted(step_s, sessions, sessions)
            drafting_s += step_s
        return sum(counts), drafting_s

    def _end_pass(self, now: float, event: int) -> None:
        """Commit what the pass found. Sessions that have more to verify are due again."""
        if self._coming:
            self._drafts_come(now, event)
        passing, self._passing, self._ends = self._passing, [], -1
        if self._piece is not None:
            self._end_piece(now, shared=bool(passing))
        draw = self._draw
        waiting = self._waiting
        in_cloud = self.cloud_drafts is not None
        rounds = len(passing)
        tokens = 0
        for session in passing:
            if session.cloud is not self:
                rounds -= 1
                continue
            taken = session.taken
            kept = 0
            before = session.committed
            if taken:
                rate = session.acceptance_rate
                while kept < taken and draw() < rate:
                    kept += 1
            estimate = session.cloud_estimate if session.by_cloud else session.estimate
            if taken and before and estimate is not None:
                estimate.add(kept, int(kept < taken))
            session.committed = committed = before + kept + 1
            tokens += kept + 1
            if session.first_s < 0:
                session.first_s = now
            if committed >= session.wanted:
                tokens -= committed - session.wanted
                self.leave(session)
                self._done(session, now)
            elif session.goes_on or (in_cloud and not session.rested):
                if session.window:
                    self._go_on(session, now, corrected=kept < taken)
                session.due_s = now
                waiting.append(session)
            elif session.in_rounds:  # until a whole one has come
                drafted_s = self._predrafted(session, now) * session.draft_s
                moment = now + self._trip_s(session) + session.round_s - drafted_s
                heappush(self._coming, (moment, next(self._order), session, session.stream))
            else:
                self._await_draft(session, now, corrected=kept < taken)
        self.rounds += rounds
        self.tokens += tokens

    def _go_on(self, session: FleetSession, now: float, corrected: bool) -> None:
        """Set what the edge has after this verdict: its drafts, or none that still count."""
        committed = session.committed
        draft_s = session.draft_s
        if not corrected:
            at_edge_s = now + session.rtt_s - session.origin_s
            steps = int(at_edge_s / draft_s) if draft_s else session.window
            if session.base + (steps if steps > 0 else 0) < committed:  # the cloud was there first
                session.base, session.origin_s = committed, now + self._trip_s(session)
                return
            # The token after the last draft is the cloud's own; the edge has one there too.
            if self._draw() < session.acceptance_rate:
                return
        session.base, session.origin_s = committed, now + self._trip_s(session)
        session.base += self._predrafted(session, now)

    def _predrafted(self, session: FleetSession, now: float) -> int:
        """Return how many drafts after a correction are there before it comes: none if it was not
        foreseen, else as many as there was time for."""
        if not self._hit_rate or self._draw() >= self._hit_rate:
            return 0
        if self._usual_of != self.passes:  # once a pass
            self._usual_of, self._usual_s = self.passes, self.recent.pass_s(now)
        draft_s = session.draft_s
        steps = int((session.rtt_s + self._usual_s) / draft_s) if draft_s else session.chunk
        return min(session.chunk, steps)

    def _trip_s(self, session: FleetSession) -> float:
        """Return the seconds of a round trip, with what jitter adds to this one."""
        if not self._jitter_s:
            return session.rtt_s
        return session.rtt_s + 2 * self._jitter_s * self._draw()

    def _await_draft(self, session: FleetSession, now: float, corrected: bool) -> None:
        """Let a session wait until its next draft has come."""
        self._go_on(session, now, corrected)
        steps = max(0, session.committed + session.awaited - session.base)
        moment = max(now, session.origin_s + steps * session.draft_s)
        heappush(self._coming, (moment, next(self._order), session, session.stream))

    def _piece_due(self, now: float, alone: bool) -> int:
        """Return how many tokens of the first long prompt this pass takes."""
        while self._prompts and self._prompts[0].cloud is not self:
            self._prompts.popleft()
        if not self._prompts or not (alone or self._turns.is_due(now)):
            return 0
        session = self._prompts[0]
        rows = min(CHUNK_ROWS * (CHUNKS_ALONE if alone else 1), session.prompt_left - 1)
        self._piece = session, rows
        return rows

    def _end_piece(self, now: float, shared: bool) -> None:
        assert self._piece is not None
        (session, rows), self._piece = self._piece, None
        if shared:
            self._turns.shared(now, now - self._began_s)
        if session.cloud is self:
            session.prompt_left -= rows
            if session.prompt_left <= CHUNK_ROWS:
                self._prompts.popleft()
                self._waiting.append(session)
