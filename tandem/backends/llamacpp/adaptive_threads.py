"""How many threads a pass gets, chosen by what passes take.

llama.cpp's threads wait for each other by spinning: with one more of them than there are free
processors, a pass takes several times as long. How many are free changes: a draft model on the same
machine comes and goes, and so do other programs. So the number is tried while answers run, and the
one that is faster now is kept. No bit of a result depends on it: each number of a product is summed
by one thread.

Pure: times are arguments.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from statistics import median

MOST_ROWS = 8
"""Passes over more rows are prompts: too few and too different to compare."""
_RECENT = 5
"""Passes whose median counts as what a pass takes now."""
_FASTER = 0.95
"""A trial must take less than this share of the current time."""
_SLOWED = 1.5
"""A pass this many times as slow as usual tells that something else runs now."""
_SOONEST = 16
_LATEST = 512
"""Passes between two trials: the next comes twice as late after each that lost."""


def halvings(most: int) -> list[int]:
    """Return `most` threads, half of that, and so on down to one."""
    counts = [most]
    while counts[-1] > 1:
        counts.append(counts[-1] // 2)
    return counts


class AdaptiveThreads:
    """Chooses among numbers of threads, of which the first is the one to begin with."""

    def __init__(self, counts: Sequence[int]) -> None:
        self._counts = tuple(counts)
        self._current = 0
        self._tried: int | None = None
        self._fewer_next = True
        self._passes = 0
        self._interval = _SOONEST
        self._next_trial = _SOONEST
        self._took_s: dict[tuple[int, int], deque[float]] = defaultdict(
            lambda: deque(maxlen=_RECENT)
        )

    @property
    def current(self) -> int:
        """The number of threads that passes get, but for trials."""
        return self._counts[self._current]

    def choose(self, rows: int) -> int:
        """Return the number of threads of the next pass, over `rows` rows; `took` follows it."""
        self._tried = None
        if rows <= MOST_ROWS and len(self._counts) > 1:
            self._passes += 1
            if self._passes >= self._next_trial and self._usual_s(rows) is not None:
                self._tried = self._neighbour()
        return self._counts[self._current if self._tried is None else self._tried]

    def took(self, rows: int, pass_s: float) -> None:
        """Record the seconds of the pass that `choose` was asked for."""
        if rows > MOST_ROWS or len(self._counts) == 1:
            return
        usual_s = self._usual_s(rows)
        if self._tried is None:
            self._took_s[self._current, rows].append(pass_s)
            if usual_s is not None and pass_s > _SLOWED * usual_s:
                self._interval = _SOONEST
                self._next_trial = min(self._next_trial, self._passes + 1)
                self._fewer_next = True
            return
        won = usual_s is not None and pass_s < _FASTER * usual_s
        if won:
            self._current = self._tried
            self._took_s.clear()  # of other times
            self._took_s[self._current, rows].append(pass_s)
        self._interval = _SOONEST if won else min(2 * self._interval, _LATEST)
        self._next_trial = self._passes + self._interval

    def _usual_s(self, rows: int) -> float | None:
        times = self._took_s.get((self._current, rows))
        return median(times) if times else None

    def _neighbour(self) -> int:
        """Return the number to try: the next lower and the next higher one in turn."""
        fewer, self._fewer_next = self._fewer_next, not self._fewer_next
        last = len(self._counts) - 1
        if self._current == 0 or (fewer and self._current < last):
            return self._current + 1
        return self._current - 1
