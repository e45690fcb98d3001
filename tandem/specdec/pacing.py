"""Keeps a session's schedule fitted to what it measures, if its preset asks for that. Invariant: a
preset of fixed control keeps its schedule; what it measures is for the requests after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import inf

from tandem.specdec.choices import Control, Schedule
from tandem.specdec.messages import Draft, Tokens, Verdict
from tandem.specdec.presets import Preset
from tandem.specdec.profile import NOTHING_EARLIER, Earlier, Profile
from tandem.specdec.schedule_choice import Decision, Reason, choose
from tandem.specdec.scheduling import Measured, chunk_budget_s, schedule_for

CHOICE_EVERY = 6
"""Answers of the cloud between two choices of a schedule."""


class Pacing:
    """Takes what happens to the drafts; `schedule` is the one to continue with. What `earlier`
    requests measured gives the one to begin with, if it is enough for that."""

    def __init__(self, preset: Preset, earlier: Earlier = NOTHING_EARLIER) -> None:
        self.on = preset.drafts and preset.control is not Control.FIXED
        self.schedule: Schedule = preset.schedule
        self.chunk_budget_s = inf
        self._preset = preset
        self._held = False
        self.profile = Profile(earlier)
        self.branches = preset.control is not Control.LEAST_COST
        self.decision: Decision | None = None
        self.decisions: Counter[Reason] = Counter()
        self._until_choice = 0
        self._fit()
        self._first = self.schedule

    def connected(self) -> None:
        self.profile.connected()
        self.schedule = self._first
        self._held = False

    def drafted(self, count: int, draft_s: float) -> None:
        self.profile.drafted(count, draft_s)

    def sent(self, frames: Sequence[Draft], now: float) -> None:
        for frame in frames:
            self.profile.sent(frame, now)
            self._held = frame.hold

    def take_verdict(self, verdict: Verdict, now: float) -> None:
        end = verdict.base + verdict.accepted + verdict.rejected
        self.profile.answered(end, verdict.work, now)
        self.profile.judged(verdict.accepted, int(verdict.rejected))
        self._fit()

    def take_tokens(self, message: Tokens) -> None:
        self.profile.passed(message.work)
        self._fit()

    def overtaken(self, agreed: bool | None) -> None:
        """The cloud decoded a token: a draft in flight was equal, was not, or there was none."""
        if agreed is None:
            self.profile.unjudged(1)
        else:
            self.profile.judged(int(agreed), int(not agreed))

    def resolved(self, hit: bool) -> None:
        """A correction came; `hit`: it had been drafted for."""
        if self.on:
            self.profile.resolved(hit)

    def discarded(self) -> None:
        self.profile.discarded()

    def _fit(self) -> None:
        if not self.on or (measured := self.profile.measured) is None:
            return
        self.schedule = self._chosen(measured)
        if not self.schedule.window and self._held:
            # The cloud waits for a draft: it gets one more, which lets it go on alone.
            self.schedule = replace(self._preset.schedule, window=1, chunk=1)
        if self._preset.control is Control.LATENCY_AWARE:
            self.chunk_budget_s = chunk_budget_s(measured)

    def _chosen(self, measured: Measured) -> Schedule:
        if self._preset.control is not Control.LEAST_COST:
            return schedule_for(self._preset, measured)
        self._until_choice -= 1
        if self.decision is None or self._until_choice <= 0:
            self._until_choice = CHOICE_EVERY
            limits, weight = self._preset.schedule, self._preset.idle_weight
            chosen = choose(limits, measured, weight, self.decision)
            if chosen is not self.decision:
                self.decisions[chosen.reason] += 1
            self.decision, self.branches = chosen, chosen.branches
        return self.decision.schedule
