"""What a token takes under each schedule a session may choose, without following every timeline
anew: a timeline depends on times relative to a pass, which change little, and acceptance, which
changes with every verdict, only weighs its positions. Invariant: pure; at most `per_choice`
timelines are followed at a time, and until its turn a schedule has the one followed last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log2

from tandem.specdec.choices import Schedule
from tandem.specdec.epoch_timeline import Epoch, Expected, StepTimes, per_token, timeline
from tandem.specdec.scheduling import Measured

DEPTH = 32
"""Positions followed: two of the widest windows, after which a timeline repeats itself."""
PER_CHOICE = 2
"""Timelines a choice follows on an event loop: a tenth of a millisecond each."""
FINENESS = 24
"""Steps in which a time that is an eighth of a pass doubles."""
RARE = 0.02
"""Hits of pre-drafting that are as good as none."""

_Times = tuple[float, float, float, float, bool, bool]


@dataclass(slots=True)
class _Followed:
    times: _Times
    epoch: Epoch


class Outlooks:
    """Of one session. Schedules come in the order of their importance."""

    def __init__(self, per_choice: int = PER_CHOICE) -> None:
        self.per_choice = per_choice
        self.followed = 0
        """Timelines, so far."""
        self.settled = False
        """Whether all that was asked for last was followed by then."""
        self._kept: dict[tuple[Schedule, bool], _Followed] = {}

    def expected(
        self, schedules: Sequence[Schedule], measured: Measured
    ) -> dict[Schedule, Expected]:
        """Of those that were followed yet, by what is measured now."""
        hits = measured.hit_rate > RARE
        wanted = [
            (schedule, early)
            for early in ((False, True) if hits else (False,))
            for schedule in schedules
            if not early or schedule.window
        ]
        self._follow(wanted, measured)
        return {
            schedule: self._of(schedule, measured, hits)
            for schedule in schedules
            if (schedule, False) in self._kept
        }

    def expected_of(self, schedule: Schedule, measured: Measured) -> Expected | None:
        """Of one of those that were asked for last; None if it was not followed."""
        if (schedule, False) not in self._kept:
            return None
        return self._of(schedule, measured, measured.hit_rate > RARE)

    def _follow(self, wanted: Sequence[tuple[Schedule, bool]], measured: Measured) -> None:
        times = {each: _rounded(*each, measured) for each in wanted}
        stale = [
            each
            for each in wanted
            if each not in self._kept or self._kept[each].times != times[each]
        ]
        self.settled = len(stale) <= self.per_choice
        for each in stale[: self.per_choice]:
            self._kept.pop(each, None)
            self._kept[each] = _Followed(times[each], _follow(each[0], times[each]))
            self.followed += 1
        self._kept = {each: self._kept[each] for each in wanted if each in self._kept}

    def _of(self, schedule: Schedule, measured: Measured, hits: bool) -> Expected:
        rate = measured.acceptance_rate
        sums = self._kept[schedule, False].epoch.expected(rate)
        if hits and (schedule, True) in self._kept:
            early = self._kept[schedule, True].epoch.expected(rate)
            sums = (1 - measured.hit_rate) * sums + measured.hit_rate * early
        found = per_token(sums)
        return replace(found, tpot_s=found.tpot_s * measured.pair.verify_first_s)


def _follow(schedule: Schedule, times: _Times) -> Epoch:
    draft, further, wait, trip, early, ahead = times
    steps = StepTimes(
        draft_s=draft, pass_s=1.0, further_s=further, wait_s=wait, up_s=trip / 2, down_s=trip / 2
    )
    head = trip + 1.0 if early else 0.0
    return Epoch(timeline(schedule, steps, DEPTH, head_s=head, ahead=ahead))


def _rounded(schedule: Schedule, early: bool, measured: Measured) -> _Times:
    """In passes; of the cloud alone nothing else counts."""
    if not schedule.window:
        return 0.0, 0.0, 0.0, 0.0, False, False
    pair = measured.pair
    draft, further, wait, trip = (
        _grid(seconds / pair.verify_first_s)
        for seconds in (pair.draft_s, pair.verify_further_s, measured.wait_s, measured.rtt_s)
    )
    return draft, further, wait, trip, early, measured.hit_rate > RARE


def _grid(ratio: float) -> float:
    """The next of the values that lie even, and from an eighth on as a geometric series."""
    level = round(FINENESS * log2(1 + 8 * ratio))
    return float((2.0 ** (level / FINENESS) - 1) / 8)
