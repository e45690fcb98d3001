"""The control of `auto`: the cloud alone or a stream, whichever is expected to cost less.

It begins with the cloud alone, which decodes anyway while the first drafts are made, and so
measures what drafting must beat. On a timer it compares the costs of what it measured since, and
changes to a stream only if that is clearly better. A stream that would be better with some luck is
tried, as often as the tokens since the last trial bear what one may lose."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from tandem.control.conditions import Conditions
from tandem.control.config import DEFAULT_CONFIG, TINY, ControllerConfig
from tandem.control.controller import AdaptiveController, Answer, Decision, Reason
from tandem.control.cost import expected_tpot_s, stream_within
from tandem.control.estimates import NO_WARM_START, WarmStart
from tandem.control.schedule import Schedule, cloud_alone


class LeastCost(AdaptiveController):
    """Follows the schedule of least estimated cost."""

    def __init__(
        self,
        limits: Schedule,
        warm_start: WarmStart = NO_WARM_START,
        config: ControllerConfig = DEFAULT_CONFIG,
        now: float = 0.0,
        *,
        max_tokens: int = 0,
        prompt_tokens: int = 0,
    ) -> None:
        """Begin an answer of at most `max_tokens`, for which the draft model has to read
        `prompt_tokens` before its first draft."""
        super().__init__(limits, warm_start, config, now)
        # They would take from the cloud the processors that it computes with.
        self.branches = not warm_start.beside_cloud
        self.ping_every_s = config.ping_every_s
        self._max_tokens = max_tokens
        self._reading_s = prompt_tokens * warm_start.prompt_row_s
        self._alone = cloud_alone(limits)
        self._stream = stream_within(limits, config)
        self.schedule = self._alone
        self._never_pays = False
        """Whether no pass of the cloud over drafts can be worth it."""
        self._trial: _Trial | None = None
        self._unspent = 0.0
        """Tokens that bear the next trial: those since the last one, less what that one lost."""
        if self.acceptance.begins_guessed:
            self._unspent = min(max_tokens, config.short_answer_tokens)
        self._chosen_under: Conditions | None = None
        self._decides_at = -inf
        self._decide(now)

    @property
    def may_draft(self) -> bool:
        first = self.decision is None and not self._never_pays
        return self.schedule.window > 0 or (first and self._may_read())

    def on_opened(
        self, *, row_share: float | None, may_draft: bool, drafts_never_pay: bool = False
    ) -> None:
        if row_share is not None:
            self.estimates.set_prior_row_share(row_share)
        self._never_pays = drafts_never_pay
        forgets = not may_draft and self.estimates.forget_cloud_drafts()
        if forgets or drafts_never_pay:
            self.decision = self._trial = None
            self._decides_at = -inf
            self._follow(self._alone)

    def on_committed(self, answer: Answer, now: float) -> None:
        super().on_committed(answer, now)
        self.acceptance.undrafted(answer.undrafted)
        self._unspent += answer.tokens
        self._learn(answer, now)
        if (trial := self._trial) is not None:
            trial.add(answer)
            if not trial.is_over(self.acceptance.judged, now):
                return
            self._end(trial, now)
        if now >= self._decides_at:
            self._decide(now)

    def _learn(self, answer: Answer, now: float) -> None:
        """Learn from an answer to the schedule in use. The first pass of a stream is over the
        prompt; one that others share says nothing of the cloud alone."""
        estimates = self.estimates
        if answer.verify_s <= 0:
            return
        estimates.sharing.add(answer.sessions, now)
        if answer.reads_prompt:
            return
        busy = self.schedule.window > 0
        estimates.passed(answer.verify_s, answer.rows, now, busy=busy)
        if not busy and answer.gap_s is not None:
            pass_s = answer.verify_s / (1 + estimates.row_share * answer.rows)
            estimates.decoded_alone(answer.gap_s / pass_s, answer.tokens, answer.rows, now)

    # What it decides.

    def _decide(self, now: float) -> None:
        """Choose between the cloud alone, once that was measured, and the stream. Measuring costs
        nothing at the start: the cloud decodes anyway while the first drafts are made, or drafts
        itself."""
        if self.decision is None and not self.estimates.knows_alone:
            return
        if (conditions := self.estimates.conditions()) is None:
            return
        self._decides_at = now + self._config.decide_every_s
        alone_s = expected_tpot_s(self._alone, conditions, self._config)
        stream_s = expected_tpot_s(self._stream, conditions, self._config)
        gain = self._gain_wanted(conditions, alone_s)
        if self.schedule.window:  # the hysteresis
            gain = max(self._config.negligible, gain - self._config.switch_gain)
        streams = not self._never_pays and stream_s <= (1 - gain) * alone_s
        reason = self._reason(conditions)
        if not (conditions.shared or self._never_pays):
            # What nobody knows yet is tried, and so is what may be better than it seems.
            streams = streams and not self.acceptance.is_guess
            if not streams and self._is_worth_trying(conditions, alone_s, stream_s, now):
                self._begin_trial(conditions, alone_s, now)
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

    def _is_worth_trying(
        self, conditions: Conditions, alone_s: float, stream_s: float, now: float
    ) -> bool:
        """Return whether the stream would be clearly better than the cloud alone with some luck,
        and the answer can bear what a trial of it may lose. Without trials `auto` is at 0.84 of
        what it is with them in the mean of the grid, and at 0.43 in the worst cell."""
        bears_s = self._config.trial_share * self._unspent * alone_s
        loses_s = self._config.few_tokens * (stream_s - alone_s)
        if bears_s <= 0 or loses_s > bears_s or not self._may_read():
            return False
        optimistic = self._optimistic(conditions, now)
        gain = self._gain_wanted(conditions, alone_s)
        return expected_tpot_s(self._stream, optimistic, self._config) < (1 - gain) * alone_s

    def _optimistic(self, conditions: Conditions, now: float) -> Conditions:
        """Return the conditions that may well be found. A draft step that was not measured lately
        may take no longer than is believed before any: an edge that was busy for half a second
        would else never draft again."""
        pair = conditions.pair
        if now - self.estimates.draft.at_s > self._config.stale_s:
            usual_s = self._config.prior_draft_share * pair.verify_first_s
            pair = replace(pair, draft_s=min(pair.draft_s, usual_s))
        return replace(conditions, pair=pair, acceptance_rate=self.acceptance.optimistic)

    def _may_read(self) -> bool:
        """Return whether the draft model has read the prompt, or may for a trial: on the cloud's
        processors it holds up the answer. A target whose time is not known takes no less for a
        token than its draft model."""
        shares = self.estimates.shares_processors
        if not shares or not self._reading_s or self.acceptance.judged:
            return True
        token_s = self.estimates.alone_s or self.estimates.draft.value or 0.0
        return self._reading_s <= self._config.reading_share * self._max_tokens * token_s

    def _begin_trial(self, conditions: Conditions, alone_s: float, now: float) -> None:
        # The first drafts come a round trip later, and answers meanwhile tell nothing of them.
        config = self._config
        away = 2 * conditions.rtt_s / conditions.pair.verify_first_s
        self._trial = _Trial(
            began_s=now,
            alone_s=alone_s,
            ends_judged=self.acceptance.judged + config.few_tokens,
            answers_left=int(config.few_tokens + config.sentence_tokens + away),
            most_lost_s=config.few_tokens * alone_s,
        )

    def _end(self, trial: _Trial, now: float) -> None:
        """The tokens after a trial bear what it lost, and as much for the next one."""
        lost_s = max(0.0, trial.lost_s(now))
        self._unspent = -2 * lost_s / (self._config.trial_share * trial.alone_s)
        self._trial = None
        self._decides_at = -inf

    def _follow(self, schedule: Schedule) -> None:
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
    """A stream that is tried, since `began_s`. `alone_s`: what a token takes of the cloud alone. It
    ends when `ends_judged` drafts of the answer were judged, after as many answers as are left, or
    when it has lost `most_lost_s`."""

    began_s: float
    alone_s: float
    ends_judged: int
    answers_left: int
    most_lost_s: float
    tokens: int = 0

    def add(self, answer: Answer) -> None:
        self.answers_left -= 1
        self.tokens += answer.tokens

    def is_over(self, judged: int, now: float) -> bool:
        """Return whether it has shown enough, or taken too long."""
        shown = judged >= self.ends_judged or self.answers_left <= 0
        return shown or self.lost_s(now) > self.most_lost_s

    def lost_s(self, now: float) -> float:
        """Return how much longer its tokens took than the cloud alone would have."""
        return now - self.began_s - self.tokens * self.alone_s
