"""The expected cost of a token under each schedule, by short recursions over passes.

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
from tandem.control.objective import Estimate, Objective
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
    idle_weight: float,
    config: ControllerConfig = DEFAULT_CONFIG,
) -> list[Plan]:
    """Return the plans to compare. `idle_weight` below 1: passes count for more than time, and a
    cloud that may wait for drafts would wait for ever if none came. A cloud that others use waits
    for nobody."""
    plans = [Plan(cloud_alone(limits))] if idle_weight >= 1 else []
    longest = limits.window if idle_weight < 1 else limits.chunk
    if not conditions.shared or idle_weight < 1:
        for length in (length for length in config.lengths if length <= longest):
            rounds = Schedule(length, length)
            plans += [Plan(rounds), Plan(rounds, ahead=True)]
    for window in sorted({*config.lengths, limits.window}):
        if window <= limits.window:
            stream = replace(limits, window=window, chunk=min(limits.chunk, window))
            plans.append(Plan(stream))
            if not conditions.shared:
                plans.append(Plan(replace(stream, decode_when_idle=False)))
    return plans


def cheapest(
    limits: Schedule,
    conditions: Conditions,
    objective: Objective,
    config: ControllerConfig = DEFAULT_CONFIG,
) -> Schedule:
    """Return the schedule that the objective values least."""
    alone = token_cost(Plan(cloud_alone(limits)), conditions, config)
    plans = candidates(limits, conditions, objective.idle_weight, config)
    best = min(plans, key=lambda plan: objective.value(token_cost(plan, conditions, config), alone))
    return best.schedule


def token_cost(
    plan: Plan, conditions: Conditions, config: ControllerConfig = DEFAULT_CONFIG
) -> Estimate:
    """Return the expected cost of one token, in seconds, target passes and bytes."""
    schedule = plan.schedule
    if not schedule.window:
        return _cloud_by_itself(conditions, config)
    if schedule.stop_and_wait:
        return _of_a_token(_rounds(plan, conditions), conditions, config)
    hits = conditions.hit_rate if conditions.hit_rate > config.negligible else 0.0
    sums = _Sums()
    _stream(sums, schedule, conditions, share=1 - hits, head=0, config=config)
    if hits:
        _stream(sums, schedule, conditions, share=hits, head=schedule.chunk, config=config)
    return _of_a_token(sums, conditions, config)


def _cloud_by_itself(conditions: Conditions, config: ControllerConfig) -> Estimate:
    """Return the cost of a token from a cloud that no edge drafts for. It is that of a pass over
    the drafts that the cloud makes itself, with the time of making them, divided by the tokens that
    the pass brings. Without drafts it brings one."""
    drafts = conditions.cloud_drafts
    tokens = conditions.cloud_tokens
    own_s = drafts * (conditions.cloud_draft_s + conditions.pair.verify_further_s)
    return Estimate(
        tpot_s=((conditions.alone_s or conditions.pass_s(0, busy=False)) + own_s) / tokens,
        passes=1.0 / tokens,
        cloud_s=(conditions.pair.verify_first_s / conditions.sharing + own_s) / tokens,
        link_bytes=config.frame_bytes / tokens,
    )


@dataclass(slots=True)
class _Pass:
    """A pass of a stream: positions decided up to `end`, seconds since the pass before it, rows fed
    and drafts made meanwhile; `part` of it, where it brings further positions by drafts of the
    cloud's own."""

    end: int
    seconds: float
    fed: float
    drafted: int
    part: float = 1.0


@dataclass(slots=True)
class _Sums:
    """Expected totals. `fed`: rows of passes; `frames`: of drafts."""

    tokens: float = 0.0
    seconds: float = 0.0
    passes: float = 0.0
    fed: float = 0.0
    drafted: float = 0.0
    frames: float = 0.0

    def add(self, passed: _Pass, weight: float) -> None:
        """Add a pass of a stream, weighted by how often it happens. Each draft travels in a frame
        of its own."""
        self.seconds += weight * passed.seconds
        self.passes += weight * passed.part
        self.fed += weight * passed.fed
        self.drafted += weight * passed.drafted
        self.frames += weight * passed.drafted


def _of_a_token(sums: _Sums, conditions: Conditions, config: ControllerConfig) -> Estimate:
    """Return the cost of one token from expected totals. A pass that others share is paid by all
    who share it."""
    pair = conditions.pair
    tokens = sums.tokens
    drafts = max(0.0, sums.fed - sums.passes)
    cloud_s = sums.passes * pair.verify_first_s / conditions.sharing
    cloud_s += drafts * pair.verify_further_s
    link_bytes = (sums.frames + sums.passes) * config.frame_bytes
    link_bytes += sums.drafted * config.token_bytes
    return Estimate(
        tpot_s=sums.seconds / tokens,
        passes=sums.passes / tokens,
        cloud_s=cloud_s / tokens,
        link_bytes=link_bytes / tokens,
        drafting_s=sums.drafted * pair.draft_s / tokens,
    )


def _rounds(plan: Plan, conditions: Conditions) -> _Sums:
    """Return the totals of one round, which yields the drafts that stand and one more token. Drafts
    that were made while the last round was judged, and turn out to be wanted, hide their time
    behind the wait."""
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
    return _Sums(
        tokens=tokens,
        seconds=away_s + hidden * left_s + (1 - hidden) * drafting_s,
        passes=1.0,
        fed=1.0 + length,
        drafted=length * (1 + (1 - hidden if ahead else 0.0)),
        frames=1.0,
    )


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
    drafted = 0
    survives = share
    rate = conditions.acceptance_rate
    while position < depth and survives > share * config.negligible:
        began = now
        reached = survives
        count = 0
        while count < window and arrive(position + count + 1) <= now:
            count += 1
        part = 1.0
        if not count and not schedule.decode_when_idle:
            now = max(now, arrive(position + 1)) + conditions.wait_s
            count = 1
        took_s = pass_s + count * row_s
        if drafts_in_cloud and cloud_token_s * tokens_per_pass(rate, count) < took_s:
            # A pass over drafts of the cloud's own brings several tokens, here one by one.
            part = 1.0 / conditions.cloud_tokens
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
        ready = position + int(max(0.0, now + rtt_s - arrival[position]) / max(draft_s, TINY))
        ready = max(drafted, min(position + window, ready))
        fed = count + 1 if part == 1 else part * (1 + conditions.cloud_drafts)
        passes.append(_Pass(position, now - began, fed, ready - drafted, part))
        sums.add(passes[-1], reached)
        drafted = ready
    if position >= depth:  # it goes on as in its second half
        half = depth // 2
        before = max((pass_.end for pass_ in passes if pass_.end <= half), default=0)
        goes_on = survives / max(1 - rate, TINY)
        sums.tokens += goes_on
        for pass_ in passes:
            if pass_.end > half:
                sums.add(pass_, goes_on / (position - before))
