"""What an engine's passes took of late, for edges that choose among clouds. Invariant: an engine
that has had nothing to do for a while makes nobody wait."""

import threading
from collections import deque
from statistics import median

RECENT_PASSES = 31
WAITS_COUNT_S = 5.0
"""How long a job's wait says something about the next one's."""


class RecentPasses:
    """Times of the last passes and of the last waits for them; used by any thread."""

    def __init__(self) -> None:
        self._adding = threading.Lock()
        self._passes_s: deque[float] = deque(maxlen=RECENT_PASSES)
        self._waits: deque[tuple[float, float]] = deque(maxlen=RECENT_PASSES)

    def passed(self, pass_s: float) -> None:
        """The engine made one pass."""
        with self._adding:
            self._passes_s.append(pass_s)

    def waited(self, queue_s: float, now: float) -> None:
        """A job that ends `now` had waited so long for its first pass."""
        with self._adding:
            self._waits.append((now, queue_s))

    @property
    def pass_s(self) -> float:
        """The median pass; 0 before the first."""
        with self._adding:
            return median(self._passes_s) if self._passes_s else 0.0

    def queue_s(self, now: float) -> float:
        """The median wait of the last seconds; 0 where nothing waited."""
        with self._adding:
            recent = [waited_s for at, waited_s in self._waits if now - at <= WAITS_COUNT_S]
        return median(recent) if recent else 0.0
