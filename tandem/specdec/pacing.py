"""Keeps a session's schedule fitted to what it measures, if its preset asks for that. Invariant: a
preset of fixed control keeps its schedule; what it measures is for the requests after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import inf

from tandem.specdec.choices import Control, Schedule
from tandem.specdec.messages import Draft, Tokens, Verdict, Work
from tandem.specdec.objective import NO_PRICES, Objective, Prices
from tandem.specdec.presets import Preset
from tandem.specdec.profile import NOTHING_EARLIER, Earlier, Profile
from tandem.specdec.schedule_choice import (
    STAYS,
    Decision,
    Reason,
    choose,
    cloud_alone,
)
from tandem.specdec.schedule_outlook import Outlooks
from tandem.specdec.scheduling import Measured, chunk_budget_s, schedule_for
from tandem.specdec.seen_times import BUSY, Kind, kind_of

CHOICE_EVERY = 6
"""Answers of the cloud between two choices of a schedule."""
FIRST_CHOICES, AT_FIRST, SOON = 12, 1, 3
"""The same, while timelines are to be followed: for so many choices, and later."""
SELDOM_S = 0.03
"""Between two choices, so that they take a fiftieth of the edge's time where answers come fast,
and a schedule is in use for long enough to tell something."""
STAYS_MOST, RESTLESS, CALMS = 0.75, 0.04, 0.93
"""Each change of schedule makes the next one dearer by such a share, down to a limit; with each
choice that fades: on a machine whose times jump, changes cost more than they bring."""
STRETCH = 6
"""Fewer tokens tell little of what a schedule takes."""
GUESSED = 2.0
"""Drafts judged that the estimate of acceptance counts for beside those of the stretch."""
SETTLES = 1
"""Answers after a change of schedule that tell nothing of it."""
BY_ITSELF = 1.05
"""Sessions a pass, on average, of one that shares none."""
TRIAL, MAY_BE_SLOWER = 3, 0.6
"""Passes by which the cloud alone is tried, where the schedule in use is not believed to take less
than such a share of its time: drafting on the same processors may slow every pass."""
PING_EVERY_S = 1.0
"""While nothing is drafted, pings tell the round trip so often: else a link that was slow once
would be believed slow for ever."""


class Pacing:
    """Takes what happens to the drafts; `schedule` is the one to continue with. What `earlier`
    requests measured gives the one to begin with, if it is enough for that."""

    def __init__(
        self, preset: Preset, earlier: Earlier = NOTHING_EARLIER, prices: Prices = NO_PRICES
    ) -> None:
        self.on = preset.drafts and preset.control is not Control.FIXED
        self.schedule: Schedule = preset.schedule
        self.chunk_budget_s = inf
        self._preset = preset
        self._objective = Objective(preset.idle_weight, preset.energy_weight, prices)
        self._held = False
        self.profile = Profile(earlier, hopes=preset.control is not Control.LEAST_COST)
        self.branches, self.ahead = preset.control is not Control.LEAST_COST, True
        self.decision: Decision | None = None
        self.decisions: Counter[Reason] = Counter()
        self._until_choice = 0
        self._now = self._chose_at = self._ping_at = -inf
        self._outlooks = Outlooks()
        self._stretch = _Stretch()
        self._changes, self._choices = 0.0, 0
        self._trial, self._busy = 0, True
        self._tried_for: Decision | None = None
        self._fit()
        self._first = self.schedule

    def connected(self) -> None:
        self.profile.connected()
        self._stretch = _Stretch()
        self.schedule = self._first
        self._held = False

    def switched(self) -> None:
        """The answers are another stream's from now on; they are not timed by when frames left."""
        self.profile.connected()
        self._stretch = _Stretch()

    def drafted(self, count: int, draft_s: float, usual: bool = True) -> None:
        """`usual`: whether nothing but draft steps took that time."""
        if not usual:
            return
        branches = self._preset.control is Control.LEAST_COST and self.branches
        self.profile.drafted(count, draft_s, branches)
        if self.decision is not None and not branches:
            self.profile.seen.drafted(self._kind_of(self.decision), draft_s / count)

    def sent(self, frames: Sequence[Draft], now: float) -> None:
        for frame in frames:
            self.profile.sent(frame, now)
            self._held = frame.hold

    def take_verdict(self, verdict: Verdict, now: float) -> None:
        end = verdict.base + verdict.accepted + verdict.rejected
        self.profile.answered(end, verdict.work, now)
        self.profile.judged(verdict.accepted, int(verdict.rejected))
        tokens = verdict.accepted + isinstance(verdict.outcome, int)
        self._answered(tokens, verdict.work, now)

    def take_tokens(self, message: Tokens, now: float) -> None:
        self.profile.passed(message.work)
        self._answered(len(message.token_ids), message.work, now)

    def _answered(self, tokens: int, work: Work, now: float) -> None:
        self._now = now
        if self.decision is not None and self._stretch.settled:
            self._see_pass(self.decision, work)
            self._trial -= self._trial > 0
        self._stretch.took(tokens, now, self.profile)
        self._fit()

    def _see_pass(self, decision: Decision, work: Work) -> None:
        """How long one takes beside what this schedule does: none over a prompt, or shared."""
        if not work.verify_s or work.batch_size > 1 or work.target_passes == 1:
            return
        if work.drafts and not decision.schedule.window:
            return  # sent by the schedule before
        kind, share = self._kind_of(decision), self.profile.further_share
        self.profile.seen.passed(kind, work.verify_s, work.drafts, share)

    def _kind_of(self, decision: Decision) -> Kind:
        return kind_of(decision.schedule, self.ahead or self.branches)

    def trip_wanted(self, now: float) -> bool:
        """Whether a ping is to tell the round trip: at first, when the trips of drafts are a
        process's first and wait for the prompt's pass, and where nothing is drafted; one after the
        other until it is known, then seldom."""
        if self._preset.control is not Control.LEAST_COST or now < self._ping_at:
            return False
        return self.profile.begins_cold or not self.schedule.window

    def pinged(self, now: float) -> None:
        """A ping left."""
        self._ping_at = now + PING_EVERY_S

    def ponged(self, trip_s: float | None) -> None:
        """A ping was answered; None: one of long ago."""
        if self._preset.control is Control.LEAST_COST and trip_s is not None:
            self.profile.ponged(trip_s)
            if not self.profile.knows_trip:
                self._ping_at = -inf

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
        if self.decision is None and self.profile.begins_cold:
            return self.schedule
        self._until_choice -= 1
        due = self._until_choice <= 0 and self._now - self._chose_at >= SELDOM_S
        if self._tried_for is not None and not self._trial:
            self._follow(self._tried_for)
            self._tried_for, due = None, True
        if self.decision is None or (due and not self._trial):
            self._chose_at = self._now
            self._learn(measured)
            chosen = self._choice(measured, self.decision)
            self._follow(chosen)
            if self._trial_pays(chosen):
                self._try_alone(chosen)
        assert self.decision is not None
        return self.decision.schedule

    def _choice(self, measured: Measured, before: Decision | None) -> Decision:
        limits, weight = self._preset.schedule, self._preset.idle_weight
        seen, stays = self.profile.seen, max(STAYS_MOST, STAYS - RESTLESS * self._changes)
        chosen = choose(
            limits, measured, weight, before, self._outlooks, seen, stays, self._objective
        )
        self._choices += 1
        soon = AT_FIRST if self._choices <= FIRST_CHOICES else SOON
        self._until_choice = CHOICE_EVERY if self._outlooks.settled else soon
        self._changes *= CALMS
        if before is None or chosen.schedule != before.schedule:
            self.decisions[chosen.reason] += 1
            self._changes += before is not None
        return chosen

    def _follow(self, decision: Decision) -> None:
        """Go on with it. Where drafts are made beside passes and where not these may take times
        that say nothing of each other."""
        before, busy = self.decision, self._busy
        self.decision, self.branches, self.ahead = decision, decision.branches, decision.ahead
        self._busy = self._kind_of(decision) in BUSY
        if self._busy != busy:
            self.profile.regrouped()
        if before is None or before.schedule != decision.schedule or self._busy != busy:
            self._stretch = _Stretch()

    def _try_alone(self, chosen: Decision) -> None:
        """For some passes, to know what `chosen` is to be better than."""
        self._trial, self._tried_for = TRIAL, chosen
        alone = cloud_alone(self._preset.schedule)
        self._follow(replace(chosen, schedule=alone, branches=False, reason=Reason.TRIAL))
        self.decisions[Reason.TRIAL] += 1

    def _trial_pays(self, chosen: Decision) -> bool:
        """Whether to see what the cloud alone takes, where that is not known and may be less."""
        if not chosen.schedule.window or self.profile.seen.knows_alone:
            return False
        if not self.profile.knows_acceptance or chosen.measured.sharing > BY_ITSELF:
            return False
        if self._objective.idle_weight < 1:
            return False
        return chosen.tpot_s > MAY_BE_SLOWER * chosen.alone_tpot_s

    def _learn(self, measured: Measured) -> None:
        """What the schedule in use took since the last time, beside what it should have taken with
        the drafts that stood: chance in these is nobody's fault."""
        if self.decision is None or self._stretch.tokens < STRETCH:
            return
        schedule, stretch = self.decision.schedule, self._stretch
        judged, agreed = stretch.compared(self.profile)
        rate = (GUESSED * measured.acceptance_rate + agreed) / (GUESSED + judged)
        as_it_came = replace(measured, acceptance_rate=rate)
        if (found := self._outlooks.expected_of(schedule, as_it_came)) is not None:
            self.profile.seen.took(schedule, stretch.tokens, stretch.seconds, found.tpot_s)
        stretch.restart(self.profile)


class _Stretch:
    """Tokens that came one after the other by one schedule. The first answers after a change are
    still of the schedule before."""

    def __init__(self) -> None:
        self.tokens, self.seconds = 0, 0.0
        self._judged = self._agreed = 0
        self._since: float | None = None
        self._skip = SETTLES

    @property
    def settled(self) -> bool:
        """Whether the next answer is of the schedule in use."""
        return not self._skip

    def took(self, tokens: int, now: float, profile: Profile) -> None:
        """They came at `now`."""
        if self._since is not None:
            self.tokens += tokens
            self.seconds = now - self._since
        elif self._skip:
            self._skip -= 1
        else:
            self._since = now
            self.restart(profile)

    def compared(self, profile: Profile) -> tuple[int, int]:
        """How many drafts were compared with the token that came, and how many were it."""
        return profile.judged_tokens - self._judged, profile.agreed_tokens - self._agreed

    def restart(self, profile: Profile) -> None:
        if self._since is not None:
            self._since += self.seconds
        self.tokens, self.seconds = 0, 0.0
        self._judged, self._agreed = profile.judged_tokens, profile.agreed_tokens
