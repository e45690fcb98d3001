"""Decides when to ping a silent cloud, when to call it dead, and when to give it up. Invariant: all
times are the caller's `now`; nothing here reads a clock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Phase(StrEnum):
    """CONNECTING: no stream. RUNNING: stream open. ALONE: cloud given up. DONE: finished."""

    CONNECTING = "connecting"
    RUNNING = "running"
    ALONE = "alone"
    DONE = "done"


class LostCloud(StrEnum):
    """The policy for a cloud that stays unreachable."""

    FAIL = "fail"
    WAIT = "wait"
    EDGE = "edge"


@dataclass(frozen=True, slots=True)
class LivenessTimes:
    """A cloud silent for `ping_after_s` is pinged, and after `dead_after_s` counts as dead; one
    unreachable for `give_up_after_s` is given up, by policy. By default that takes 3 s."""

    ping_after_s: float = 0.8
    dead_after_s: float = 2.4
    give_up_after_s: float = 2.6

    def with_others(self) -> LivenessTimes:
        """Return the times if another cloud is known: a silent one is left before it would be given
        up."""
        dead_s = min(self.dead_after_s, self.give_up_after_s - MOVE_S)
        return replace(self, dead_after_s=max(dead_s, 1.25 * self.ping_after_s))


MOVE_S = 1.0
"""For what another cloud takes to answer, before a lost one is given up."""
TICK_S = 0.22
"""Ticks come more often than that, unless this process did not get to run."""

MOST_STUCK = 2
"""Streams that were admitted, and ended because the engine was stuck before it answered anything: a
third would begin with the same text once more, and nothing says that it would end otherwise."""

FIRST_ANSWER_S = 120.0
FIRST_ANSWER_ROW_S = 0.1
"""What the first answer of a stream may take, and more for each token of the text, which the cloud
computes before it, perhaps after the texts of others."""
ANSWER_S = 30.0
TIMES_AS_LONG = 10.0
"""What each later answer may take: so many times as long as the longest of this request did, and
never less than those seconds. A cloud whose passes take a minute has shown so."""
MOST_LOST_ROUNDS = 2
"""In a row, after which a cloud is given up that is there, but answers nothing."""

ANOTHER_CLOUD_S = 0.4
"""For what a replica that works takes to answer. Connecting anew begins at once."""

MOST_PINGS = 8
"""That may be under way: over a slow link some are, each of which tells its round trip."""

UNHURRIED_BYTES = 256 * 1024
SLOW_UPLINK_BYTES_PER_S = 250_000
MAX_UPLOAD_S = 5.0
"""A frame larger than UNHURRIED_BYTES may take its time to upload, at that rate and for at most
that long. Pings wait behind it: until then silence means nothing, also to HTTP/2."""


class Liveness:
    """Signs of life of one request's cloud, over all its streams."""

    def __init__(self, policy: LostCloud, times: LivenessTimes, now: float) -> None:
        self.policy = policy
        self.began_s = now
        self._times = times
        self._received_s = now
        self._quiet_since_s = now
        self._uploaded_s = now
        self._ticked_s = now
        self._pinged_s: float | None = None
        self._nonce = 0
        self._pings_sent_s: dict[int, float] = {}
        self._heard = False
        self._stuck_streams = 0
        self._awaited_since_s: float | None = None
        self._awaits_first = True
        self._text_tokens = 0
        self._longest_answer_s = 0.0
        self._lost_rounds = 0

    @property
    def goes_on_alone(self) -> bool:
        """True if the edge goes on by itself once the cloud is given up."""
        return self.policy is LostCloud.EDGE

    def connected(self, now: float) -> None:
        """Record a fresh stream, which gets its own time to show life; the outage goes on until it
        does."""
        self._quiet_since_s = now
        self._uploaded_s = self._received_s
        self._pinged_s = None
        self._pings_sent_s.clear()
        self._heard = False
        self._awaited_since_s = None
        self._awaits_first = True

    def uploading(self, size_bytes: int, now: float) -> None:
        """Record that a large frame was handed to the stream."""
        upload_s = (size_bytes - UNHURRIED_BYTES) / SLOW_UPLINK_BYTES_PER_S
        if upload_s > 0:
            busy_s = max(self._uploaded_s - now, 0) + upload_s
            self._uploaded_s = now + min(busy_s, MAX_UPLOAD_S)

    def received(self, now: float) -> None:
        """Record a frame from the cloud."""
        self._received_s = self._quiet_since_s = now
        self._pinged_s = None
        self._heard = True

    def awaits(self, waits: bool, text_tokens: int, now: float) -> None:
        """Note whether the cloud owes an answer. Called regularly. `text_tokens`: what it computes
        before its first one."""
        self._text_tokens = text_tokens
        if not waits:
            self._awaited_since_s = None
        elif self._awaited_since_s is None:
            self._awaited_since_s = now

    def answered(self, now: float) -> None:
        """Record that the cloud's engine computed something for the request."""
        self._stuck_streams = self._lost_rounds = 0
        if self._awaited_since_s is not None:
            answer_s = now - self._awaited_since_s
            self._longest_answer_s = max(self._longest_answer_s, answer_s)
        self._awaited_since_s = None
        self._awaits_first = False

    def lost(self, now: float, stuck_s: float = 0.0) -> float:
        """Record that the stream is gone; return for how many seconds the cloud had been silent. A
        cloud that ended it because its engine was stuck for `stuck_s` answered pings all the while:
        its outage began with that. A moment is left to find another cloud."""
        self._stuck_streams += self._heard and stuck_s > 0
        self._lost_rounds += self._round_is_lost(now)
        began_s = now - min(stuck_s, self._times.give_up_after_s - ANOTHER_CLOUD_S)
        self._received_s = min(self._received_s, began_s)
        self._uploaded_s = self._received_s
        self._pinged_s = None
        return max(now - self._quiet_since_s, stuck_s)

    def tick(self, now: float) -> None:
        """Note that time passes; called regularly. Time in which this process did not get to run
        does not count as silence: frames of the cloud may be waiting to be read."""
        missed_s = now - self._ticked_s - TICK_S
        self._ticked_s = now
        if missed_s > 0:
            self._received_s = _later(self._received_s, missed_s, now)
            self._quiet_since_s = _later(self._quiet_since_s, missed_s, now)
            self._uploaded_s = _later(self._uploaded_s, missed_s, now)
            if self._awaited_since_s is not None:
                self._awaited_since_s = _later(self._awaited_since_s, missed_s, now)

    def ping_due(self, now: float, wanted: bool = False) -> int | None:
        """Return the nonce of a ping that is due, once per silence, or that is `wanted` anyway and
        not under way."""
        silent = self._silent_s(now) >= self._times.ping_after_s
        asks = silent and self._pinged_s is None
        if not asks and (not wanted or self._pings_sent_s):
            return None
        self._pinged_s = now
        self._nonce += 1
        self._pings_sent_s[self._nonce] = now
        if len(self._pings_sent_s) > MOST_PINGS:
            del self._pings_sent_s[min(self._pings_sent_s)]
        return self._nonce

    def ponged(self, nonce: int, now: float) -> float | None:
        """Return the round trip of a ping in seconds; None for one that this stream did not send,
        or long ago."""
        sent_s = self._pings_sent_s.pop(nonce, None)
        return None if sent_s is None else now - sent_s

    def is_dead(self, now: float) -> bool:
        times = self._times
        silent_s = self._silent_s(now)
        given_up = self.policy is not LostCloud.WAIT and silent_s >= times.give_up_after_s
        return silent_s >= times.dead_after_s or given_up or self._round_is_lost(now)

    def _round_is_lost(self, now: float) -> bool:
        """Return whether an answer is so late that none will come, whatever else is heard. Where
        the cloud is waited for without limit, each try has twice as long as the one before."""
        if self._awaited_since_s is None:
            return False
        allowed_s = max(ANSWER_S, TIMES_AS_LONG * self._longest_answer_s)
        if self._awaits_first:
            prompt_s = FIRST_ANSWER_S + FIRST_ANSWER_ROW_S * self._text_tokens
            allowed_s = max(allowed_s, prompt_s)
        allowed_s *= 2 ** max(0, self._lost_rounds - 1)
        return bool(now - max(self._awaited_since_s, self._uploaded_s) >= allowed_s)

    def _silent_s(self, now: float) -> float:
        return now - max(self._quiet_since_s, self._uploaded_s)

    def is_given_up(self, now: float) -> bool:
        if self._stuck_streams >= MOST_STUCK:
            return True
        if self.policy is LostCloud.WAIT:
            return False
        if self._lost_rounds >= MOST_LOST_ROUNDS:
            return True
        return now - max(self._received_s, self._uploaded_s) >= self._times.give_up_after_s


def _later(at_s: float, by_s: float, now: float) -> float:
    """Return `at_s` moved by `by_s`, but not into the future."""
    return max(at_s, min(at_s + by_s, now))
