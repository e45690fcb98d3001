"""How many threads a pass gets, chosen by what passes take.

llama.cpp's threads wait for each other by spinning: with one more of them than there are free
processors, a pass takes several times as long. How many are free changes: a draft model on the same
machine comes and goes, and so do other programs. So all are used as long as that is fast, fewer are
tried when a pass is slow, more now and then, and the number that is faster now is kept. No bit of a
result depends on it: each number of a product is summed by one thread.

Pure: times are arguments.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from statistics import median

MOST_ROWS = 32
"""Longer passes are not compared: hardly two of them have the same number of rows."""
_RECENT = 3
"""Passes whose median counts as what a pass takes."""
_FASTER = 0.95
"""A trial must take less than this share of the current time."""
_SLOWED = 1.5
"""A pass this many times as slow as usual tells that something else runs now."""
_PAUSE_S = 0.5
"""After a pause as long as this, all threads are used again: whoever made them slow may be gone."""
_SOONEST_FEWER, _LATEST_FEWER = 32, 512
_SOONEST_MORE, _LATEST_MORE = 8, 64
"""Passes before the next trial of fewer threads without a reason, and of more. Each trial that lost
doubles the number."""


def halvings(most: int) -> list[int]:
    """Return `most` threads, half of that, and so on down to one."""
    counts = [most]
    while counts[-1] > 1:
        counts.append(counts[-1] // 2)
    return counts


class AdaptiveThreads:
    """Chooses among numbers of threads, from most to fewest."""

    def __init__(self, counts: Sequence[int]) -> None:
        self._counts = tuple(counts)
        self._current = 0
        self._tried: int | None = None
        self._more_next = False
        self._passes = 0
        self._interval = self._next_trial = _SOONEST_FEWER
        self._took_s: dict[tuple[int, int], deque[float]] = defaultdict(
            lambda: deque(maxlen=_RECENT)
        )

    @property
    def current(self) -> int:
        """The number of threads that passes get, but for trials."""
        return self._counts[self._current]

    def choose(self, rows: int, paused_s: float = 0.0) -> int:
        """Return the number of threads of the next pass, over `rows` rows, which begins `paused_s`
        after the last one ended. `took` follows."""
        if paused_s >= _PAUSE_S and self._current > 0:
            self._use(0)
        self._tried = None
        self._passes += 1
        last = len(self._counts) - 1
        due = self._passes >= self._next_trial and self._usual_s(self._current, rows) is not None
        if due and last and rows <= MOST_ROWS:
            # One step: fewer where all are used, else more and fewer in turn.
            self._more_next = not self._more_next
            more = self._current == last or (self._current > 0 and self._more_next)
            self._tried = self._current + (-1 if more else 1)
        return self._counts[self._current if self._tried is None else self._tried]

    def took(self, rows: int, pass_s: float) -> None:
        """Record the seconds of the pass that `choose` was asked for."""
        if rows > MOST_ROWS:
            return
        usual_s = self._usual_s(self._current, rows)
        count = self._current if self._tried is None else self._tried
        self._took_s[count, rows].append(pass_s)
        if self._tried is None:
            fewer_s = self._usual_s(self._current + 1, rows)
            limits_s = [_SLOWED * usual_s] if usual_s is not None else []
            limits_s += [fewer_s] if fewer_s is not None else []
            if limits_s and pass_s > min(limits_s):
                self._next_trial = min(self._next_trial, self._passes + 1)
        elif usual_s is not None and pass_s < _FASTER * usual_s:
            self._use(self._tried)
        else:
            latest = _LATEST_MORE if self._current else _LATEST_FEWER
            self._interval = min(2 * self._interval, latest)
            self._next_trial = self._passes + self._interval

    def _use(self, index: int) -> None:
        self._current = index
        self._interval = _SOONEST_MORE if index else _SOONEST_FEWER
        self._next_trial = self._passes + self._interval

    def _usual_s(self, index: int, rows: int) -> float | None:
        times = self._took_s.get((index, rows))
        return median(times) if times else None
