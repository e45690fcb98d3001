"""A network link as arithmetic: when do bytes sent now arrive?

One direction is a FIFO pipe: a message waits until the sender has serialised everything before it
at the set bandwidth, then propagates for delay plus jitter, and never overtakes. A lost message is
one that TCP sends again: it comes later, and so does all behind it.

Invariant: pure and seeded. The same calls give the same arrivals; `now` comes in as an argument,
and times are seconds on whatever clock the caller keeps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, isfinite

from tandem.core.errors import InvalidArgument
from tandem.core.randomness import Purpose, SeededRandom

MIN_RESEND_S = 0.2
"""Linux's shortest retransmission timeout: what a loss costs a stream that has little under way,
as this protocol's have."""
MAX_LOSS = 0.5
MAX_LOSS_BURST = 1000.0


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """One direction of a link.

    `delay_s`: propagation. `jitter_s`: each message's propagation differs from it by a number
    drawn uniformly from ±jitter_s. `jitter_trace`: recorded differences in seconds, used one per
    message and then again from the first, in place of `jitter_s`. Propagation is never below 0.
    `bytes_per_s`: bandwidth; None leaves serialisation out. `loss`: share of messages that are
    lost, in bursts of `loss_burst` messages in a row in the mean (Gilbert's model of two states);
    each arrives `resend_s` later, because TCP sends it again after that time."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    jitter_trace: tuple[float, ...] | None = None
    bytes_per_s: float | None = None
    loss: float = 0.0
    loss_burst: float = 1.0
    resend_s: float = MIN_RESEND_S

    def __post_init__(self) -> None:
        for field in ("delay_s", "jitter_s", "resend_s"):
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
        if not 0 <= self.loss <= MAX_LOSS:
            raise InvalidArgument("loss", f"must be 0 to {MAX_LOSS}, is {self.loss}")
        if not 1 <= self.loss_burst <= MAX_LOSS_BURST:
            why = f"must be 1 to {MAX_LOSS_BURST} messages, is {self.loss_burst}"
            raise InvalidArgument("loss_burst", why)

    @property
    def instant(self) -> bool:
        """True if everything arrives the moment it is sent."""
        return self == LinkSettings()

    @property
    def longest_propagation_s(self) -> float:
        """Delay with the greatest jitter there can be, of a message that is lost if any is."""
        resend_s = self.resend_s if self.loss else 0.0
        return max(0.0, self.delay_s + max(self.jitter_trace or (self.jitter_s,))) + resend_s


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
        self._in_burst = False
        self._now = self._sender_free = self._last_arrival = -inf
        self._cuts: list[tuple[float, float]] = []

    @property
    def free_at(self) -> float:
        """The time at which the sender has serialised everything it was given."""
        return self._sender_free

    def send(self, size_bytes: int, now: float) -> float:
        """Send a message at `now`; return when its last byte arrives, given the cuts known so far:
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
        propagation = max(0.0, self.settings.delay_s + self._jitter()) + self._resend_s()
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
        """Cut the link: nothing arrives from `at` on, until `restore`. Cutting a cut link changes
        nothing."""
        if self._cuts and at < self._cuts[-1][1]:
            if self._cuts[-1][1] == inf and at >= self._cuts[-1][0]:
                return
            raise InvalidArgument("at", f"is before the end of the last cut {self._cuts[-1]}")
        self._cuts.append((at, inf))

    def restore(self, at: float) -> None:
        """End a cut: held messages arrive at `at`. Restoring a link that is not cut changes
        nothing."""
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

    def _resend_s(self) -> float:
        """Return the seconds that this message loses by being lost, 0 if it is not. Losses follow
        Gilbert's model: a burst ends with probability 1/burst, and begins often enough to make
        `loss` the share of lost messages."""
        settings = self.settings
        if not settings.loss:
            self._in_burst = False
            return 0.0
        ends = 1 / settings.loss_burst
        begins = min(1.0, ends * settings.loss / (1 - settings.loss))
        drawn = self._rng.uniform(self._messages, Purpose.LINK_LOSS)
        self._in_burst = drawn >= ends if self._in_burst else drawn < begins
        return settings.resend_s if self._in_burst else 0.0


