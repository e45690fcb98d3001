"""Keeps one session's schedule fitted to what it measures, if its preset asks for that.

The rule of `auto`, in three sentences. It begins with the cloud alone, which decodes anyway while
the first drafts are made, and so measures what drafting must beat. It goes on with the schedule of
least estimated cost, and changes only for one that is clearly better. What is not known well enough
is tried, for as long as all trials together lose no more than a small share of the answer's time.

Invariants: pure, `now` is passed in; the text never depends on what is decided here."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from math import exp, inf, log
from typing import Protocol

from tandem.control.conditions import Conditions, several
from tandem.control.config import DEFAULT_CONFIG, TINY, ControllerConfig
from tandem.control.cost import Plan, candidates, expected_tpot_s
from tandem.control.draft_window import chunk_budget_s, schedule_for
from tandem.control.estimates import NO_WARM_START, Estimates, RecentTime, WarmStart
from tandem.control.schedule import CLOUD_DRAFTS, Control, Schedule, cloud_alone

_ONE_IN = 8
"""Where the schedule is fixed, one answer in so many is measured after the first ones: only for the
requests that come after this one."""


class PassCost(Protocol):
    """The cost of a pass as an answer of the cloud states it; see `specdec.messages.Work`."""

    @property
    def verify_s(self) -> float: ...
    @property
    def queue_s(self) -> float: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def target_passes(self) -> int: ...
    @property
    def drafts(self) -> int: ...
    @property
    def draft_s(self) -> float: ...
    @property
    def draft_rate(self) -> float: ...


class Reason(StrEnum):
    """The reason for a schedule: what had changed most, or to measure."""

    FIRST = "first"
    ACCEPTANCE = "acceptance"
    ROUND_TRIP = "round_trip"
    LOAD = "load"
    STEP_TIMES = "step_times"
    TRIAL = "trial"


@dataclass(frozen=True, slots=True)
class Decision:
    """A schedule, and the seconds that a token is expected to take with it and by the cloud alone.
    `alone_measured`: whether the latter was seen lately rather than computed."""

    schedule: Schedule
    tpot_s: float
    alone_tpot_s: float
    alone_measured: bool
    reason: Reason
    conditions: Conditions

    @property
    def words(self) -> str:
        """The schedule in words, for people."""
        if self.schedule.window or not self.conditions.cloud_drafts:
            return self.schedule.words
        return CLOUD_DRAFTS


@dataclass(slots=True)
class _Trial:
    """`answers` left of a schedule that is tried; drafts that were `judged` when it began."""

    answers: int
    judged: int


class Controller:
    """Takes what happens to the drafts; `schedule` is the one to continue with, `ahead` and
    `branches` say what else to draft while drafts are judged."""

    def __init__(
        self,
        control: Control,
        limits: Schedule,
        *,
        idle_weight: float = 1.0,
        drafts_ahead: bool = True,
        max_tokens: int = 0,
        prompt_tokens: int = 0,
        warm_start: WarmStart = NO_WARM_START,
        config: ControllerConfig = DEFAULT_CONFIG,
    ) -> None:
        """Start with the preset's schedule and no measurements.

        Args:
            limits: the preset's schedule, whose window and chunk are never exceeded.
            idle_weight: see `Preset`; the rule of `auto` minimises time alone.
            drafts_ahead: whether the edge drafts before verdicts.
            max_tokens: the longest that the answer may be.
            prompt_tokens: what the draft model has to read before its first draft."""
        self.on = limits.window > 0 and control is not Control.FIXED
        self.schedule = limits
        self.ahead = self.branches = drafts_ahead
        self._plan = Plan(limits, drafts_ahead)
        self.chunk_budget_s = inf
        self.decision: Decision | None = None
        self.decisions = Counter[Reason]()
        self.estimates = Estimates(warm_start, config=config)
        self.spent: dict[str, tuple[int, float]] = {}
        """Tokens and seconds by each kind of schedule, for metrics."""
        self._control = control
        self._limits = limits
        self._config = config
        self._drafts_ahead = drafts_ahead
        self._idle_weight = idle_weight
        self._max_tokens = max_tokens
        self._reading_s = prompt_tokens * warm_start.prompt_row_s
        self._warm_start = warm_start
        self._began = self._held = False
        self._model_in_cloud = False
        self._sent: deque[_Frame] = deque(maxlen=128)
        self._answered_in = RecentTime(config)
        self._now = self._chose_at = self._ping_at = -inf
        self._tokens = 0
        self._settles = False
        """Whether the next answer still belongs to the schedule before."""
        self._last_s: float | None = None
        self._stretch = _Stretch()
        self._trial: _Trial | None = None
        self._chosen_under: Conditions | None = None
        self._lost_s = 0.0

    # What happens to the session.

    @property
    def may_draft(self) -> bool:
        """True if the draft model should be ready: something is drafted, or soon may be."""
        if self.schedule.window > 0:
            return True
        return self.on and self.decision is None and self._may_read()

    @property
    def held(self) -> bool:
        """True if the frame that was sent last makes the cloud wait for the next one."""
        return self._held

    def connected(self, now: float) -> None:
        """Record that a stream begins: what was sent on the one before will not be answered."""
        if not self._began:
            self._began = True
            self._now = now
            self.estimates = Estimates(self._warm_start, now, self._config)
            self._fit()
        self._held = False
        self._apply()
        self._sent.clear()
        self._begin_stretch()

    def opened(
        self,
        row_share: float | None,
        *,
        drafts_in_cloud: bool = False,
        model_in_cloud: bool = False,
    ) -> None:
        """Record what the cloud says of itself. `row_share`: what it measured of its engine before
        anybody asked, the time that a further row of a pass adds, relative to the first; None: it
        does not say. `drafts_in_cloud`: whether it may make drafts of its own; `model_in_cloud`:
        with a draft model."""
        self._model_in_cloud = model_in_cloud
        if row_share is not None:
            self.estimates.begin_with(row_share)
        self.estimates.opened(drafts_in_cloud=drafts_in_cloud)
        if self.decision is not None and not self._tokens:
            # It was made before it was known whether the cloud may draft.
            self.decision = self._trial = None
            self._chose_at = -inf
            self._fit()

    def drafted(self, count: int, draft_s: float, now: float, usual: bool = True) -> None:
        """Record draft steps and their seconds; `usual`: nothing but draft steps took that time."""
        if usual:
            branches = self._control is Control.LEAST_COST and self.branches
            self.estimates.drafted(count, draft_s, now, busy=self._plan.busy, branches=branches)

    def sent(self, base: int, now: float, hold: bool = False) -> None:
        """Record a frame of drafts from position `base` on. `hold`: it makes the cloud wait."""
        self._sent.append(_Frame(base, now))
        self._held = hold
        self._apply()

    def judged(
        self,
        end: int,
        accepted: int,
        rejected: int,
        tokens: int,
        work: PassCost,
        now: float,
    ) -> None:
        """Record that the cloud judged drafts before position `end`, which gave `tokens` tokens."""
        sent = None
        while self._sent and self._sent[0].base < end:
            sent = self._sent.popleft()
        if sent is not None:
            trip_s = max(0.0, now - sent.at_s - work.verify_s - work.queue_s)
            self._tripped(trip_s, now)
            if self._control is Control.LATENCY_AWARE:
                self._answered_in.add(trip_s, now)
        self.estimates.acceptance.add(accepted, rejected)
        self._stretch.judged(accepted, rejected)
        self._answered(tokens, work, now)

    def took_tokens(self, tokens: int, work: PassCost, now: float, *, accepted: int = 0) -> None:
        """Record tokens that the cloud made without a draft of the edge; the first `accepted` of
        them were drafts of its own."""
        by_itself = not self.schedule.window or work.drafts > 0
        reads_prompt = work.target_passes == 1
        if self._measures_cloud_drafts and by_itself and work.verify_s > 0 and not reads_prompt:
            self.estimates.drafted_in_cloud(
                work.drafts, accepted, work.draft_s, work.draft_rate, now
            )
        self._answered(tokens, work, now)

    @property
    def _measures_cloud_drafts(self) -> bool:
        """True if what the cloud drafts in this session is what it drafts for `auto`: one that has
        a model only looks drafts up where a preset asks for that."""
        chooses = self._control is Control.LEAST_COST
        return bool(self.estimates.drafts_in_cloud) and (chooses or self._model_in_cloud)

    def overtaken(self, agreed: bool | None) -> None:
        """Record a token that the cloud decoded: a draft in flight was equal, was not, or there was
        none."""
        if agreed is None:
            self.estimates.acceptance.undrafted(1)
        else:
            self.estimates.acceptance.add(int(agreed), int(not agreed))
            self._stretch.judged(int(agreed), int(not agreed))

    def resolved(self, hit: bool) -> None:
        """Record a correction; `hit`: it had been drafted for."""
        if self.on:
            self.estimates.resolved(hit, self._now)

    def skip_stretch(self) -> None:
        """Learn nothing of the schedule from the next answer's time: drafts that took no time were
        judged with it, which the costs do not know."""
        self._begin_stretch()

    def discarded(self) -> None:
        """Forget what was sent: it will not be judged."""
        self._sent.clear()

    def trip_wanted(self, now: float) -> bool:
        """Return whether a ping should measure the round trip, which is so now and then: drafts
        wait for passes, and where none are sent nothing else measures it."""
        chooses = self._control is Control.LEAST_COST or not self.schedule.window
        return self.on and chooses and now >= self._ping_at

    def pinged(self, now: float) -> None:
        """Record a ping that left."""
        self._ping_at = now + self._config.ping_every_s

    def ponged(self, trip_s: float | None, now: float) -> None:
        """Record the answer to a ping; None: to one of long ago."""
        if trip_s is not None:
            self._tripped(trip_s, now)
            if not self._tokens:
                self._fit()

    def _tripped(self, trip_s: float, now: float) -> None:
        self.estimates.tripped(trip_s, now)
        self._stretch.trip_s = min(trip_s, self._stretch.trip_s)

    # What it learns from an answer.

    def _answered(self, tokens: int, work: PassCost, now: float) -> None:
        self._pay(tokens, now)
        self._now = now
        self._tokens += tokens
        gap_s = now - self._last_s if self._last_s is not None else None
        self._last_s = now
        if self.on and work.verify_s > 0:
            self.estimates.sharing.add(work.batch_size, now)
        if not self._settles and self.schedule == self._plan.schedule:
            self._measure(tokens, gap_s, work, now)
        self._settles = False
        self._fit()

    def _pay(self, tokens: int, now: float) -> None:
        """Count what drafting loses against the cloud alone; what it gains makes up for losses, and
        is not saved for later ones."""
        if self.schedule.window and self.decision is not None and not self._shared:
            took_s = now - self._now
            self._lost_s = max(0.0, self._lost_s + took_s - tokens * self.decision.alone_tpot_s)

    def _measure(self, tokens: int, gap_s: float | None, work: PassCost, now: float) -> None:
        """Learn from an answer to the schedule in use. The first pass of a stream is over the
        prompt; one that others share says nothing of the cloud alone."""
        if gap_s is not None:
            self._stretch.took(tokens, gap_s)
            before = self.spent.get(self._kind, (0, 0.0))
            self.spent[self._kind] = before[0] + tokens, before[1] + gap_s
        if work.verify_s <= 0 or work.target_passes == 1:
            return
        passes = work.target_passes
        if not self.on and passes > self._config.readings and passes % _ONE_IN:
            return
        self.estimates.passed(work.verify_s, work.drafts, now, busy=self._plan.busy)
        if work.drafts:
            self.estimates.wait.add(work.queue_s, now)
        alone = not self.schedule.window and work.batch_size == 1
        if alone and gap_s is not None and (work.drafts or tokens == 1):
            pass_s = work.verify_s / (1 + self.estimates.row_share * work.drafts)
            drafts_s = work.draft_s + work.verify_s - pass_s
            self.estimates.decoded_alone(max(0.0, gap_s - drafts_s), pass_s, now)

    @property
    def _kind(self) -> str:
        if not self.schedule.window:
            return "cloud_alone"
        return "rounds" if self.schedule.stop_and_wait else "stream"

    def _learn(self, conditions: Conditions) -> None:
        """Compare the time of the last stretch's tokens with the time that its acceptance and its
        round trip would explain: these two have estimates of their own."""
        stretch = self._stretch
        schedule = self.schedule
        few = self._config.few_tokens
        losing = self._allowance_s(conditions.pass_s(0, busy=False)) < 0
        enough = few if losing else self._config.sentence_tokens
        if not schedule.window or stretch.tokens < enough:
            return
        rate = (few * conditions.acceptance_rate + stretch.agreed) / (few + stretch.compared)
        rtt_s = conditions.rtt_s if stretch.trip_s == inf else stretch.trip_s
        seen = replace(conditions, rtt_s=rtt_s, acceptance_rate=rate, later_acceptance_rate=None)
        expected_s = expected_tpot_s(self._plan, seen, self._config)
        ratio = stretch.seconds / stretch.tokens / max(expected_s, TINY)
        factor = self.estimates.factors[not schedule.stop_and_wait]
        far = self._config.far
        factor.add(min(far, max(1 / far, ratio)), self._now)
        self._stretch = _Stretch()

    # What it decides.

    def _fit(self) -> None:
        if not self.on:
            return
        if self._control is Control.LEAST_COST:
            self._choose()
            return
        conditions = self._hoped(self.estimates.conditions(self._now))
        if conditions is None:
            return
        if self._control is Control.LATENCY_AWARE:
            # Its round trip has what the bytes of drafts and verdicts take on the link.
            answered_in_s = self._answered_in.value
            if answered_in_s is not None:
                conditions = replace(conditions, rtt_s=answered_in_s)
        schedule = schedule_for(
            self._control, self._limits, conditions, self._idle_weight, config=self._config
        )
        self._follow(Plan(schedule, self.ahead))
        if self._control is Control.LATENCY_AWARE:
            self.chunk_budget_s = chunk_budget_s(conditions)

    def _hoped(self, conditions: Conditions | None) -> Conditions | None:
        """Assume faster drafts, accepted as often as usual, the longer nothing was drafted: so a
        window that was closed is opened again in the end."""
        acceptance = self.estimates.acceptance
        if conditions is None or not acceptance.idle_tokens:
            return conditions
        draft_s = conditions.pair.draft_s * self._config.usual_keep**acceptance.idle_tokens
        rate = conditions.acceptance_rate + max(0.0, acceptance.regained)
        rate = min(self._config.surest, rate)
        return replace(
            conditions, pair=replace(conditions.pair, draft_s=draft_s), acceptance_rate=rate
        )

    def _choose(self) -> None:
        waits = self._trial is None and self._now - self._chose_at < self._config.choose_every_s
        if waits and self.decision is not None and not self.schedule.window:
            return  # conditions of each token would cost more than some cloud's pass
        conditions = self.estimates.conditions(self._now)
        if conditions is not None and not conditions.shared:
            self._learn(conditions)
        if self._needs_alone(conditions) or conditions is None:
            self._follow(self._first_plan())
            return
        if self._trial is not None:
            if not self._trial_over():
                return
            self._trial = None
        elif waits:
            return
        self._chose_at = self._now
        self._decide(conditions)

    @property
    def _shared(self) -> bool:
        """True if other sessions share the passes."""
        return several(self.estimates.sharing.value or 1.0)

    def _needs_alone(self, conditions: Conditions | None) -> bool:
        """Return whether the time of the cloud alone is still to be measured. That costs nothing at
        the start: it decodes anyway while the first drafts are made."""
        if self._shared or self.decision is not None:
            return False
        estimates = self.estimates
        unknown = conditions is None or not estimates.knows_alone(self._now)
        if estimates.drafts_in_cloud:
            unknown = unknown or not estimates.knows_cloud_drafts(self._now)
        early = self._tokens < self._config.few_tokens
        return unknown and (early or estimates.rtt_s is None)

    def _first_plan(self) -> Plan:
        """Return the plan while nothing is known: the cloud alone. It is two drafts at a time where
        the cloud alone cannot be measured, or while the cloud computes the prompt and a link lies
        between both models: there they slow nothing, and show how good they are. More would flood a
        cloud that many share."""
        link = (self.estimates.rtt_s or 0.0) >= self._config.same_machine_s
        if self._shared and self._model_in_cloud:
            return Plan(cloud_alone(self._limits))  # which drafts itself
        if self._shared or (link and not self._tokens):
            window = min(2, self._limits.window)
            return Plan(replace(self._limits, window=window, chunk=min(2, self._limits.chunk)))
        return Plan(cloud_alone(self._limits))

    def _decide(self, conditions: Conditions) -> None:
        self.branches = self._drafts_ahead and self._branches_pay(conditions)
        if not self.branches:
            conditions = replace(conditions, branching=1.0, hit_rate=0.0)
        alone = Plan(cloud_alone(self._limits))
        used = self._plan
        tpots_s = self._tpots_s(conditions)
        alone_s = tpots_s[alone]
        best = min(tpots_s, key=lambda plan: tpots_s[plan])
        used = used if used in tpots_s else alone
        margin = 0.0 if best == alone else self._gain_wanted(alone_s)
        if used == alone and conditions.shared and conditions.cloud_drafts:
            # Of many sessions some have good luck with their first drafts. Each that leaves a cloud
            # which drafts for all of them at once slows down those that stay.
            unsure = 2 if self.estimates.acceptance.is_guess else 1
            margin = max(margin, unsure * self._config.chance)
        restless = self._is_restless(conditions)
        if restless and best != alone:
            margin = max(margin, self._config.restless_gain)
        if tpots_s[best] > (1 - margin) * tpots_s[used]:
            best = used
        reason = self._reason(conditions)
        if not conditions.shared:
            if best.schedule.window and self.estimates.acceptance.is_guess:
                best = alone
            tried = self._worth_trying(best, tpots_s)
            if tried is not None and (tried == alone or not restless):
                self._begin_trial(conditions)
                best = tried
                reason = Reason.TRIAL
        changed = self.decision is None or best != self._plan
        if changed:
            self.decisions[reason] += 1
            self._chosen_under = conditions
        self.decision = Decision(
            best.schedule,
            tpot_s=tpots_s[best],
            alone_tpot_s=alone_s,
            alone_measured=self.estimates.knows_alone(self._now),
            reason=reason if changed or self.decision is None else self.decision.reason,
            conditions=conditions,
        )
        self._follow(best)

    def _is_restless(self, conditions: Conditions) -> bool:
        """Return whether other load comes and goes beside a cloud that drafts itself. Passes that
        are shared change with those who share them."""
        if conditions.shared or not conditions.cloud_drafts:
            return False
        return self.estimates.load_comes_and_goes(self._now)

    def _gain_wanted(self, alone_s: float) -> float:
        """Return the share by which a schedule with drafts must be better. Where a pass is hardly
        longer than the processors' work on a message, no cost is known better than that work."""
        return max(self._config.switch_gain, self._config.message_s / max(alone_s, TINY))

    def _branches_pay(self, conditions: Conditions) -> bool:
        """Return whether drafts that are begun with a correction would come late, since a chunk
        takes longer than a pass, and clearly slow nothing."""
        late = self._limits.chunk * conditions.pair.draft_s > conditions.pair.verify_first_s
        slows = max(conditions.branching, conditions.pass_slowdown)
        return late and slows < 1 + self._config.doubt

    def _tpots_s(self, conditions: Conditions) -> Mapping[Plan, float]:
        """Return all candidates, each with the expected seconds of a token."""
        tpots_s = {}
        for plan in candidates(self._limits, conditions, self._config):
            factor = self._factor(plan) if plan.schedule.window else 1.0
            tpots_s[plan] = factor * expected_tpot_s(plan, conditions, self._config)
        return tpots_s

    def _factor(self, plan: Plan) -> float:
        """Return the factor by which estimates of the plan's family are off, as far as that was
        seen."""
        seen = self.estimates.factors[not plan.schedule.stop_and_wait]
        weight = seen.weight(self._now)
        off = log(seen.value or 1.0)
        chance = max(-self._config.chance, min(self._config.chance, off))
        return exp((off - chance) * weight / (weight + 1))

    def _worth_trying(self, best: Plan, tpots_s: Mapping[Plan, float]) -> Plan | None:
        """Return a plan that may be better than the best known one, at a price that the answer can
        bear; None where there is none."""
        alone = Plan(cloud_alone(self._limits))
        alone_s = tpots_s[alone]
        best_s = tpots_s[best]
        gain = 1 - self._gain_wanted(alone_s)
        allowance_s = self._allowance_s(alone_s)
        if allowance_s <= 0:
            return None
        few = self._config.few_tokens
        if best != alone:
            hoped_s = alone_s * (1 - self.estimates.alone.doubt(self._now))
            return (
                alone
                if hoped_s < gain * best_s and few * (alone_s - best_s) <= allowance_s
                else None
            )
        if not self._may_read():
            return None
        hoped = self.estimates.conditions(self._now, hope=True)
        assert hoped is not None
        promising = [
            (tpot_s, plan)
            for plan, tpot_s in tpots_s.items()
            if plan != alone
            and few * (tpot_s - alone_s) <= allowance_s
            and self._factor(plan) * expected_tpot_s(plan, hoped, self._config) < gain * alone_s
        ]
        return min(promising, key=lambda timed: timed[0])[1] if promising else None

    def _may_read(self) -> bool:
        """Return whether the draft model has read the prompt, or may for a trial: on the cloud's
        processors it holds up the answer. A target whose time is not known takes no less for a
        token than its draft model."""
        near = (self.estimates.rtt_s or 0.0) < self._config.same_machine_s
        shares = near or self._warm_start.beside_cloud
        if not shares or not self._reading_s or self.estimates.acceptance.judged:
            return True
        draft = self.estimates.draft.seconds()
        token_s = self.estimates.alone_s or (draft[0] if draft else 0.0)
        return self._reading_s <= self._config.reading_share * self._max_tokens * token_s

    def _allowance_s(self, alone_s: float) -> float:
        """Return the seconds that trials may still lose. Where earlier answers showed what drafts
        are worth, a short answer bears none by itself: several of them share one."""
        tokens = self._tokens + self._warm_start.untried_tokens
        short = self._config.short_answer_tokens
        if self.estimates.acceptance.begins_guessed:
            tokens = max(tokens, min(self._max_tokens, short))
        elif tokens < short:
            return 0.0
        return self._config.trial_share * tokens * alone_s - self._lost_s

    def measured(self, now: float) -> WarmStart:
        """Return what the next answer may know. Of the tokens that bear trials, those are left for
        it whose share nothing was lost of; never more than make up for one first look, so that no
        answer tries for long. A cloud that drafts itself leaves little to find by a trial."""
        share = self._config.trial_share
        most = int(self._config.few_tokens / share)
        untried = self._warm_start.untried_tokens
        if self._control is Control.LEAST_COST and self.decision is not None:
            untried -= round(self._lost_s / (share * max(self.decision.alone_tpot_s, TINY)))
            if not self.decision.conditions.cloud_drafts:
                untried += self._tokens
        snapshot = self.estimates.snapshot(now)
        return replace(snapshot, untried_tokens=max(0, min(most, untried)))

    def _begin_trial(self, conditions: Conditions) -> None:
        answers = float(self._config.few_tokens)
        if not self._plan.schedule.window:  # drafts, whose first come a round trip later
            answers += self._config.sentence_tokens
            answers += 2 * conditions.rtt_s / conditions.pair.verify_first_s
        self._trial = _Trial(int(answers), self.estimates.acceptance.judged)

    def _trial_over(self) -> bool:
        """Return whether the trial has shown enough, or lost too much."""
        assert self._trial is not None
        assert self.decision is not None
        self._trial.answers -= 1
        judged = self.estimates.acceptance.judged - self._trial.judged
        spent = self._allowance_s(self.decision.alone_tpot_s) <= 0
        return self._trial.answers <= 0 or judged >= self._config.few_tokens or spent

    def _follow(self, plan: Plan) -> None:
        if plan != self._plan:
            self._plan = plan
            self._settles = self._control is Control.LEAST_COST
            self._begin_stretch()
        self._apply()

    def _apply(self) -> None:
        """Take the wanted schedule up, or the step towards it. Only frames of drafts tell the
        cloud whether to wait for more. One that waits gets one more draft before nothing is
        drafted. One that goes on would overtake every long round: one draft has it wait first."""
        schedule = self._plan.schedule
        limits = self._limits
        if not schedule.window and self._held:
            schedule = replace(limits, window=1, chunk=1)
        elif schedule.stop_and_wait and limits.decode_when_idle and not self._held:
            schedule = replace(limits, window=1, chunk=1, decode_when_idle=False)
        self.schedule = schedule
        self.ahead = self._plan.ahead if self._plan.schedule.stop_and_wait else self.branches

    def _begin_stretch(self) -> None:
        """Begin a stretch of tokens that does not follow those before."""
        self._last_s = None
        self._stretch = _Stretch()

    def _reason(self, now: Conditions) -> Reason:
        """Return what has changed most since the schedule in use was chosen."""
        if (before := self._chosen_under) is None:
            return Reason.FIRST
        pass_s = max(before.pair.verify_first_s, now.pair.verify_first_s)
        changes = {
            Reason.ACCEPTANCE: 2 * abs(now.acceptance_rate - before.acceptance_rate),
            Reason.ROUND_TRIP: abs(now.rtt_s - before.rtt_s) / (pass_s + before.rtt_s),
            Reason.LOAD: abs(now.sharing - before.sharing) / max(now.sharing, before.sharing),
            Reason.STEP_TIMES: max(
                abs(now.pair.verify_first_s - before.pair.verify_first_s),
                abs(now.pair.draft_s - before.pair.draft_s),
            )
            / pass_s,
        }
        return max(changes, key=lambda reason: changes[reason])


@dataclass(frozen=True, slots=True)
class _Frame:
    """A frame of drafts from position `base` on, and when it left."""

    base: int
    at_s: float


class _Stretch:
    """Tokens that came one after the other by one schedule, and the drafts compared with them."""

    def __init__(self) -> None:
        self.tokens = 0
        self.seconds = 0.0
        self.compared = self.agreed = 0
        self.trip_s = inf
        """The shortest round trip meanwhile; infinite where none was measured."""

    def took(self, tokens: int, seconds: float) -> None:
        self.tokens += tokens
        self.seconds += seconds

    def judged(self, accepted: int, rejected: int) -> None:
        self.compared += accepted + rejected
        self.agreed += accepted
