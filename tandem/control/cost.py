"""The expected time of a token under each schedule, by short recursions over passes.

An epoch begins with a correction: the token that the target puts in the place of a draft. What
either side does from there on is known until the next one, so the expected time of a token is
E[time of an epoch] / E[tokens of an epoch], each a sum over positions weighted by the probability
that the epoch reaches them. Three families: the cloud alone, rounds (stop and wait), and streams.
Pure arithmetic; tested against the event-by-event timelines of `lab/analysis/epoch_timeline.py`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tandem.control.cloud_draft_budget import tokens_per_pass
from tandem.control.conditions import Conditions
from tandem.control.config import DEFAULT_CONFIG, TINY, ControllerConfig
from tandem.control.schedule import Schedule, cloud_alone


@dataclass(frozen=True, slots=True)
class Plan:
    """A schedule; `ahead`: while a round is judged the edge drafts the next one."""

    schedule: Schedule
    ahead: bool = False

    @property
    def busy(self) -> bool:
        """True if the edge drafts while the cloud computes."""
        return self.schedule.window > 0 and (self.ahead or not self.schedule.stop_and_wait)


def candidates(
    limits: Schedule,
    conditions: Conditions,
    config: ControllerConfig = DEFAULT_CONFIG,
) -> list[Plan]:
    """Return the plans to compare. A cloud that others use waits for nobody."""
    plans = [Plan(cloud_alone(limits))]
    if not conditions.shared:
        for length in (length for length in config.lengths if length <= limits.chunk):
            rounds = Schedule(length, length)
            plans += [Plan(rounds), Plan(rounds, ahead=True)]
    for window in sorted({*config.lengths, limits.window}):
        if window <= limits.window:
            stream = replace(limits, window=window, chunk=min(limits.chunk, window))
            plans.append(Plan(stream))
            if not conditions.shared:
                plans.append(Plan(replace(stream, decode_when_idle=False)))
    return plans


def fastest(
    limits: Schedule, conditions: Conditions, config: ControllerConfig = DEFAULT_CONFIG
) -> Schedule:
    """Return the schedule of the least expected time."""
    plans = candidates(limits, conditions, config)
    return min(plans, key=lambda plan: expected_tpot_s(plan, conditions, config)).schedule


def expected_tpot_s(
    plan: Plan, conditions: Conditions, config: ControllerConfig = DEFAULT_CONFIG
) -> float:
    """Return the expected seconds of one token."""
    schedule = plan.schedule
    if not schedule.window:
        return _cloud_by_itself_s(conditions)
    if schedule.stop_and_wait:
        return _round_token_s(plan, conditions)
    hits = conditions.hit_rate if conditions.hit_rate > config.negligible else 0.0
    sums = _Sums()
    _stream(sums, schedule, conditions, share=1 - hits, head=0, config=config)
    if hits:
        _stream(sums, schedule, conditions, share=hits, head=schedule.chunk, config=config)
    return sums.seconds / sums.tokens


def _cloud_by_itself_s(conditions: Conditions) -> float:
    """Return the seconds of a token from a cloud that no edge drafts for: those of a pass over the
    drafts that the cloud makes itself, with the time of making them, divided by the tokens that the
    pass brings. Without drafts it brings one."""
    drafts = conditions.cloud_drafts
    own_s = drafts * (conditions.cloud_draft_s + conditions.pair.verify_further_s)
    alone_s = conditions.alone_s or conditions.pass_s(0, busy=False)
    return (alone_s + own_s) / conditions.cloud_tokens


@dataclass(slots=True)
class _Pass:
    """A pass of a stream: positions decided up to `end`, seconds since the pass before it."""

    end: int
    seconds: float


@dataclass(slots=True)
class _Sums:
    """Expected totals."""

    tokens: float = 0.0
    seconds: float = 0.0


def _round_token_s(plan: Plan, conditions: Conditions) -> float:
    """Return the seconds of a token in rounds, each of which yields the drafts that stand and one
    more token. Drafts that were made while the last round was judged, and turn out to be wanted,
    hide their time behind the wait."""
    length = plan.schedule.chunk
    ahead = plan.ahead
    busy = plan.busy
    tokens = 1.0
    survives = conditions.acceptance_rate
    for _ in range(length):
        tokens += survives
        survives *= conditions.later_rate
    whole = survives / max(conditions.later_rate, TINY)
    away_s = conditions.rtt_s + conditions.wait_s + conditions.pass_s(length, busy=busy)
    away_s += conditions.message_s
    drafting_s = length * conditions.draft_s(busy=busy)
    hidden = whole * conditions.later_rate + (1 - whole) * conditions.hit_rate if ahead else 0.0
    left_s = max(0.0, drafting_s + conditions.draft_s(busy=busy) - away_s)  # and a guessed bonus
    return (away_s + hidden * left_s + (1 - hidden) * drafting_s) / tokens


def _stream(
    sums: _Sums,
    schedule: Schedule,
    conditions: Conditions,
    *,
    share: float,
    head: int,
    config: ControllerConfig,
) -> None:
    """Add an epoch of `share` probability, at whose begin `head` drafts are there already.

    Position p is decided at `decided[p]` (0 is the correction), its draft is at the cloud at
    `arrival[p]`. A pass takes the last decided token and the drafts after it that are there, and
    decides one position more: by its draft if that has come, else by a token of its own. Two of the
    widest windows are followed; then a stream repeats itself."""
    rtt_s = conditions.rtt_s
    window = schedule.window
    depth = 2 * config.lengths[-1]
    draft_s = conditions.branching * conditions.draft_s(busy=True) + conditions.message_s
    row_s = conditions.pass_slowdown * conditions.pair.verify_further_s
    pass_s = conditions.pass_s(0, busy=True)
    # Where others share the passes, a cloud leaves drafting to an edge that drafts.
    drafts_in_cloud = (
        schedule.decode_when_idle and conditions.cloud_drafts > 0 and not conditions.shared
    )
    cloud_token_s = conditions.cloud_pass_s(busy=True) / conditions.cloud_tokens
    decided = [0.0]
    arrival = [rtt_s]

    def arrive(position: int) -> float:
        """Return when the draft for a position is at the cloud, in seconds. The edge drafts one
        after the other, goes on after a token of the cloud's own as soon as it hears of it, and
        keeps `window` in flight."""
        while (number := len(arrival)) <= position:
            at = arrival[-1] + (draft_s if number > head else 0.0)
            if number <= len(decided):
                at = min(at, decided[number - 1] + rtt_s + draft_s)
            if number > window:
                at = max(at, decided[number - window] + rtt_s + draft_s)
            arrival.append(at)
        return arrival[position]

    passes: list[_Pass] = []
    now = 0.0
    position = 0
    survives = share
    rate = conditions.acceptance_rate
    while position < depth and survives > share * config.negligible:
        began = now
        reached = survives
        count = 0
        while count < window and arrive(position + count + 1) <= now:
            count += 1
        if not count and not schedule.decode_when_idle:
            now = max(now, arrive(position + 1)) + conditions.wait_s
            count = 1
        took_s = pass_s + count * row_s
        if drafts_in_cloud and cloud_token_s * tokens_per_pass(rate, count) < took_s:
            # A pass over drafts of the cloud's own brings several tokens, here one by one.
            took_s = cloud_token_s
            count = 0
        now += took_s
        for _ in range(count + 1):
            position += 1
            decided.append(now)
            sums.tokens += survives
            if arrive(position) <= now + rtt_s:  # drafted when the edge hears of the cloud's token
                survives *= rate
                rate = conditions.later_rate
        passes.append(_Pass(position, now - began))
        sums.seconds += reached * passes[-1].seconds
    if position >= depth:  # it goes on as in its second half
        half = depth // 2
        before = max((pass_.end for pass_ in passes if pass_.end <= half), default=0)
        goes_on = survives / max(1 - rate, TINY)
        sums.tokens += goes_on
        for pass_ in passes:
            if pass_.end > half:
                sums.seconds += goes_on / (position - before) * pass_.seconds
