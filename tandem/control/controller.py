"""Keep one session's schedule fitted to what it measures, if its preset asks for that.

Three controllers, by `Control`: `Controller` itself keeps the preset's schedule, `LatencyAware` is
PicoSpec's, `LeastCost` is that of `auto`. Each hears of the same four things: drafts that were made
(`drafted`), what the cloud committed (`judged`, `took_tokens`), round trips (`ponged`), streams
(`connected`); and answers with `schedule`.

Invariants: pure, `now` is passed in; the text never depends on what is decided here."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil, inf
from typing import Protocol

from tandem.control.conditions import Conditions
from tandem.control.config import DEFAULT_CONFIG, TINY, ControllerConfig
from tandem.control.cost import expected_tpot_s, stream_within
from tandem.control.estimates import NO_WARM_START, Estimates, Recent, WarmStart
from tandem.control.schedule import CLOUD_DRAFTS, Control, Schedule, cloud_alone


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


def controller_for(
    control: Control,
    limits: Schedule,
    *,
    max_tokens: int = 0,
    prompt_tokens: int = 0,
    warm_start: WarmStart = NO_WARM_START,
    config: ControllerConfig = DEFAULT_CONFIG,
) -> Controller:
    """Return a session's controller, which begins with the preset's schedule and no measurements.

    Args:
        limits: the preset's schedule, whose window and chunk are never exceeded.
        max_tokens: the longest that the answer may be.
        prompt_tokens: what the draft model has to read before its first draft."""
    if not limits.window:
        return Controller(limits, warm_start, config)
    match control:
        case Control.FIXED:
            return Controller(limits, warm_start, config)
        case Control.LATENCY_AWARE:
            return LatencyAware(limits, warm_start, config)
        case Control.LEAST_COST:
            return LeastCost(limits, warm_start, config, max_tokens, prompt_tokens)


class Controller:
    """Keeps the preset's schedule. It counts what metrics tell, and what the next answer may know;
    everything else of it is for those below to fill in."""

    on = False
    """Whether it ever changes the schedule."""

    def __init__(self, limits: Schedule, warm_start: WarmStart, config: ControllerConfig) -> None:
        self.schedule = limits
        self.chunk_budget_s = inf
        """Seconds that a chunk may take before the rest of it is left out."""
        self.decision: Decision | None = None
        self.decisions = Counter[Reason]()
        self.estimates = Estimates(warm_start, config=config)
        self.spent: dict[str, tuple[int, float]] = {}
        """Tokens and seconds by each kind of schedule, for metrics."""
        self.branches = not (self.on and warm_start.beside_cloud)
        """Whether the edge may draft for likely corrections as well; not where it would take the
        processors that the cloud computes with from it."""
        self._limits = limits
        self._warm_start = warm_start
        self._config = config
        self._began_s: float | None = None
        self._last_s: float | None = None
        self._sent: deque[_Frame] = deque(maxlen=128)

    @property
    def may_draft(self) -> bool:
        """True if the draft model should be ready: something is drafted, or soon may be."""
        return self.schedule.window > 0

    def connected(self, now: float) -> None:
        """Record that a stream begins: what was sent on the one before will not be answered."""
        if self._began_s is None:
            self._began_s = now
            self.estimates = Estimates(self._warm_start, now, self._config)
        self._sent.clear()
        self._last_s = None

    def opened(self, row_share: float | None, *, drafts_in_cloud: bool = False) -> None:
        """Record what the cloud says of itself. `row_share`: what it measured of its engine before
        anybody asked, the time that a further row of a pass adds, relative to the first, and 1
        where drafts do not pay in any case; None: it does not say. `drafts_in_cloud`: whether it
        may make drafts of its own."""

    def drafted(self, count: int, draft_s: float, now: float, usual: bool = True) -> None:
        """Record draft steps and their seconds; `usual`: nothing but draft steps took that time."""

    def sent(self, base: int, now: float) -> None:
        """Record a frame of drafts from position `base` on."""
        self._sent.append(_Frame(base, now))

    def discarded(self) -> None:
        """Forget what was sent: it will not be judged."""
        self._sent.clear()

    def judged(
        self, end: int, accepted: int, rejected: int, tokens: int, work: PassCost, now: float
    ) -> None:
        """Record that the cloud judged drafts before position `end`, which gave `tokens` tokens."""
        sent = None
        while self._sent and self._sent[0].base < end:
            sent = self._sent.popleft()
        if sent is not None:
            self.tripped(max(0.0, now - sent.at_s - work.verify_s - work.queue_s), now)
        self.estimates.acceptance.add(accepted, rejected)
        self._answered(tokens, work, now)

    def took_tokens(self, tokens: int, work: PassCost, now: float) -> None:
        """Record tokens that the cloud made without a draft of the edge."""
        self._answered(tokens, work, now)

    def overtaken(self, agreed: bool | None) -> None:
        """Record a token that the cloud decoded: a draft in flight was equal, was not, or there was
        none."""
        if agreed is None:
            self.estimates.acceptance.undrafted(1)
        else:
            self.estimates.acceptance.add(int(agreed), int(not agreed))

    def trip_wanted(self, now: float) -> bool:
        """Return whether a ping should measure the round trip."""
        return False

    def pinged(self, now: float) -> None:
        """Record a ping that left."""

    def ponged(self, trip_s: float | None, now: float) -> None:
        """Record the answer to a ping; None: to one of long ago."""
        if trip_s is not None:
            self.tripped(trip_s, now)

    def tripped(self, trip_s: float, now: float) -> None:
        """Record a round trip, without what the cloud computed meanwhile."""
        self.estimates.tripped(trip_s, now)

    def measured(self, now: float) -> WarmStart:
        """Return what the next answer may know: a schedule that is fixed measures drafts alone."""
        earlier = self._warm_start.later(now - (now if self._began_s is None else self._began_s))
        return replace(earlier, acceptance=self.estimates.acceptance.known)

    def _answered(self, tokens: int, work: PassCost, now: float) -> None:
        """Take an answer of the cloud's. The time between two of them is that of its tokens."""
        gap_s = None if self._last_s is None else now - self._last_s
        self._last_s = now
        if gap_s is not None:
            before = self.spent.get(self._kind, (0, 0.0))
            self.spent[self._kind] = before[0] + tokens, before[1] + gap_s
        self._learn(tokens, gap_s, work, now)

    @property
    def _kind(self) -> str:
        if not self.schedule.window:
            return "cloud_alone"
        return "rounds" if self.schedule.stop_and_wait else "stream"

    def _learn(self, tokens: int, gap_s: float | None, work: PassCost, now: float) -> None:
        """Learn from an answer, and choose."""


