"""A network link as arithmetic: when do bytes sent now arrive?

One direction is a FIFO pipe: a message waits until the sender has serialised everything before it
at the set bandwidth, then propagates for delay plus jitter, and never overtakes.

Invariant: pure and seeded. The same calls give the same arrivals; `now` comes in as an argument,
and times are seconds on whatever clock the caller keeps.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite

from tandem.core.errors import InvalidArgument
from tandem.core.randomness import Purpose, SeededRandom


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """One direction of a link.

    `delay_s`: propagation. `jitter_s`: each message's propagation differs from it by a number
    drawn uniformly from ±jitter_s. `jitter_trace`: recorded differences in seconds, used one per
    message and then again from the first, in place of `jitter_s`. Propagation is never below 0.
    `bytes_per_s`: bandwidth; None leaves serialisation out."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    jitter_trace: tuple[float, ...] | None = None
    bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        for field in ("delay_s", "jitter_s"):
            seconds = getattr(self, field)
            if not (isfinite(seconds) and seconds >= 0):
                raise InvalidArgument(field, f"must be finite and not negative, is {seconds}")
        if self.jitter_trace is not None:
            if not self.jitter_trace or not all(isfinite(extra) for extra in self.jitter_trace):
                raise InvalidArgument("jitter_trace", "must be finite numbers, at least one")
            if self.jitter_s:
                raise InvalidArgument("jitter_s", "must be 0 if there is a jitter_trace")
        rate = self.bytes_per_s
        if rate is not None and not (isfinite(rate) and rate > 0):
            raise InvalidArgument("bytes_per_s", f"must be above 0, is {rate}")

    @property
    def instant(self) -> bool:
        """True if everything arrives the moment it is sent."""
        return self == LinkSettings()

    @property
    def longest_propagation_s(self) -> float:
        """Delay with the greatest jitter there can be."""
        return max(0.0, self.delay_s + max(self.jitter_trace or (self.jitter_s,)))


class Link:
    """One direction, with its queue and its cuts.

    `cut` and `restore` describe the far end: what would arrive while the link is cut arrives, in
    order, at the moment of restoration. They may be announced ahead of time; then only `send` is
    right. A simulator that cuts a link while messages are in flight keeps `transit`'s arrivals and,
    when one comes up, asks `delivery` whether it may pass."""

    def __init__(self, settings: LinkSettings, seed: int) -> None:
        self.settings = settings
        self._rng = SeededRandom(seed)
        self._messages = 0
        self._now = self._sender_free = self._last_arrival = -inf
        self._cuts: list[tuple[float, float]] = []

    @property
    def free_at(self) -> float:
        """The time at which the sender has serialised everything it was given."""
        return self._sender_free

    def send(self, size_bytes: int, now: float) -> float:
        """Arrival of the last byte of a message sent at `now`, given the cuts known so far.
        `math.inf` if a cut that has no end yet covers it. Raises InvalidArgument for a negative
        size or a `now` before the previous one."""
        return self.delivery(self.transit(size_bytes, now))

    def transit(self, size_bytes: int, now: float) -> float:
        """Send as `send` does, but as if the link were never cut."""
        if size_bytes < 0:
            raise InvalidArgument("size_bytes", f"must not be negative, is {size_bytes}")
        if not now >= self._now:
            raise InvalidArgument("now", f"went back from {self._now} to {now}")
        self._now = now
        self._sender_free = max(now, self._sender_free)
        if self.settings.bytes_per_s is not None:
            self._sender_free += size_bytes / self.settings.bytes_per_s
        propagation = max(0.0, self.settings.delay_s + self._jitter())
        self._last_arrival = max(self._last_arrival, self._sender_free + propagation)
        self._messages += 1
        return self._last_arrival

    def delivery(self, arrival: float) -> float:
        """Return when what is due at `arrival` gets through: then, or at the end of the cut it
        falls in. `math.inf` while that end is not known. Never earlier for a later `arrival`."""
        for start, end in reversed(self._cuts):
            if start <= arrival < end:
                return end
        return arrival

    def cut(self, at: float) -> None:
        """Nothing arrives from `at` on, until `restore`. Cutting a cut link changes nothing."""
        if self._cuts and at < self._cuts[-1][1]:
            if self._cuts[-1][1] == inf and at >= self._cuts[-1][0]:
                return
            raise InvalidArgument("at", f"is before the end of the last cut {self._cuts[-1]}")
        self._cuts.append((at, inf))

    def restore(self, at: float) -> None:
        """Held messages arrive at `at`. Restoring a link that is not cut changes nothing."""
        if not self._cuts or self._cuts[-1][1] != inf:
            return
        start = self._cuts[-1][0]
        if at < start:
            raise InvalidArgument("at", f"is before the cut at {start}")
        self._cuts[-1] = (start, at)

    def change(self, settings: LinkSettings) -> None:
        """Use other settings from the next message on; it still cannot overtake earlier ones."""
        self.settings = settings

    def empty(self) -> None:
        """Forget what is queued and in flight, as when the connections that sent it are gone."""
        self._sender_free = self._last_arrival = -inf

    def _jitter(self) -> float:
        trace = self.settings.jitter_trace
        if trace is not None:
            return trace[self._messages % len(trace)]
        if not self.settings.jitter_s:
            return 0.0
        return self.settings.jitter_s * (2 * self._rng.uniform(self._messages, Purpose.LINK) - 1)


@dataclass(frozen=True, slots=True)
class LinkPair:
    """Both directions between edge and cloud: `up` carries drafts, `down` verdicts."""

    up: Link
    down: Link

    @staticmethod
    def of(up: LinkSettings, down: LinkSettings, seed: int) -> LinkPair:
        """Two links whose jitters are independent of each other."""
        return LinkPair(Link(up, 2 * seed), Link(down, 2 * seed + 1))

    def cut(self, at: float) -> None:
        """Cut both directions; see `Link.cut`."""
        self.up.cut(at)
        self.down.cut(at)

    def restore(self, at: float) -> None:
        """Restore both directions; see `Link.restore`."""
        self.up.restore(at)
        self.down.restore(at)


def settings_from(rtt_s: float, mbps: float | None = None, jitter_s: float = 0.0) -> LinkSettings:
    """Return one direction of a symmetric link: half the round trip, `mbps` (10^6 bits/s; None: no
    limit). Raises InvalidArgument naming `rtt_s`, `mbps` or `jitter_s`."""
    if not (isfinite(rtt_s) and rtt_s >= 0):
        raise InvalidArgument("rtt_s", f"must be finite and not negative, is {rtt_s}")
    if mbps is not None and not (isfinite(mbps) and mbps > 0):
        raise InvalidArgument("mbps", f"must be above 0, is {mbps}")
    bytes_per_s = None if mbps is None else mbps * 1e6 / 8
    return LinkSettings(delay_s=rtt_s / 2, jitter_s=jitter_s, bytes_per_s=bytes_per_s)


def link_from(
    rtt_s: float, mbps: float | None = None, jitter_s: float = 0.0, seed: int = 0
) -> LinkPair:
    """A symmetric link in the words of `tandem link`; `jitter_s` holds for each direction."""
    settings = settings_from(rtt_s, mbps, jitter_s)
    return LinkPair.of(settings, settings, seed)
