"""Which schedule a session goes on with: the one whose timeline costs least by what was measured,
corrected by what schedules of its kind took.

The text does not depend on it: schedules differ in when drafts travel and are judged. Where other
sessions share the passes, the cloud waits for nobody, and takes as many drafts as a pass can bear:
then only windows are left to choose from. Invariant: pure; the same measurements give the same
choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from tandem.specdec.choices import Schedule
from tandem.specdec.epoch_timeline import Expected
from tandem.specdec.objective import Estimate, Objective
from tandem.specdec.pass_budget import worth_feeding
from tandem.specdec.schedule_outlook import Outlooks
from tandem.specdec.scheduling import Measured, window_for
from tandem.specdec.seen_times import Kind, SeenTimes

WINDOWS, ROUNDS = (4, 8, 16), (2, 4)
CHEAP_ROUNDS = (4, 8, 16)
"""Where passes cost more than time: the cloud waits for these."""
FRAME_BYTES, TOKEN_BYTES = 30.0, 3.0
"""Of a message without payload, and of a draft in it, as `bench bytes` measures."""
STAYS = 0.95
"""Another schedule must cost less than this share of the one in use: estimates are noisy, and what
is in flight is lost on a change."""
CHANGED = 0.04
"""By such a share a measurement has changed enough to choose again."""
ALONE = 1.5
"""So many sessions a pass, on average, are one."""
ALL = 1000
"""Timelines where time does not press."""
SLOWED = 1.3
"""Branches pay while they make a draft step at most so many times as long."""
OVERHEAD_S = 0.001
"""What the processors of both ends spend on a message and its answer: no timeline knows it."""
PRESSED = 0.1
"""Where that is such a share of a pass, it decides: rounds are looked at first, and nothing is
drafted for other outcomes. With the demo pair on two cores that took 1.7 times as long."""
BRANCH_STEPS = 8
"""Pre-drafting pays where so many draft steps take longer than a pass."""


CLOUD_ALONE = "the cloud alone"


class Reason(StrEnum):
    """What had changed most when a schedule was chosen."""

    FIRST = "first"
    ACCEPTANCE = "acceptance"
    ROUND_TRIP = "round_trip"
    LOAD = "load"
    STEP_TIMES = "step_times"
    SEEN_TIMES = "seen_times"
    TRIAL = "trial"


@dataclass(frozen=True, slots=True)
class Decision:
    """A schedule, whether to draft ahead for likely outcomes, what a token is expected to take
    with it, and what the cloud alone would take."""

    schedule: Schedule
    branches: bool
    tpot_s: float
    alone_tpot_s: float
    reason: Reason
    measured: Measured
    factors: Mapping[Kind, float]
    """By which expectations were corrected, as seen."""

    @property
    def ahead(self) -> bool:
        """Whether to draft past a round."""
        return not (overhead_share(self.measured) or self.measured.slows)

    @property
    def words(self) -> str:
        """The schedule in words."""
        schedule = self.schedule
        if not schedule.window:
            return CLOUD_ALONE
        if schedule.stop_and_wait:
            return f"rounds of {schedule.chunk}"
        return ("stream" if schedule.decode_when_idle else "stream that waits") + (
            f", window {schedule.window}"
        )


def choose(
    limits: Schedule,
    measured: Measured,
    idle_weight: float,
    before: Decision | None,
    outlooks: Outlooks | None = None,
    seen: SeenTimes | None = None,
    stays: float = STAYS,
    objective: Objective | None = None,
) -> Decision:
    """The decision to go on with; `before` itself where no other is clearly better. `outlooks` are
    what the session's earlier choices followed, without them all is followed now; `seen` is what
    its schedules took; another one must cost less than `stays` of the one in use. `objective`: what
    counts beside `idle_weight`; time, and target passes, where it is left out."""
    objective = objective or Objective(idle_weight)
    outlooks, seen = outlooks or Outlooks(ALL), seen or SeenTimes()
    overhead = overhead_share(measured)
    factors = seen.factors(overhead)
    has_changed = before is None or _has_changed(before, measured, factors)
    if before is not None and outlooks.settled and not has_changed:
        return before
    alone = cloud_alone(limits)
    expected = outlooks.expected(_in_order(limits, measured, idle_weight, before), measured)
    found = {
        schedule: replace(each, tpot_s=each.tpot_s * seen.factor(schedule, overhead))
        for schedule, each in expected.items()
    }
    costs = {
        schedule: objective.value(_estimate(each, measured), _estimate(found[alone], measured))
        for schedule, each in found.items()
    }
    if idle_weight < 1 and len(costs) > 1:
        del costs[alone]  # a cloud that may wait for drafts would wait for ever
    best = min(costs, key=lambda schedule: costs[schedule])
    used = before.schedule if before is not None and before.schedule in costs else alone
    used = used if used in costs else best
    if costs[best] > stays * costs[used]:
        best = used
    if before is not None and best == before.schedule and not has_changed:
        return before
    reason = Reason.FIRST if before is None else _reason(before, measured, factors)
    branches = best.window > 0 and _branches_pay(measured)
    tpot_s, alone_s = found[best].tpot_s, found[alone].tpot_s
    return Decision(best, branches, tpot_s, alone_s, reason, measured, factors)


def _in_order(
    limits: Schedule, measured: Measured, idle_weight: float, before: Decision | None
) -> list[Schedule]:
    """The candidates, those first without which there is no choice: the cloud alone, and the
    schedule in use, if it still may be. A cloud that costs nothing waits for no drafts of which
    nobody knows whether they are right, unless messages cost more than its waiting."""
    found = candidates(limits, measured, idle_weight)
    if measured.guesses_acceptance and idle_weight >= 1 and not overhead_share(measured):
        found = [schedule for schedule in found if schedule.decode_when_idle]
    if before is not None and (before.schedule.decode_when_idle or measured.sharing < ALONE):
        found = list(dict.fromkeys([found[0], before.schedule, *found[1:]]))
    return found


def candidates(limits: Schedule, measured: Measured, idle_weight: float) -> list[Schedule]:
    """The cloud alone; windows, in which it goes on meanwhile; where a session has the passes to
    itself also rounds and windows in which it waits for drafts."""
    fitted = window_for(limits, measured, idle_weight)
    cheap = CHEAP_ROUNDS if idle_weight < 1 else ()
    rounds = [Schedule(length, length) for length in cheap if length <= limits.window]
    if measured.sharing >= ALONE:
        shared = [replace(fitted, decode_when_idle=True)] if fitted.window else []
        return list(dict.fromkeys([cloud_alone(limits), *shared, limits, *rounds]))
    short = [Schedule(length, length) for length in ROUNDS if length <= limits.chunk]
    found = [cloud_alone(limits), fitted]
    if overhead_share(measured):
        found[1:1] = reversed(short)
    for window in WINDOWS:
        if window <= limits.window:
            chunk = min(limits.chunk, window)
            found.append(replace(limits, window=window, chunk=chunk))
            found.append(replace(limits, window=window, chunk=chunk, decode_when_idle=False))
    return list(dict.fromkeys([*found, *short, *rounds]))


def overhead_share(measured: Measured) -> float:
    """What processors spend on a message and its answer, relative to a pass; 0 where that is
    little."""
    share = OVERHEAD_S / measured.pair.verify_first_s
    return share if share > PRESSED else 0.0


def cloud_alone(limits: Schedule) -> Schedule:
    """Nothing is drafted."""
    return replace(limits, window=0, chunk=0)


def _branches_pay(measured: Measured) -> bool:
    """Whether drafts that are begun with a correction would come late, and more than one is of
    use."""
    pair = measured.pair
    if measured.branching > SLOWED or overhead_share(measured) or measured.slows:
        return False
    price = measured.sharing * pair.verify_further_s / pair.verify_first_s
    deep, _ = worth_feeding(measured.acceptance_rate, 2, price)
    return deep > 1 and BRANCH_STEPS * pair.draft_s > pair.verify_first_s


def _estimate(found: Expected, measured: Measured) -> Estimate:
    """Of a token; a pass that others share is theirs too."""
    pair, drafts = measured.pair, max(0.0, found.fed - found.passes)
    cloud_s = found.passes * pair.verify_first_s / measured.sharing + drafts * pair.verify_further_s
    link_bytes = (found.frames + found.passes) * FRAME_BYTES + found.drafted * TOKEN_BYTES
    drafting_s = found.drafted * pair.draft_s
    return Estimate(found.tpot_s, found.passes, cloud_s, link_bytes, drafting_s)


def _reason(before: Decision, now: Measured, factors: Mapping[Kind, float]) -> Reason:
    changes = _changes(before, now, factors)
    return max(changes, key=lambda reason: changes[reason])


def _has_changed(before: Decision, now: Measured, factors: Mapping[Kind, float]) -> bool:
    slows = before.measured.slows != now.slows
    return slows or max(_changes(before, now, factors).values()) > CHANGED


def _changes(
    decision: Decision, now: Measured, factors: Mapping[Kind, float]
) -> dict[Reason, float]:
    """By what share each measurement has changed; 0.1 of acceptance counts as a fifth."""
    before = decision.measured
    step_s = max(before.pair.verify_first_s, now.pair.verify_first_s)
    seen = (_change(decision.factors.get(kind, 1.0), factors[kind]) for kind in factors)
    return {
        Reason.ACCEPTANCE: 2 * abs(now.acceptance_rate - before.acceptance_rate),
        Reason.ROUND_TRIP: abs(now.rtt_s - before.rtt_s) / (step_s + before.rtt_s),
        Reason.LOAD: _change(before.sharing, now.sharing),
        Reason.STEP_TIMES: max(
            _change(before.pair.verify_first_s, now.pair.verify_first_s),
            abs(before.pair.draft_s - now.pair.draft_s) / step_s,
        ),
        Reason.SEEN_TIMES: max(seen, default=0.0),
    }


def _change(before: float, now: float) -> float:
    return abs(now - before) / max(before, now)