@dataclass(frozen=True, slots=True)
class LinkPair:
    """Both directions between edge and cloud: `up` carries drafts, `down` verdicts."""

    up: Link
    down: Link

    @staticmethod
    def of(up: LinkSettings, down: LinkSettings, seed: int) -> LinkPair:
        """Return two links whose jitters are independent of each other."""
        return LinkPair(Link(up, 2 * seed), Link(down, 2 * seed + 1))

    def cut(self, at: float) -> None:
        """Cut both directions; see `Link.cut`."""
        self.up.cut(at)
        self.down.cut(at)

    def restore(self, at: float) -> None:
        """Restore both directions; see `Link.restore`."""
        self.up.restore(at)
        self.down.restore(at)


@dataclass(frozen=True, slots=True)
class LinkShape:
    """The settings of both directions between edge and cloud."""

    up: LinkSettings
    down: LinkSettings

    @property
    def rtt_s(self) -> float:
        """The sum of both delays."""
        return self.up.delay_s + self.down.delay_s

    def opened(self, seed: int) -> LinkPair:
        """Return links that begin with these settings."""
        return LinkPair.of(self.up, self.down, seed)


INSTANT = LinkShape(LinkSettings(), LinkSettings())


def settings_from(rtt_s: float, mbps: float | None = None, jitter_s: float = 0.0) -> LinkSettings:
    """Return one direction of a symmetric link: half the round trip, `mbps` (10^6 bits/s; None: no
    limit). Raises InvalidArgument naming `rtt_s`, `mbps` or `jitter_s`."""
    if not (isfinite(rtt_s) and rtt_s >= 0):
        raise InvalidArgument("rtt_s", f"must be finite and not negative, is {rtt_s}")
    return LinkSettings(
        delay_s=rtt_s / 2, jitter_s=jitter_s, bytes_per_s=bytes_per_s_from("mbps", mbps)
    )


def shape_from(
    rtt_s: float = 0.0,
    mbps: float | None = None,
    jitter_s: float = 0.0,
    *,
    mbps_up: float | None = None,
    mbps_down: float | None = None,
    delay_up_s: float | None = None,
    delay_down_s: float | None = None,
    loss: float = 0.0,
    loss_burst: float = 1.0,
) -> LinkShape:
    """Return both directions of a link: what is not given for one of them is what holds for both,
    `mbps` or half of `rtt_s`. `jitter_s`, `loss` and `loss_burst` are alike in both.

    A lost message is sent again after a round trip, at the least MIN_RESEND_S. Raises
    InvalidArgument naming the argument.
    """
    both = settings_from(rtt_s, mbps, jitter_s)
    delays_s = {"delay_up_s": delay_up_s, "delay_down_s": delay_down_s}
    for name, delay_s in delays_s.items():
        if delay_s is not None and not (isfinite(delay_s) and delay_s >= 0):
            raise InvalidArgument(name, f"must be finite and not negative, is {delay_s}")
    up_s = both.delay_s if delay_up_s is None else delay_up_s
    down_s = both.delay_s if delay_down_s is None else delay_down_s
    up_bytes_per_s = bytes_per_s_from("mbps_up", mbps_up)
    down_bytes_per_s = bytes_per_s_from("mbps_down", mbps_down)
    both = replace(
        both, loss=loss, loss_burst=loss_burst, resend_s=max(MIN_RESEND_S, up_s + down_s)
    )
    return LinkShape(
        replace(both, delay_s=up_s, bytes_per_s=up_bytes_per_s or both.bytes_per_s),
        replace(both, delay_s=down_s, bytes_per_s=down_bytes_per_s or both.bytes_per_s),
    )


def bytes_per_s_from(field: str, mbps: float | None) -> float | None:
    """Return 10^6 bits per second as bytes. Raises InvalidArgument naming `field`."""
    if mbps is None:
        return None
    if not (isfinite(mbps) and mbps > 0):
        raise InvalidArgument(field, f"must be above 0, is {mbps}")
    return mbps * 1e6 / 8


def link_from(
    rtt_s: float, mbps: float | None = None, jitter_s: float = 0.0, seed: int = 0
) -> LinkPair:
    """Return a symmetric link described as for `tandem link`; `jitter_s` holds for each
    direction."""
    return shape_from(rtt_s, mbps, jitter_s).opened(seed)
