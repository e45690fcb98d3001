"""What an engine's passes took of late, for edges that choose among clouds. Invariant: what an
engine took when it was busy is not held against it once it has had nothing to do for a while; else
nobody would come to see that it is quick again."""

import threading
from collections import deque
from statistics import median

RECENT_PASSES = 31
COUNT_S = 5.0
"""How long a pass, or a job's wait for one, says something about the next."""


class _Seen:
    """The last times that were seen, and when, in that order."""

    def __init__(self) -> None:
        self.moments: deque[float] = deque(maxlen=RECENT_PASSES)
        self.times_s: deque[float] = deque(maxlen=RECENT_PASSES)

    def lately(self, now: float) -> list[float]:
        """Those of the last seconds: all, if the first is one of them."""
        if not self.moments or now - self.moments[0] <= COUNT_S:
            return list(self.times_s)
        seen = zip(self.moments, self.times_s, strict=True)
        return [took_s for at, took_s in seen if now - at <= COUNT_S]


class RecentPasses:
    """Times of the last passes and of the last waits for them; used by any thread."""

    def __init__(self) -> None:
        self._adding = threading.Lock()
        self._passes, self._waits = _Seen(), _Seen()

    def passed(self, pass_s: float, now: float) -> None:
        """The engine made one pass, which ends `now`."""
        with self._adding:
            self._passes.moments.append(now)
            self._passes.times_s.append(pass_s)

    def waited(self, queue_s: float, now: float) -> None:
        """A job that ends `now` had waited so long for its first pass."""
        with self._adding:
            self._waits.moments.append(now)
            self._waits.times_s.append(queue_s)

    def pass_s(self, now: float) -> float:
        """The median pass of the last seconds, else the quickest that is remembered, since others
        may have shared the rest or fed them prompts; 0 before the first."""
        with self._adding:
            recent, passes = self._passes.lately(now), self._passes.times_s
            return median(recent) if recent else min(passes, default=0.0)

    def queue_s(self, now: float) -> float:
        """The median wait of the last seconds; 0 where nothing waited."""
        with self._adding:
            recent = self._waits.lately(now)
        return median(recent) if recent else 0.0