class LatencyAware(Controller):
    """PicoSpec's truncation (its §3.3 and eqs. 8-10; its eq. 8 has no gap there): a chunk takes as
    long to draft as the one before takes to be answered, with the bytes of drafts and verdicts on
    the link, and as many chunks are in flight as before."""

    on = True

    def __init__(self, limits: Schedule, warm_start: WarmStart, config: ControllerConfig) -> None:
        super().__init__(limits, warm_start, config)
        self._answered_in = Recent(config)

    def drafted(self, count: int, draft_s: float, now: float, usual: bool = True) -> None:
        if usual:
            self.estimates.drafted(count, draft_s, now)

    def tripped(self, trip_s: float, now: float) -> None:
        super().tripped(trip_s, now)
        self._answered_in.add(trip_s, now)

    def measured(self, now: float) -> WarmStart:
        return self.estimates.snapshot(now)

    def _learn(self, tokens: int, gap_s: float | None, work: PassCost, now: float) -> None:
        if work.verify_s <= 0 or work.target_passes == 1:  # the first is over the prompt
            return
        self.estimates.passed(work.verify_s, work.drafts, now)
        conditions = self.estimates.conditions()
        answered_in_s = self._answered_in.value
        if conditions is None or answered_in_s is None:
            return
        conditions = replace(conditions, rtt_s=answered_in_s)
        self.schedule = latency_aware(self._limits, conditions)
        self.chunk_budget_s = chunk_budget_s(conditions)


