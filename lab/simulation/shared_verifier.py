"""One verifier and the sessions that share its passes, in virtual time: how long their tokens take
if all decode all the time. Texts are not simulated: a draft is right by chance, as often as
declared. A round of a session is one step of this file's two loops; what it drafted meanwhile is
arithmetic, not events.

Invariants: a function of its plan: the same seed gives the same figures; one pass at a time, which
takes all that is due when it starts; how many drafts it takes of a session is the real
`PassBudget`'s decision, and how many tokens the cloud drafts itself `CloudDraftBudget`'s. It drafts
them in step, before the pass: that takes the fewest passes, and so it is the strongest that a cloud
which drafts can be."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from statistics import median

from tandem.control.acceptance import SessionAcceptanceRate
from tandem.control.cloud_draft_budget import CloudDraftBudget
from tandem.control.pass_budget import PassBudget
from tandem.core.errors import InvalidArgument
from tandem.specdec.choices import CloudDrafts, Control
from tandem.specdec.cloud_drafting import PROBE_INTERVAL, PROBE_LENGTH
from tandem.specdec.presets import Preset

ANSWER_TOKENS = (64, 192)
"""Of an answer, at least and at most, evenly between."""
PAUSE_S = 0.01
"""From an answer to the next question, on average: a session misses about one pass an answer."""
HIT_RATE = 0.5
"""How often a correction had been drafted for, where the preset drafts ahead."""
RECENT_PASSES = 31


@dataclass(frozen=True, slots=True)
class VerifierPlan:
    """What is declared; times in seconds. A pass takes `verify_first_s`, and `verify_further_s` for
    each further token that is decoded or verified, or of a prompt, which has one. Where the
    verifier drafts itself, all sessions that draft do so in step, before the pass that judges them:
    a step takes `cloud_draft_s`, and `cloud_draft_further_s` for each further session. Answers that
    begin in the first `warm_s` do not count."""

    preset: Preset
    sessions: int
    verify_first_s: float
    verify_further_s: float
    draft_s: float
    rtt_s: float
    acceptance_rate: float
    cloud_draft_s: float = 0.0
    cloud_draft_further_s: float = 0.0
    answer_tokens: tuple[int, int] = ANSWER_TOKENS
    hit_rate: float = HIT_RATE
    lasts_s: float = 60.0
    warm_s: float = 15.0
    seed: int = 0

    def check(self) -> None:
        """Raise InvalidArgument naming the field that cannot be."""
        if self.sessions < 1:
            raise InvalidArgument("sessions", f"must be at least 1, is {self.sessions}")
        for name in ("verify_first_s", "lasts_s"):
            if not getattr(self, name) > 0:
                raise InvalidArgument(name, f"must be above 0, is {getattr(self, name)}")
        if not 0 <= self.hit_rate <= 1:
            raise InvalidArgument("hit_rate", f"must be 0…1, is {self.hit_rate}")
        preset = self.preset
        if preset.expansion or (preset.drafts and not preset.schedule.bonus):
            why = "trees, and presets whose cloud adds no token of its own, are not simulated"
            raise InvalidArgument("preset", why)
        if preset.control is not Control.FIXED:
            raise InvalidArgument("preset", "presets that choose their schedule are not simulated")
        if preset.cloud_drafts is CloudDrafts.LOOKUP:
            raise InvalidArgument("preset", "drafts that a cloud looks up are not simulated")


@dataclass(frozen=True, slots=True)
class VerifierFigures:
    """The figures of the time after warming up. `tpot_p95_s` is by the verifier's clock, None
    without answers; `tokens_per_round` and `sessions_per_pass` are means."""

    answers: int
    tokens_per_s: float
    tokens_per_round: float
    sessions_per_pass: float
    tpot_p50_s: float | None
    tpot_p95_s: float | None
    drafting_share: float
    """Of the time that the verifier computes: what its own draft steps take."""
    busy: float
    """The share of its time that the verifier computes."""

    def keeps(self, tpot_s: float) -> bool:
        """Return whether 95 % of the answers keep to this limit."""
        return self.tpot_p95_s is not None and self.tpot_p95_s <= tpot_s


def simulate_verifier(plan: VerifierPlan) -> VerifierFigures:
    """Simulate a verifier; return the figures of the answers that begin after `warm_s`. Raises
    InvalidArgument naming a bad field."""
    plan.check()
    return _Verifier(plan).run()


@dataclass(slots=True, eq=False)
class _Session:
    """One answer. Positions count its tokens. Since the last correction, or since the cloud
    overtook it, the i-th draft after `base`, up to where the edge had drafted by then, arrives at
    `origin_s` + i·`draft_s`."""

    asked_s: float
    wanted: int
    origin_s: float
    estimate: SessionAcceptanceRate | None
    cloud_estimate: SessionAcceptanceRate | None
    first_s: float = -1.0
    committed: int = 0
    base: int = 0
    taken: int = 0
    by_cloud: bool = False
    """Whether the drafts that the pass takes are the cloud's own."""
    rested: int = 0
    """Passes in a row before which no draft of the cloud was worth its time."""


