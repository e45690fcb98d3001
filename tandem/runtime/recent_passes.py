"""What an engine's passes took of late, for edges that choose among clouds. Invariant: what an
engine took when it was busy is not held against it once it has had nothing to do for a while; else
nobody would come to see that it is quick again."""

import itertools
from collections.abc import Sequence
from math import inf
from statistics import median
from struct import Struct

RECENT_PASSES = 31
COUNT_S = 5.0
"""How long a pass, or a job's wait for one, says something about the next."""

_PAIR, _PAIRS = Struct("dd"), Struct(f"{2 * RECENT_PASSES}d")
_write = _PAIR.pack_into


class _Seen:
    """The last times that were seen, each after the moment when. One call writes both, so that any
    thread may. They lie together: a simulated fleet has hundreds of these in use."""

    __slots__ = ("pairs", "places")

    def __init__(self) -> None:
        self.pairs = bytearray(_PAIR.pack(-inf, inf) * RECENT_PASSES)
        self.places = itertools.cycle(range(0, len(self.pairs), _PAIR.size))

    def lately(self, now: float) -> Sequence[float]:
        """Those of the last seconds."""
        pairs = _PAIRS.unpack(self.pairs)
        moments, times_s = pairs[::2], pairs[1::2]
        if now - min(moments) <= COUNT_S:
            return times_s
        return [each for at, each in zip(moments, times_s, strict=True) if now - at <= COUNT_S]

    def quickest(self) -> float:
        """0 before the first."""
        least_s = min(_PAIRS.unpack(self.pairs)[1::2])
        return 0.0 if least_s == inf else least_s


class RecentPasses:
    """Times of the last passes and of the last waits for them; used by any thread."""

    __slots__ = ("_passes", "_waits")

    def __init__(self) -> None:
        self._passes, self._waits = _Seen(), _Seen()

    def passed(self, pass_s: float, now: float) -> None:
        """The engine made one pass, which ends `now`."""
        seen = self._passes
        _write(seen.pairs, next(seen.places), now, pass_s)

    def waited(self, queue_s: float, now: float) -> None:
        """A job that ends `now` had waited so long for its first pass."""
        seen = self._waits
        _write(seen.pairs, next(seen.places), now, queue_s)

    def pass_s(self, now: float) -> float:
        """The median pass of the last seconds, else the quickest that is remembered, since others
        may have shared the rest or fed them prompts; 0 before the first."""
        recent = self._passes.lately(now)
        return median(recent) if recent else self._passes.quickest()

    def queue_s(self, now: float) -> float:
        """The median wait of the last seconds; 0 where nothing waited."""
        recent = self._waits.lately(now)
        return median(recent) if recent else 0.0
