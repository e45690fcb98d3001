"""What a token is expected to cost under each schedule, by short recursions over passes.

An epoch begins with a correction: the token that the target puts in the place of a draft. What
either side does from there on is known until the next one, so the expected time of a token is
E[time of an epoch] / E[tokens of an epoch], each a sum over positions weighted by the probability
that the epoch reaches them. Three families: the cloud alone, rounds (stop and wait), and streams.
Pure arithmetic; tested against the event-by-event timelines of `lab/analysis/epoch_timeline.py`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tandem.control.conditions import Conditions
from tandem.control.objective import Estimate, Objective
from tandem.control.schedule import Schedule, cloud_alone

DEPTH = 32
"""Positions that are followed: two of the widest windows; then a stream repeats itself."""
RARE = 0.02
"""What happens less often is left out."""
LENGTHS = (2, 4, 8, 16)
"""Windows and rounds that are compared; between them the cost is flat."""
FRAME_BYTES, TOKEN_BYTES = 30.0, 3.0
"""Of a message without payload, and of a draft in it, as `bench bytes` measures."""


@dataclass(slots=True)
class Sums:
    """Expected totals of an epoch. `fed`: rows of passes; `drafted`: drafts, each a frame where
    they travel one by one; `frames`: of drafts."""

    tokens: float = 0.0
    seconds: float = 0.0
    passes: float = 0.0
    fed: float = 0.0
    drafted: float = 0.0
    frames: float = 0.0

    def add(self, weight: float, seconds: float, passes: int, fed: int, drafted: int) -> None:
        """What happens with such a probability in a pass, or several."""
        self.seconds += weight * seconds
        self.passes += weight * passes
        self.fed += weight * fed
        self.drafted += weight * drafted
        self.frames += weight * drafted


@dataclass(frozen=True, slots=True)
class Plan:
    """A schedule; `ahead`: while a round is judged the edge drafts the next one."""

    schedule: Schedule
    ahead: bool = False

    @property
    def busy(self) -> bool:
        """Whether the edge drafts while the cloud computes."""
        return self.schedule.window > 0 and (self.ahead or not self.schedule.stop_and_wait)


def candidates(limits: Schedule, conditions: Conditions, idle_weight: float) -> list[Plan]:
    """What to compare. `idle_weight` below 1: passes count for more than time, and a cloud that may
    wait for drafts would wait for ever if none came. A cloud that others use waits for nobody."""
    found = [Plan(cloud_alone(limits))] if idle_weight >= 1 else []
    longest = limits.window if idle_weight < 1 else limits.chunk
    if not conditions.shared or idle_weight < 1:
        for length in (length for length in LENGTHS if length <= longest):
            rounds = Schedule(length, length)
            found += [Plan(rounds), Plan(rounds, ahead=True)]
    for window in sorted({*LENGTHS, limits.window}):
        if window <= limits.window:
            stream = replace(limits, window=window, chunk=min(limits.chunk, window))
            found.append(Plan(stream))
            if not conditions.shared:
                found.append(Plan(replace(stream, decode_when_idle=False)))
    return found


def cheapest(limits: Schedule, conditions: Conditions, objective: Objective) -> Schedule:
    """The schedule that the objective values least."""
    alone = token_cost(Plan(cloud_alone(limits)), conditions)
    plans = candidates(limits, conditions, objective.idle_weight)
    best = min(plans, key=lambda plan: objective.value(token_cost(plan, conditions), alone))
    return best.schedule


def token_cost(plan: Plan, conditions: Conditions) -> Estimate:
    """Of one token."""
    schedule = plan.schedule
    if not schedule.window:
        alone_s = conditions.alone_s or conditions.pass_s(0, busy=False)
        pass_s = conditions.pair.verify_first_s / conditions.sharing
        return Estimate(alone_s, 1.0, pass_s, FRAME_BYTES)
    sums = Sums()
    if schedule.stop_and_wait:
        _rounds(plan, conditions, sums)
    else:
        hits = conditions.hit_rate if conditions.hit_rate > RARE else 0.0
        _stream(schedule, conditions, 1 - hits, 0, sums)
        if hits:
            _stream(schedule, conditions, hits, schedule.chunk, sums)
    return _estimate(sums, conditions)


def _estimate(sums: Sums, conditions: Conditions) -> Estimate:
    """A pass that others share is theirs too."""
    pair, tokens = conditions.pair, sums.tokens
    drafts = max(0.0, sums.fed - sums.passes)
    cloud_s = sums.passes * pair.verify_first_s / conditions.sharing
    cloud_s += drafts * pair.verify_further_s
    link_bytes = (sums.frames + sums.passes) * FRAME_BYTES + sums.drafted * TOKEN_BYTES
    return Estimate(
        sums.seconds / tokens,
        sums.passes / tokens,
        cloud_s / tokens,
        link_bytes / tokens,
        sums.drafted * pair.draft_s / tokens,
    )


def _rounds(plan: Plan, conditions: Conditions, sums: Sums) -> None:
    """A round yields the drafts that stand and one more token. What was drafted while the last one
    was judged, and is wanted, hides drafting behind the wait."""
    length, ahead, busy = plan.schedule.chunk, plan.ahead, plan.busy
    tokens, survives = 1.0, conditions.acceptance_rate
    for _ in range(length):
        tokens += survives
        survives *= conditions.later_rate
    whole = survives / max(conditions.later_rate, 1e-9)
    away_s = conditions.rtt_s + conditions.wait_s + conditions.pass_s(length, busy=busy)
    away_s += conditions.message_s
    drafting_s = length * conditions.draft_s(busy=busy)
    hidden = whole * conditions.later_rate + (1 - whole) * conditions.hit_rate if ahead else 0.0
    left_s = max(0.0, drafting_s + conditions.draft_s(busy=busy) - away_s)  # and a guessed bonus
    round_s = away_s + hidden * left_s + (1 - hidden) * drafting_s
    drafted = length * (1 + (1 - hidden if ahead else 0.0))
    sums.tokens, sums.seconds, sums.passes, sums.fed = tokens, round_s, 1.0, 1.0 + length
    sums.frames, sums.drafted = 1.0, drafted


def _stream(
    schedule: Schedule, conditions: Conditions, share: float, head: int, sums: Sums
) -> None:
    """Add an epoch of `share` probability, at whose begin `head` drafts are there already.

    Position p is decided at `decided[p]` (0 is the correction), its draft is at the cloud at
    `arrival[p]`. A pass takes the last decided token and the drafts after it that are there, and
    decides one position more: by its draft if that has come, else by a token of its own."""
    rtt_s, window, idle = conditions.rtt_s, schedule.window, schedule.decode_when_idle
    draft_s = conditions.branching * conditions.draft_s(busy=True) + conditions.message_s
    row_s = conditions.pass_slowdown * conditions.pair.verify_further_s
    pass_s = conditions.pass_s(0, busy=True)
    decided, arrival = [0.0], [rtt_s]
    survives, rate = share, conditions.acceptance_rate
    now, position, passes, fed, drafted = 0.0, 0, 0, 0, 0
    halfway = (0.0, 0, 0, 0, 0)

    def arrive(position: int) -> float:
        """When its draft is at the cloud. The edge drafts one after the other, goes on after a
        token of the cloud's own as soon as it hears of it, and keeps `window` in flight."""
        while (number := len(arrival)) <= position:
            at = arrival[-1] + (draft_s if number > head else 0.0)
            if number <= len(decided):
                at = min(at, decided[number - 1] + rtt_s + draft_s)
            if number > window:
                at = max(at, decided[number - window] + rtt_s + draft_s)
            arrival.append(at)
        return arrival[position]

    while position < DEPTH and survives > share * RARE:
        began, reached, count = now, survives, 0
        while count < window and arrive(position + count + 1) <= now:
            count += 1
        if not count and not idle:
            now, count = max(now, arrive(position + 1)) + conditions.wait_s, 1
        now += pass_s + count * row_s
        for _ in range(count + 1):
            position += 1
            decided.append(now)
            sums.tokens += survives
            if arrive(position) <= now + rtt_s:  # drafted when the edge hears of the cloud's token
                survives *= rate
                rate = conditions.later_rate
        ready = position + int(max(0.0, now + rtt_s - arrival[position]) / max(draft_s, 1e-9))
        ready = max(drafted, min(position + window, ready))
        sums.add(reached, now - began, 1, count + 1, ready - drafted)
        passes, fed, drafted = passes + 1, fed + count + 1, ready
        if position <= DEPTH // 2:
            halfway = now, position, passes, fed, drafted
    if position >= DEPTH:  # it goes on as in its second half
        began, before, *counts = halfway
        goes_on = survives / max(1 - rate, 1e-3)
        rises = goes_on / (position - before)
        sums.tokens += goes_on
        sums.add(rises, now - began, passes - counts[0], fed - counts[1], drafted - counts[2])
