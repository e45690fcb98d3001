"""Keeps a session's schedule fitted to what it measures, if its preset asks for that. Invariant: a
preset of fixed control measures nothing here and keeps its schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import inf

from tandem.specdec.choices import Control, Schedule
from tandem.specdec.messages import Draft, Tokens, Verdict
from tandem.specdec.presets import Preset
from tandem.specdec.profile import Profile
from tandem.specdec.schedule_choice import Decision, Reason, choose
from tandem.specdec.scheduling import Measured, chunk_budget_s, schedule_for

CHOICE_EVERY = 6
"""Answers of the cloud between two choices of a schedule."""


class Pacing:
    """Takes what happens to the drafts; `schedule` is the one to continue with."""

    def __init__(self, preset: Preset) -> None:
        self.on = preset.drafts and preset.control is not Control.FIXED
        self.schedule: Schedule = preset.schedule
        self.chunk_budget_s = inf
        self._preset = preset
        self._held = False
        self._profile = Profile()
        self.branches = preset.control is not Control.LEAST_COST
        self.decision: Decision | None = None
        self.decisions: Counter[Reason] = Counter()
        self._until_choice = 0

    def connected(self) -> None:
        self._profile.connected()
        self.schedule = self._preset.schedule
        self._held = False

    def drafted(self, count: int, draft_s: float) -> None:
        if self.on:
            self._profile.drafted(count, draft_s)

    def sent(self, frames: Sequence[Draft], now: float) -> None:
        if self.on:
            for frame in frames:
                self._profile.sent(frame, now)
                self._held = frame.hold

    def take_verdict(self, verdict: Verdict, now: float) -> None:
        if self.on:
            end = verdict.base + verdict.accepted + verdict.rejected
            self._profile.answered(end, verdict.work, now)
            self._profile.judged(verdict.accepted, int(verdict.rejected))
            self._fit()

    def take_tokens(self, message: Tokens) -> None:
        if self.on:
            self._profile.passed(message.work)
            self._fit()

    def overtaken(self, agreed: bool | None) -> None:
        """The cloud decoded a token: a draft in flight was equal, was not, or there was none."""
        if not self.on:
            return
        if agreed is None:
            self._profile.unjudged(1)
        else:
            self._profile.judged(int(agreed), int(not agreed))

    def resolved(self, hit: bool) -> None:
        """A correction came; `hit`: it had been drafted for."""
        if self.on:
            self._profile.resolved(hit)

    def discarded(self) -> None:
        self._profile.discarded()

    def _fit(self) -> None:
        if (measured := self._profile.measured) is None:
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
