"""The recent times of an engine's passes, by which a simulated edge chooses its schedule.

Invariant: what an engine took when it was busy is not held against it once it has had nothing to do
for a while."""

from collections import deque
from statistics import median

RECENT_PASSES = 31
COUNT_S = 5.0
"""How long a pass, or a job's wait for one, says something about the next."""


class RecentPasses:
    """Times of the last passes and of the last waits for them, each with the moment when it was
    measured. Used by any thread: appending to a deque and copying it are atomic."""

    def __init__(self) -> None:
        self._passes: deque[tuple[float, float]] = deque(maxlen=RECENT_PASSES)
        self._waits: deque[tuple[float, float]] = deque(maxlen=RECENT_PASSES)

    def passed(self, pass_s: float, now: float) -> None:
        """Record one pass of the engine, which ends `now`."""
        self._passes.append((now, pass_s))

    def waited(self, queue_s: float, now: float) -> None:
        """Record how long a job that ends `now` had waited for its first pass."""
        self._waits.append((now, queue_s))

    def pass_s(self, now: float) -> float:
        """Return the median pass of the last seconds, else the quickest that is remembered, since
        others may have shared the rest or fed them prompts; 0 before the first."""
        passes = self._passes.copy()
        recent = [seconds for at, seconds in passes if now - at <= COUNT_S]
        return median(recent) if recent else min((seconds for _, seconds in passes), default=0.0)

    def queue_s(self, now: float) -> float:
        """Return the median wait of the last seconds; 0 where nothing waited."""
        recent = [seconds for at, seconds in self._waits.copy() if now - at <= COUNT_S]
        return median(recent) if recent else 0.0
