"""Round trips from frames that travel anyway, without comparing two clocks.

Every draft says how many frames of the other end had come, and how long ago the newest. Must not
import asyncio, grpc, torch or time.
"""

from __future__ import annotations

MAX_REMEMBERED = 256


class RoundTrips:
    """One end of one stream."""

    def __init__(self) -> None:
        self._sent_s: dict[int, float] = {}
        self._sizes: dict[int, int] = {}
        self._sent = 0
        self._sized = 0
        self._answered = 0
        self.heard = 0
        self._heard_s = 0.0

    def sent(self, now: float) -> None:
        """A frame was handed to the stream."""
        self._sent += 1
        self._sent_s[self._sent] = now
        if len(self._sent_s) > MAX_REMEMBERED:
            self._forget(min(self._sent_s))

    def sized(self, size_bytes: int) -> None:
        """How large the next of the frames that were sent is, in their order."""
        self._sized += 1
        if self._sized in self._sent_s:
            self._sizes[self._sized] = size_bytes

    def size(self, number: int) -> int:
        """Of the frame of that number; 0 where it is not known."""
        return self._sizes.get(number, 0)

    def received(self, now: float) -> None:
        """A frame of the other end came."""
        self.heard += 1
        self._heard_s = now

    def held_s(self, now: float) -> float:
        """How long ago the newest of those came."""
        return max(0.0, now - self._heard_s) if self.heard else 0.0

    def elapsed_s(self, heard: int, now: float) -> float | None:
        """Time since this end sent its frame number `heard`, the first time it is heard of."""
        sent_s = self._sent_s.get(heard)
        if sent_s is None or heard <= self._answered:
            return None
        self._answered = heard
        for number in [known for known in self._sent_s if known < heard]:
            self._forget(number)
        return now - sent_s

    def _forget(self, number: int) -> None:
        del self._sent_s[number]
        self._sizes.pop(number, None)
