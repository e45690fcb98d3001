"""When to ping a silent cloud, when to call it dead, when to give it up.

Invariant: all times are the caller's `now`; nothing here reads a clock. Must not import asyncio,
grpc, torch or time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class LostCloud(StrEnum):
    """What to do when the cloud stays unreachable (DESIGN §4)."""

    FAIL = "fail"
    WAIT = "wait"
    EDGE = "edge"


@dataclass(frozen=True, slots=True)
class LivenessTimes:
    """A cloud silent for `ping_after_s` is pinged, for `dead_after_s` is dead; one unreachable for
    `give_up_after_s` is given up, by policy. By default a caller who does not wait knows in 3 s."""

    ping_after_s: float = 0.8
    dead_after_s: float = 2.4
    give_up_after_s: float = 2.6


LOOKED_EVERY_S = 0.22
"""Ticks come more often than that, unless this process has no time for them."""

UNHURRIED_BYTES = 256 * 1024
SLOW_UPLINK_BYTES_PER_S = 250_000
MAX_UPLOAD_S = 5.0
"""What is larger than that may take so long to upload, by that rate, for up to so many seconds: a
ping waits behind it, so until then silence means nothing. HTTP/2's own keepalive is as patient."""


class Liveness:
    """Signs of life of one request's cloud, over all its streams."""

    def __init__(self, policy: LostCloud, times: LivenessTimes, now: float) -> None:
        self.policy = policy
        self._times = times
        self._heard_s = now
        self._quiet_since_s = now
        self._uploaded_s = now
        self._looked_s = now
        self._pinged_s: float | None = None
        self._nonce = 0

    def connected(self, now: float) -> None:
        """A fresh stream gets its own time to show life; the outage goes on until it does."""
        self._quiet_since_s = now
        self._uploaded_s = self._heard_s
        self._pinged_s = None

    def uploading(self, size_bytes: int, now: float) -> None:
        """A large frame was handed to the stream."""
        upload_s = (size_bytes - UNHURRIED_BYTES) / SLOW_UPLINK_BYTES_PER_S
        if upload_s > 0:
            busy_s = max(self._uploaded_s - now, 0) + upload_s
            self._uploaded_s = now + min(busy_s, MAX_UPLOAD_S)

    def heard(self, now: float) -> None:
        self._heard_s = self._quiet_since_s = now
        self._pinged_s = None

    def lost(self, now: float) -> float:
        """The stream is gone; returns how long the cloud had been silent."""
        self._uploaded_s = self._heard_s
        self._pinged_s = None
        return now - self._quiet_since_s

    def look(self, now: float) -> None:
        """A tick. What the cloud said while nobody here had time to listen is yet to be heard, so
        that time is no silence of the cloud's."""
        unseen_s = now - self._looked_s - LOOKED_EVERY_S
        self._looked_s = now
        if unseen_s > 0:
            self._heard_s = _later(self._heard_s, unseen_s, now)
            self._quiet_since_s = _later(self._quiet_since_s, unseen_s, now)
            self._uploaded_s = _later(self._uploaded_s, unseen_s, now)

    def ping_due(self, now: float) -> int | None:
        """The nonce of a ping that is due, once per silence."""
        if self._pinged_s is not None or self._silent_s(now) < self._times.ping_after_s:
            return None
        self._pinged_s = now
        self._nonce += 1
        return self._nonce

    def is_dead(self, now: float) -> bool:
        return self._silent_s(now) >= self._times.dead_after_s

    def _silent_s(self, now: float) -> float:
        return now - max(self._quiet_since_s, self._uploaded_s)

    def is_given_up(self, now: float) -> bool:
        if self.policy is LostCloud.WAIT:
            return False
        return now - max(self._heard_s, self._uploaded_s) >= self._times.give_up_after_s


def _later(at_s: float, by_s: float, now: float) -> float:
    """`at_s` moved by `by_s`, but not into the future."""
    return max(at_s, min(at_s + by_s, now))
