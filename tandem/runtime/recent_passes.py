"""What an engine's passes took of late, for edges that choose among clouds. Invariant: what an
engine took when it was busy is not held against it once it has had nothing to do for a while; else
nobody would come to see that it is quick again."""

from collections import deque
from statistics import median

RECENT_PASSES = 31
COUNT_S = 5.0
"""How long a pass, or a job's wait for one, says something about the next."""


class RecentPasses:
    """Times of the last passes and of the last waits for them; used by any thread, as a deque's
    `append` and `copy` may be."""

    def __init__(self) -> None:
        self._passes: deque[tuple[float, float]] = deque(maxlen=RECENT_PASSES)
        self._waits: deque[tuple[float, float]] = deque(maxlen=RECENT_PASSES)

    def passed(self, pass_s: float, now: float) -> None:
        """The engine made one pass, which ends `now`."""
        self._passes.append((now, pass_s))

    def waited(self, queue_s: float, now: float) -> None:
        """A job that ends `now` had waited so long for its first pass."""
        self._waits.append((now, queue_s))

    def pass_s(self, now: float) -> float:
        """The median pass of the last seconds, else the quickest that is remembered, since others
        may have shared the rest or fed them prompts; 0 before the first."""
        passes = self._passes.copy()
        recent = _recent(passes, now)
        return median(recent) if recent else min((took_s for _, took_s in passes), default=0.0)

    def queue_s(self, now: float) -> float:
        """The median wait of the last seconds; 0 where nothing waited."""
        recent = _recent(self._waits.copy(), now)
        return median(recent) if recent else 0.0


def _recent(seen: deque[tuple[float, float]], now: float) -> list[float]:
    """Those of the last seconds: all, if the first is one of them."""
    if seen and now - seen[0][0] <= COUNT_S:
        return [took_s for _, took_s in seen]
    return [took_s for at, took_s in seen if now - at <= COUNT_S]
