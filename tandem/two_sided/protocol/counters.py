"""The counts and measurements that one side's machine takes of a request. Invariant: durations are
differences of one clock."""

import math
from dataclasses import dataclass, field

from tandem.two_sided.protocol.messages import SideDraftFrame
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.profiler import SideProfiler

MAX_REMEMBERED = 256
"""Sent frames whose times are kept."""


@dataclass(slots=True)
class AggregationStats:
    """Running totals of one request, as one side sees them."""

    tokens: int = 0
    unverified_tokens: int = 0
    drafted: dict[Side, int] = field(default_factory=lambda: dict.fromkeys(Side, 0))
    """Drafts that were there when their position was decided, by their side."""
    accepted: dict[Side, int] = field(default_factory=lambda: dict.fromkeys(Side, 0))
    decode_s: dict[Side, float] = field(default_factory=lambda: dict.fromkeys(Side, 0.0))
    side_moves: int = 0
    fetches: int = 0
    streams: int = 0
    links_lost: int = 0
    loss_noticed_s: float = 0.0

    @property
    def resumes(self) -> int:
        """Streams after the first."""
        return max(0, self.streams - 1)


class AggregationCounters:
    """`stats` are the totals; `trips` belong to the stream that is open now."""

    def __init__(self, profiler: SideProfiler | None) -> None:
        self.stats = AggregationStats()
        self.trips = RoundTrips()
        self._profiler = profiler

    def decoded(self, side: Side, position: int, decode_s: float) -> None:
        """Count a draft of that side, which arrived; `decode_s` by its decoder's clock."""
        self.stats.decode_s[side] += decode_s
        if self._profiler is not None and decode_s > 0:
            self._profiler.decoded(side, position, decode_s)

    def verified(self, side: Side, accepted: bool) -> None:
        """Count a draft of that side whose position was decided."""
        self.stats.drafted[side] += 1
        self.stats.accepted[side] += accepted
        if self._profiler is not None:
            self._profiler.verified(side, accepted)

    def answered(self, frame: SideDraftFrame, side: Side, size_bytes: int, now: float) -> None:
        """Measure by a draft that arrived at `side`; it says which of this side's frames the other
        had received, and when."""
        answered = self.trips.answered(frame.heard, now)
        if self._profiler is None or not math.isfinite(frame.held_s):
            return
        if size_bytes:
            self._profiler.drafted(side.other, size_bytes)
        if answered is not None:
            elapsed_s, sent_bytes = answered
            sizes = (sent_bytes, size_bytes)
            up, down = sizes if side is Side.DEVICE else reversed(sizes)
            self._profiler.exchanged(up, down, elapsed_s, frame.held_s)


class RoundTrips:
    """Round trips of one stream, without comparing two clocks: every draft says how many frames of
    the other end it had received, and how long ago the newest."""

    def __init__(self) -> None:
        self._frames: dict[int, tuple[float, int]] = {}  # when each was sent, and its size
        self._sent = 0
        self._sized = 0
        self.heard = 0
        self._heard_s = 0.0

    def sent(self, now: float) -> None:
        """Count a frame that was handed to the stream."""
        self._sent += 1
        self._frames[self._sent] = now, 0
        if len(self._frames) > MAX_REMEMBERED:
            del self._frames[next(iter(self._frames))]

    def sized(self, size_bytes: int) -> None:
        """Take the size of the next of the frames that were sent, in their order."""
        self._sized += 1
        if (frame := self._frames.get(self._sized)) is not None:
            self._frames[self._sized] = frame[0], size_bytes

    def received(self, now: float) -> None:
        """Count a frame of the other end, which arrived."""
        self.heard += 1
        self._heard_s = now

    def held_s(self, now: float) -> float:
        """Return how long ago the newest of those arrived."""
        return max(0.0, now - self._heard_s) if self.heard else 0.0

    def answered(self, heard: int, now: float) -> tuple[float, int] | None:
        """Return the time since this end sent frame number `heard` and its size, 0 where that is
        not known; None but for the first answer to it."""
        frame = self._frames.get(heard)
        for number in [known for known in self._frames if known <= heard]:
            del self._frames[number]
        return None if frame is None else (now - frame[0], frame[1])
