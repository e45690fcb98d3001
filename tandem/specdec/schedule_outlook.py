"""What a token takes under each schedule a session may choose, without following every timeline
anew: a timeline depends on times relative to a pass, which change little, and acceptance, which
changes with every verdict, only weighs its positions. Invariant: pure; at most `per_choice`
timelines are followed at a time, and until its turn a schedule has the one followed last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import log2

from tandem.specdec.choices import Schedule
from tandem.specdec.epoch_timeline import Epoch, Expected, StepTimes, per_token, timeline
from tandem.specdec.scheduling import Measured

DEPTH = 32
"""Positions followed: two of the widest windows, after which a timeline repeats itself."""
PER_CHOICE = 3
"""Timelines a choice follows on an event loop: a tenth of a millisecond each."""
FINENESS = 24
"""Steps in which a time that is an eighth of a pass doubles."""
RARE = 0.02
"""Hits of pre-drafting that are as good as none."""
KEPT = 4096
"""Timelines kept for all sessions of a process, 3 KiB each: times come in steps, and recur."""

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
        self._stacked: Epoch | None = None

    def expected(
        self, schedules: Sequence[Schedule], measured: Measured
    ) -> dict[Schedule, Expected]:
        """Of those that were followed yet, by what is measured now."""
        early = (False, True) if measured.hit_rate > RARE else (False,)
        wanted = [
            (schedule, hit) for hit in early for schedule in schedules if schedule.window or not hit
        ]
        self._follow(wanted, measured)
        return self._weighed(measured)

    def expected_of(self, schedule: Schedule, measured: Measured) -> Expected | None:
        """Of one of those that were asked for last; None if it was not followed."""
        return self._weighed(measured).get(schedule)

    def _follow(self, wanted: Sequence[tuple[Schedule, bool]], measured: Measured) -> None:
        times = {each: _rounded(*each, measured) for each in wanted}
        stale = [
            each
            for each in wanted
            if each not in self._kept or self._kept[each].times != times[each]
        ]
        stale.sort(key=lambda each: each in self._kept)  # the others have an outlook, if an old one
        self.settled = len(stale) <= self.per_choice
        for each in stale[: self.per_choice]:
            self._kept[each] = _Followed(times[each], _follow(each[0], times[each]))
            self.followed += 1
        kept = {each: self._kept[each] for each in wanted if each in self._kept}
        if stale or list(kept) != list(self._kept):
            self._kept = kept
            self._stacked = Epoch.stack([followed.epoch for followed in kept.values()])

    def _weighed(self, measured: Measured) -> dict[Schedule, Expected]:
        """By acceptance, and by how often a correction had been drafted for."""
        rate = measured.acceptance_rate
        if self._stacked is None:
            return {}
        sums = dict(zip(self._kept, self._stacked.expected(rate), strict=True))
        found = {}
        for (schedule, early), plain in sums.items():
            if not early:
                hit, share = sums.get((schedule, True)), measured.hit_rate
                epoch = plain if hit is None else (1 - share) * plain + share * hit
                epoch[1] *= measured.pair_under(schedule).verify_first_s
                found[schedule] = per_token(epoch)
        return found


@lru_cache(maxsize=KEPT)
def _follow(schedule: Schedule, times: _Times) -> Epoch:
    draft, further, wait, trip, early, ahead = times
    steps = StepTimes(
        draft_s=draft, pass_s=1.0, further_s=further, wait_s=wait, up_s=trip / 2, down_s=trip / 2
    )
    head = trip + 1.0 if early else 0.0
    return Epoch.of(timeline(schedule, steps, DEPTH, head_s=head, ahead=ahead))


def _rounded(schedule: Schedule, early: bool, measured: Measured) -> _Times:
    """In passes; of the cloud alone nothing else counts."""
    if not schedule.window:
        return 0.0, 0.0, 0.0, 0.0, False, False
    pair = measured.pair_under(schedule)
    draft, further, wait, trip = (
        _grid(seconds / pair.verify_first_s)
        for seconds in (pair.draft_s, pair.verify_further_s, measured.wait_s, measured.rtt_s)
    )
    ahead = schedule.stop_and_wait and measured.hit_rate > RARE
    return draft, further, wait, trip, early, ahead


def _grid(ratio: float) -> float:
    """The next of the values that lie even, and from an eighth on as a geometric series."""
    level = round(FINENESS * log2(1 + 8 * ratio))
    return float((2.0 ** (level / FINENESS) - 1) / 8)
