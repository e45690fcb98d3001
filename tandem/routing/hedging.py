"""Hedging: when a session asks a second cloud for what the first is silent about, as Dean and
Barroso's "The Tail at Scale" (2013) hedges requests. Invariant: all times are the caller's `now`;
of all rounds no more than a share are hedged, whatever the clouds do."""

from __future__ import annotations

from collections import deque
from statistics import median

from tandem.specdec.liveness import TICK_S

LEAST_S = 0.3
TIMES = 4.0
"""An answer is late after so many times what it usually takes, and not before the least."""
RECENT = 16
FEWEST = 4
"""Of so many answers the median is usual; with fewer nothing is."""
MOST_SAVED = 8.0
"""Rounds that may be hedged in a row after a long time without."""


class HedgeBudget:
    """Hedging budget of one drafter, for all its sessions."""

    def __init__(self, share: float) -> None:
        """Create the budget; `share` of the rounds may be hedged, none at 0."""
        self._share = share
        self._left = 1.0 if share else 0.0

    def answered(self) -> None:
        """Record an answer to a round."""
        self._left = min(self._left + self._share, MOST_SAVED)

    def take(self) -> bool:
        """Return whether one more round may be hedged, and count it."""
        if self._left < 1:
            return False
        self._left -= 1
        return True


class StallWatch:
    """Waiting time of one session for its cloud's answers."""

    def __init__(self) -> None:
        self._usual_s: deque[float] = deque(maxlen=RECENT)
        self._first = True
        self._since_s: float | None = None
        self._ticked_s: float | None = None

    def waits(self, now: float) -> None:
        """Note that an answer is awaited from now on, if none was before."""
        if self._since_s is None:
            self._since_s = now

    def answered(self, now: float, more: bool) -> None:
        """Record an answer; `more`: the next one is awaited already."""
        if self._since_s is not None and not self._first:  # the first one waits for the prompt
            self._usual_s.append(now - self._since_s)
        self._first = False
        self._since_s = now if more else None

    def moved(self) -> None:
        """Record a move to another stream, whose first answer waits for the text to be fed
        there."""
        self._first = True
        self._since_s = None

    def stalled(self, now: float) -> bool:
        """Return whether the answer is late. Called regularly: in a time in which this process did
        not get to run, an answer may have come and wait to be read."""
        missed_s = 0.0 if self._ticked_s is None else now - self._ticked_s - TICK_S
        self._ticked_s = now
        if self._since_s is None or len(self._usual_s) < FEWEST:
            return False
        if missed_s > 0:
            self._since_s = min(self._since_s + missed_s, now)
        return now - self._since_s >= max(LEAST_S, TIMES * median(self._usual_s))