class _Totals:
    """What was computed so far, and in seconds what it took."""

    def __init__(self) -> None:
        self.passes = self.rounds = self.tokens = 0
        self.passing_s = self.drafting_s = 0.0

    def since(self, before: _Totals) -> _Totals:
        after = _Totals()
        for name, total in vars(self).items():
            setattr(after, name, total - getattr(before, name))
        return after


_PASS_ENDS, _COMES, _WARM = range(3)


class _Verifier:
    def __init__(self, plan: VerifierPlan) -> None:
        self.plan = plan
        self.schedule = plan.preset.schedule
        self.in_rounds = self.schedule.stop_and_wait and self.schedule.window > 0
        self.goes_on = self.schedule.decode_when_idle or not self.schedule.window
        self.in_parts = plan.preset.verify_settings.allows_partial_verification
        self.hit_rate = plan.hit_rate if plan.preset.spare_tokens(1) else 0.0
        self.source = Random(f"verifier {plan.seed}")
        self.now = 0.0
        self.order = itertools.count()
        self.events: list[tuple[float, int, int, _Session | None]] = []
        """What comes, and when: drafts for which a session waits, or its first token's turn."""
        self.budget = PassBudget()
        self.cloud_drafts: CloudDraftBudget | None = None
        if plan.preset.drafts_in_cloud:
            self.cloud_drafts = CloudDraftBudget(self.budget)
        self.waiting: list[_Session] = []
        self.passing: list[_Session] | None = None
        self.pass_times_s: deque[float] = deque(maxlen=RECENT_PASSES)
        self.totals = self.before = _Totals()
        self.tpots_s: list[float] = []

    def run(self) -> VerifierFigures:
        plan = self.plan
        ends_s = plan.warm_s + plan.lasts_s
        self.at(plan.warm_s, _WARM)
        for _ in range(plan.sessions):
            self.ask(self.source.uniform(0, PAUSE_S))
        while (event := heappop(self.events))[0] <= ends_s:
            self.now, _, kind, session = event
            if kind == _PASS_ENDS:
                self.end_pass()
            elif session is not None:
                self.waiting.append(session)
            else:
                self.before = self.totals.since(_Totals())
            others_now = self.events and self.events[0][0] <= self.now
            if self.passing is None and self.waiting and not others_now:
                self.start_pass()
        return self.figures(self.totals.since(self.before))

    def figures(self, totals: _Totals) -> VerifierFigures:
        computing_s = totals.passing_s + totals.drafting_s
        ranked = sorted(self.tpots_s)
        return VerifierFigures(
            answers=len(ranked),
            tokens_per_s=totals.tokens / self.plan.lasts_s,
            tokens_per_round=totals.tokens / totals.rounds if totals.rounds else 0.0,
            sessions_per_pass=totals.rounds / totals.passes if totals.passes else 0.0,
            tpot_p50_s=_quantile(ranked, 0.5),
            tpot_p95_s=_quantile(ranked, 0.95),
            drafting_share=totals.drafting_s / computing_s if computing_s else 0.0,
            busy=computing_s / self.plan.lasts_s,
        )

    def at(self, moment: float, kind: int, session: _Session | None = None) -> None:
        heappush(self.events, (moment, next(self.order), kind, session))

    def ask(self, asked_s: float) -> None:
        """Let an edge ask its next question, which reaches the verifier half a round trip later."""
        plan = self.plan
        begins_s = asked_s + plan.rtt_s / 2
        in_cloud = self.cloud_drafts
        session = _Session(
            asked_s=asked_s,
            wanted=max(2, round(self.source.uniform(*plan.answer_tokens))),
            origin_s=begins_s,
            estimate=SessionAcceptanceRate(self.budget.acceptance) if self.in_parts else None,
            cloud_estimate=None if in_cloud is None else SessionAcceptanceRate(in_cloud.acceptance),
        )
        self.at(begins_s, _COMES, session)

    def start_pass(self) -> None:
        plan = self.plan
        passing, self.waiting = self.waiting, []
        tokens = 0
        for session in passing:
            tokens += 1
            session.taken = self.drafts_of(session) if session.committed else 0
            tokens += session.taken
        decoding = [session for session in passing if session.committed]
        drafts, drafting_s = self.draft_in_cloud(decoding)
        tokens += drafts
        passing_s = plan.verify_first_s + (tokens - 1) * plan.verify_further_s
        if self.in_parts or self.cloud_drafts is not None:  # who else would ask it
            self.budget.passed(passing_s, tokens, len(passing))
        self.totals.passes += 1
        self.totals.passing_s += passing_s
        self.totals.drafting_s += drafting_s
        self.passing = passing
        self.pass_times_s.append(passing_s + drafting_s)
        self.at(self.now + passing_s + drafting_s, _PASS_ENDS)

    def drafts_of(self, session: _Session) -> int:
        """Return how many drafts of its edge a pass that starts now takes."""
        schedule = self.schedule
        if self.in_rounds:
            return schedule.chunk
        after_s = self.now - session.origin_s
        if not schedule.window or after_s < 0:  # nothing has come since the last correction
            return 0
        draft_s = self.plan.draft_s
        come = int(after_s / draft_s) if draft_s else schedule.window
        taken = max(0, min(session.base + come - session.committed, schedule.window))
        if session.estimate is None or not taken:
            return taken
        return self.budget.drafts(session.estimate.next_rate, taken)

    def draft_in_cloud(self, decoding: Sequence[_Session]) -> tuple[int, float]:
        """Draft for those of these sessions of whose edges no draft has come; return the number of
        drafts, and the seconds that they take."""
        if (budget := self.cloud_drafts) is None:
            return 0, 0.0
        plan = self.plan
        counts = list[int]()
        for session in decoding:
            session.by_cloud = not session.taken
            if session.taken or (estimate := session.cloud_estimate) is None:
                continue
            most = min(plan.preset.cloud_draft_length, session.wanted - session.committed - 1)
            count = budget.drafts(estimate.next_rate, most)
            session.rested = 0 if count else session.rested + 1
            if session.rested >= PROBE_INTERVAL:
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

    def end_pass(self) -> None:
        """Commit what the pass found. Sessions that have more to verify are due again."""
        assert self.passing is not None, "a pass ends once"
        passing, self.passing = self.passing, None
        self.totals.rounds += len(passing)
        for session in passing:
            before, taken = session.committed, session.taken
            kept = 0
            while kept < taken and self.source.random() < self.plan.acceptance_rate:
                kept += 1
            estimate = session.cloud_estimate if session.by_cloud else session.estimate
            if taken and estimate is not None:
                estimate.add(kept, int(kept < taken))
            session.committed = min(before + kept + 1, session.wanted)
            self.totals.tokens += session.committed - before
            if session.first_s < 0:
                session.first_s = self.now
            if session.committed == session.wanted:
                self.answered(session)
            else:
                self.go_on(session, corrected=kept < taken)

    def answered(self, session: _Session) -> None:
        if session.asked_s >= self.plan.warm_s:
            self.tpots_s.append((self.now - session.first_s) / (session.wanted - 1))
        pause_s = self.source.expovariate(1 / PAUSE_S)
        self.ask(self.now + self.plan.rtt_s / 2 + pause_s)

    def go_on(self, session: _Session, corrected: bool) -> None:
        """Let a session be due again: now, or once drafts have come that it waits for."""
        plan, schedule = self.plan, self.schedule
        if self.goes_on or (self.cloud_drafts is not None and not session.rested):
            if schedule.window:
                self.set_drafts(session, corrected=corrected)
            self.waiting.append(session)
        elif self.in_rounds:  # until a whole one has come
            steps = schedule.chunk - self.predrafted()
            self.at(self.now + plan.rtt_s + steps * plan.draft_s, _COMES, session)
        else:
            self.set_drafts(session, corrected=corrected)
            steps = max(0, session.committed + 1 - session.base)
            moment = max(self.now, session.origin_s + steps * plan.draft_s)
            self.at(moment, _COMES, session)

    def set_drafts(self, session: _Session, corrected: bool) -> None:
        """Set what the edge has after this verdict: its drafts, or none that still count."""
        plan = self.plan
        overtaken = False
        if not corrected:
            at_edge_s = self.now + plan.rtt_s - session.origin_s
            steps = int(at_edge_s / plan.draft_s) if plan.draft_s else self.schedule.window
            overtaken = session.base + max(0, steps) < session.committed
            # The token after the last draft is the cloud's own; the edge may have one there too.
            if not overtaken and self.source.random() < plan.acceptance_rate:
                return
        session.base, session.origin_s = session.committed, self.now + plan.rtt_s
        if not overtaken:
            session.base += self.predrafted()

    def predrafted(self) -> int:
        """Return how many drafts after a correction are there before it comes: none if it was not
        foreseen, else as many as there was time for."""
        plan, chunk = self.plan, self.schedule.chunk
        if not self.hit_rate or self.source.random() >= self.hit_rate:
            return 0
        if not plan.draft_s:
            return chunk
        return min(chunk, int((plan.rtt_s + median(self.pass_times_s)) / plan.draft_s))


def _quantile(ranked: Sequence[float], share: float) -> float | None:
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))] if ranked else None
