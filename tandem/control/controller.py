"""What a session tells its controller, and what a controller answers.

A session tells of a cloud that took it (`on_opened`), of drafts that were made (`on_drafted`), of
what the cloud committed (`on_committed`, or `on_judged` where the schedule is fixed) and of round
trips (`on_rtt`). The answer is `schedule`, whose window says how far ahead the edge drafts; beside
it stand a few words on how. `Controller` itself keeps the preset's schedule; `latency_aware.py` has
PicoSpec's, `least_cost.py` that of `auto`.

Invariants: pure, `now` is passed in; the text never depends on what is decided here."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf

from tandem.control.acceptance import AnswerAcceptanceRate
from tandem.control.conditions import Conditions
from tandem.control.config import DEFAULT_CONFIG, ControllerConfig
from tandem.control.estimates import NO_WARM_START, Estimates, WarmStart
from tandem.control.schedule import CLOUD_DRAFTS, Schedule
from tandem.core.frozen import frozen


@frozen
class Answer:
    """What one message of the cloud brought; times in seconds.

    `tokens`: how many of text. `accepted`, `rejected`: drafts of the draft model that it settled;
    those after a rejected one are in neither. `undrafted`: tokens for which no draft was in flight.
    `gap_s`: since the message before on the same stream; None: it is the first. `verify_s`: of its
    pass, which was shared by so many `sessions` and judged `rows` drafts, whoever made them; 0:
    there was none. `reads_prompt`: that pass was the first of the stream."""

    tokens: int
    accepted: int = 0
    rejected: int = 0
    undrafted: int = 0
    gap_s: float | None = None
    verify_s: float = 0.0
    sessions: int = 1
    rows: int = 0
    reads_prompt: bool = False


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


class Controller:
    """Keeps the preset's schedule. Of what it hears it keeps how often drafts are right: texts that
    propose drafts are compared with that."""

    on = False
    """Whether it ever changes the schedule."""
    branches = True
    """Whether the edge may draft for likely corrections as well."""
    ping_every_s = inf
    """Seconds between pings that tell the round trip where drafts do not."""

    def __init__(
        self,
        limits: Schedule,
        warm_start: WarmStart = NO_WARM_START,
        config: ControllerConfig = DEFAULT_CONFIG,
        now: float = 0.0,
    ) -> None:
        """Begin with the preset's schedule. `limits`: that schedule, whose window and chunk are
        never exceeded. `warm_start`: what earlier answers measured, as of `now`."""
        self.schedule = limits
        self.chunk_budget_s = inf
        """Seconds that a chunk may take before the rest of it is left out."""
        self.decision: Decision | None = None
        self.decisions = Counter[Reason]()
        self.acceptance = AnswerAcceptanceRate(config, warm_start.acceptance)
        self._limits = limits
        self._warm_start = warm_start
        self._config = config
        self._began_s = now

    @property
    def may_draft(self) -> bool:
        """True if the draft model should be ready: something is drafted, or soon may be."""
        return self.schedule.window > 0

    def on_opened(
        self, *, row_share: float | None, may_draft: bool, drafts_never_pay: bool = False
    ) -> None:
        """Hear what the cloud of a stream says of itself.

        Args:
            row_share: the time that a further row of a pass adds, relative to the first, as
                measured before anybody asked; None: it does not say.
            may_draft: whether it may make drafts of its own.
            drafts_never_pay: whether none of its passes over drafts can be worth it."""

    def on_drafted(self, count: int, draft_s: float, now: float) -> None:
        """Hear of draft steps in a row, and the seconds that they took together."""

    def on_judged(self, accepted: int, rejected: int) -> None:
        """Hear of drafts of the draft model, as in `Answer`: all that a schedule which is fixed
        measures."""
        if accepted or rejected:
            self.acceptance.add(accepted, rejected)

    def on_committed(self, answer: Answer, now: float) -> None:
        """Hear of what the cloud committed."""
        self.on_judged(answer.accepted, answer.rejected)

    def on_rtt(self, rtt_s: float, now: float) -> None:
        """Hear of a round trip, without what the cloud computed meanwhile."""

    def measured(self, now: float) -> WarmStart:
        """Return what the next answer may know: a schedule that is fixed measures drafts alone."""
        earlier = self._warm_start.later(now - self._began_s)
        return replace(earlier, acceptance=self.acceptance.known)


class AdaptiveController(Controller):
    """Estimates the conditions from what it hears."""

    on = True

    def __init__(
        self,
        limits: Schedule,
        warm_start: WarmStart = NO_WARM_START,
        config: ControllerConfig = DEFAULT_CONFIG,
        now: float = 0.0,
    ) -> None:
        super().__init__(limits, warm_start, config, now)
        self.estimates = Estimates(warm_start, now, config)
        self.acceptance = self.estimates.acceptance

    def on_drafted(self, count: int, draft_s: float, now: float) -> None:
        self.estimates.drafted(count, draft_s, now)

    def on_rtt(self, rtt_s: float, now: float) -> None:
        self.estimates.tripped(rtt_s, now)

    def measured(self, now: float) -> WarmStart:
        return self.estimates.snapshot(now)
