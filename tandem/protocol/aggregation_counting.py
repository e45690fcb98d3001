"""What one side's machine counts and measures of a request, and tells a profiler.

Invariant: durations are differences of one clock. Must not import asyncio, grpc, torch or time.
"""

from __future__ import annotations

import math
from typing import Protocol

from tandem.core.aggregation import Side
from tandem.protocol.aggregation_messages import SideDraftFrame
from tandem.protocol.aggregation_outputs import AggregationStats
from tandem.protocol.round_trips import RoundTrips


class Measuring(Protocol):
    """What is told of what the frames show (`policy.profiler.SideProfiler`)."""

    def decoded(self, side: Side, length: int, duration_s: float) -> None: ...

    def exchanged(
        self, up_bytes: int, down_bytes: int, elapsed_s: float, held_s: float = 0.0
    ) -> None: ...

    def drafted(self, side: Side, size: int) -> None: ...

    def judged(self, side: Side, accepted: float) -> None: ...


class AggregationCounting:
    """`stats` are the totals; `trips` belong to the stream that is open now."""

    def __init__(self, measuring: Measuring | None) -> None:
        self.stats = AggregationStats()
        self.trips = RoundTrips()
        self._measuring = measuring

    def begin_stream(self) -> None:
        self.stats.streams += 1
        self.trips = RoundTrips()

    def lost_stream(self, silent_s: float) -> None:
        self.stats.links_lost += 1
        self.stats.loss_noticed_s = max(self.stats.loss_noticed_s, silent_s)

    def decoded(self, side: Side, position: int, decode_s: float) -> None:
        """A draft came, and what its decoder says it took."""
        self.stats.decode_s[side] += decode_s
        if self._measuring is not None and decode_s > 0:
            self._measuring.decoded(side, position, decode_s)

    def judged(self, side: Side, accepted: bool) -> None:
        """A draft's position was decided."""
        self.stats.drafted[side] += 1
        self.stats.accepted[side] += accepted
        if self._measuring is not None:
            self._measuring.judged(side, float(accepted))

    def committed(self, count: int, unverified: bool) -> None:
        self.stats.tokens += count
        self.stats.unverified_tokens += count if unverified else 0

    def answered(self, frame: SideDraftFrame, side: Side, size_bytes: int, now: float) -> None:
        """A draft came to `side` in so many bytes, and says which of this side's frames the other
        had heard, and how long ago."""
        elapsed_s = self.trips.elapsed_s(frame.heard, now)
        if self._measuring is None or not math.isfinite(frame.held_s):
            return
        if size_bytes:
            self._measuring.drafted(side.other, size_bytes)
        if elapsed_s is None:
            return
        there, back = self.trips.size(frame.heard), size_bytes
        up, down = (there, back) if side is Side.DEVICE else (back, there)
        self._measuring.exchanged(up, down, elapsed_s, frame.held_s)