def latency_aware(limits: Schedule, conditions: Conditions) -> Schedule:
    """Return the schedule whose chunk takes as long to draft as the one before to be answered, and
    which has as many chunks in its window."""
    wanted = ceil(chunk_budget_s(conditions) / max(conditions.pair.draft_s, TINY))
    length = max(1, min(limits.chunk, wanted))
    return replace(limits, chunk=length, window=limits.window // limits.chunk * length)


def chunk_budget_s(conditions: Conditions) -> float:
    """Return how many seconds a chunk may take before the cloud idles and the rest is left out
    (PicoSpec §3.3)."""
    return conditions.rtt_s + conditions.pair.verify_first_s


class LeastCost(Controller):
    """The rule of `auto`, in three sentences. It begins with the cloud alone, which decodes anyway
    while the first drafts are made, and so measures what drafting must beat. It goes on with the
    schedule of least estimated cost, and changes to a stream only if that is clearly better. A
    stream that would be better with some luck is tried, as often as the tokens since the last trial
    bear what one may lose."""

    on = True

    def __init__(
        self,
        limits: Schedule,
        warm_start: WarmStart,
        config: ControllerConfig,
        max_tokens: int,
        prompt_tokens: int,
    ) -> None:
        super().__init__(limits, warm_start, config)
        self._max_tokens = max_tokens
        self._reading_s = prompt_tokens * warm_start.prompt_row_s
        self._alone = cloud_alone(limits)
        self._stream = stream_within(limits, config)
        self.schedule = self._alone
        self._may_pay = True
        """Whether the cloud's passes over drafts can be worth it."""
        self._settles = False
        """Whether the next answer still belongs to the schedule before."""
        self._trial: _Trial | None = None
        self._unspent = 0.0
        """Tokens that bear the next trial: those since the last one, less what that one lost."""
        self._chosen_under: Conditions | None = None
        self._chose_at = self._ping_at = -inf

    @property
    def may_draft(self) -> bool:
        first = self.decision is None and self._may_pay
        return self.schedule.window > 0 or (first and self._may_read())

    def connected(self, now: float) -> None:
        first = self._began_s is None
        super().connected(now)
        if first:
            if self.estimates.acceptance.begins_guessed:
                self._unspent = min(self._max_tokens, self._config.short_answer_tokens)
            self._choose(now)

    def opened(self, row_share: float | None, *, drafts_in_cloud: bool = False) -> None:
        if row_share is not None:
            self.estimates.begin_with(row_share)
            self._may_pay = row_share < 1
        forgets = not drafts_in_cloud and self.estimates.forget_cloud_drafts()
        if forgets or not self._may_pay:
            self.decision = self._trial = None
            self._follow(self._alone)

    def drafted(self, count: int, draft_s: float, now: float, usual: bool = True) -> None:
        if usual:
            self.estimates.drafted(count, draft_s, now)

    def trip_wanted(self, now: float) -> bool:
        return now >= self._ping_at

    def pinged(self, now: float) -> None:
        self._ping_at = now + self._config.ping_every_s

    def measured(self, now: float) -> WarmStart:
        return self.estimates.snapshot(now)

    def _learn(self, tokens: int, gap_s: float | None, work: PassCost, now: float) -> None:
        """Learn from an answer to the schedule in use, and choose. The first pass of a stream is
        over the prompt; one that others share says nothing of the cloud alone."""
        self._unspent += tokens
        if self._trial is not None:
            self._trial.tokens += tokens
        estimates = self.estimates
        settled, self._settles = not self._settles, False
        if work.verify_s > 0:
            estimates.sharing.add(work.batch_size, now)
            if settled and work.target_passes != 1:
                busy = self.schedule.window > 0
                estimates.passed(work.verify_s, work.drafts, now, busy=busy)
                if work.drafts:
                    estimates.wait.add(work.queue_s, now)
                if not self.schedule.window and gap_s is not None:
                    pass_s = work.verify_s / (1 + estimates.row_share * work.drafts)
                    estimates.decoded_alone(gap_s / pass_s, tokens, work.drafts, now)
        self._choose(now)

    # What it decides.

    def _choose(self, now: float) -> None:
        if self._trial is not None and not self._trial_over(now):
            return
        if self.decision is not None and now - self._chose_at < self._config.choose_every_s:
            return
        conditions = self.estimates.conditions()
        if conditions is None or self._measures_alone():
            self._follow(self._alone)
            return
        self._chose_at = now
        self._decide(conditions)

    def _measures_alone(self) -> bool:
        """Return whether the time of the cloud alone is still to be measured. That costs nothing at
        the start: it decodes anyway while the first drafts are made, or drafts itself."""
        return self.decision is None and not self.estimates.knows_alone

    def _decide(self, conditions: Conditions) -> None:
        alone_s = expected_tpot_s(self._alone, conditions, self._config)
        stream_s = expected_tpot_s(self._stream, conditions, self._config)
        gain = self._gain_wanted(conditions, alone_s)
        if self.schedule.window:  # the hysteresis
            gain = max(self._config.negligible, gain - self._config.switch_gain)
        streams = self._may_pay and stream_s <= (1 - gain) * alone_s
        reason = self._reason(conditions)
        if not conditions.shared and self._may_pay:
            # What nobody knows yet is tried, and so is what may be better than it seems.
            streams = streams and not self.estimates.acceptance.is_guess
            if not streams and self._is_worth_trying(conditions, alone_s, stream_s):
                self._begin_trial(conditions, alone_s)
                streams = True
                reason = Reason.TRIAL
        best = self._stream if streams else self._alone
        changed = self.decision is None or best != self.schedule
        if changed:
            self.decisions[reason] += 1
            self._chosen_under = conditions
        self.decision = Decision(
            best,
            tpot_s=stream_s if streams else alone_s,
            alone_tpot_s=alone_s,
            alone_measured=self.estimates.knows_alone,
            reason=reason if changed or self.decision is None else self.decision.reason,
            conditions=conditions,
        )
        self._follow(best)

    def _gain_wanted(self, conditions: Conditions, alone_s: float) -> float:
        """Return the share by which a stream must be better. Where a pass is hardly longer than the
        processors' work on a message, no cost is known better than that work."""
        config = self._config
        gain = config.gain_over_cloud_drafts if conditions.cloud_drafts else config.switch_gain
        return max(gain, config.message_s / max(alone_s, TINY))

    def _is_worth_trying(self, conditions: Conditions, alone_s: float, stream_s: float) -> bool:
        """Return whether the stream would be clearly better than the cloud alone with some luck,
        and the answer can bear what a trial of it may lose. Without trials `auto` is at 0.84 of
        what it is with them in the mean of the grid, and at 0.43 in the worst cell."""
        bears_s = self._config.trial_share * self._unspent * alone_s
        loses_s = self._config.few_tokens * (stream_s - alone_s)
        if bears_s <= 0 or loses_s > bears_s or not self._may_read():
            return False
        hoped = replace(conditions, acceptance_rate=self.estimates.acceptance.hoped)
        gain = self._gain_wanted(conditions, alone_s)
        return expected_tpot_s(self._stream, hoped, self._config) < (1 - gain) * alone_s

    def _may_read(self) -> bool:
        """Return whether the draft model has read the prompt, or may for a trial: on the cloud's
        processors it holds up the answer. A target whose time is not known takes no less for a
        token than its draft model."""
        near = (self.estimates.rtt_s or 0.0) < self._config.same_machine_s
        shares = near or self._warm_start.beside_cloud
        if not shares or not self._reading_s or self.estimates.acceptance.judged:
            return True
        token_s = self.estimates.alone_s or self.estimates.draft.value or 0.0
        return self._reading_s <= self._config.reading_share * self._max_tokens * token_s

    def _begin_trial(self, conditions: Conditions, alone_s: float) -> None:
        # The first drafts come a round trip later, and answers meanwhile tell nothing of them.
        away = 2 * conditions.rtt_s / conditions.pair.verify_first_s
        answers = int(self._config.few_tokens + self._config.sentence_tokens + away)
        judged = self.estimates.acceptance.judged
        self._trial = _Trial(self._chose_at, judged, alone_s, answers)

    def _trial_over(self, now: float) -> bool:
        """Return whether the trial has shown enough, or taken too long. The tokens after it bear
        what it lost, and as much for the next one."""
        trial = self._trial
        assert trial is not None
        trial.answers -= 1
        judged = self.estimates.acceptance.judged - trial.judged
        lost_s = max(0.0, now - trial.began_s - trial.tokens * trial.alone_s)
        spent = lost_s > self._config.few_tokens * trial.alone_s
        if trial.answers > 0 and judged < self._config.few_tokens and not spent:
            return False
        self._unspent = -2 * lost_s / (self._config.trial_share * trial.alone_s)
        self._trial = None
        self._chose_at = -inf
        return True

    def _follow(self, schedule: Schedule) -> None:
        self._settles = self._settles or schedule != self.schedule
        self.schedule = schedule

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


@dataclass(slots=True)
class _Trial:
    """A stream that is tried: when it began, and with how many `judged` drafts; the `tokens` since,
    and what each takes of the cloud alone; and how many `answers` it still waits for at most."""

    began_s: float
    judged: int
    alone_s: float
    answers: int
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class _Frame:
    """A frame of drafts from position `base` on, and when it left."""

    base: int
    at_s: float
