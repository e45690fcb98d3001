"""What the TCP emulator is built of: the sockets, and the two lines that delay their bytes.

An `Endpoint` reads a socket into the `DelayLine` of its direction; the line hands the bytes to the
endpoint on the other side when they are due. A read is one message of the link model. It is split
into pieces of a millisecond of bandwidth, so that a long one arrives as gradually as it would on a
real link.

Invariant: a line delivers in the order it was given, each byte once. What it holds is bounded: an
endpoint does not read while its line is full or the other socket takes no more.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import cast

from tandem.netem.link_model import Link, LinkSettings
from tandem.netem.precise_timer import PreciseTimer

MAX_IN_FLIGHT_BYTES = 4 << 20
# Beyond what propagates, this many seconds of bytes may wait for bandwidth. Without the bound a
# slow link would queue for minutes, and a change of settings would act that late.
_QUEUE_S = 0.25
_READ_BYTES = 64 << 10
_PIECE_S = 0.001
_MIN_PIECE_BYTES = 1400
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # struct linger: on, for 0 seconds


class Mark(Enum):
    """Marks in a line between bytes."""

    END = "end of stream"
    RESET = "reset"


class Pause(Enum):
    """Reasons not to read from a socket."""

    OPENING = "the other socket is not connected yet"
    LINE_FULL = "enough is under way in this direction"
    PEER_FULL = "the other socket takes no more"


class DelayLine:
    """One direction, shared by all connections: what is under way, in order of arrival."""

    def __init__(self, link: Link) -> None:
        self.delivered_bytes = self.in_flight_bytes = 0
        self._link = link
        self._queue: deque[tuple[float, Endpoint, bytes | memoryview | Mark]] = deque()
        self._timer = PreciseTimer(self._deliver_due)
        self._sources: set[Endpoint] = set()
        self._held = self._full = False
        self.change(link.settings)

    def join(self, source: Endpoint) -> None:
        """Make a new socket a source of this line."""
        self._sources.add(source)
        if self._full:
            source.pause(Pause.LINE_FULL)

    def leave(self, source: Endpoint) -> None:
        """Forget a socket that is gone; what it sent stays under way."""
        self._sources.discard(source)

    def push(self, target: Endpoint, item: bytes | Mark) -> None:
        """Take bytes or a mark that have just come, on their way to `target`."""
        if not self._instant or self._queue or self._held:
            self._schedule(target, item)
        else:
            self._deliver(target, item)

    def hold(self) -> None:
        """Deliver nothing until `release`."""
        self._held = True
        self._timer.disarm()

    def release(self) -> None:
        """Deliver again, first and at once what has come due."""
        self._held = False
        self._deliver_due()

    def change(self, settings: LinkSettings) -> None:
        """Use other settings for what comes from now on."""
        self._link.change(settings)
        self._instant = settings.instant
        self._limit_bytes = MAX_IN_FLIGHT_BYTES
        self._piece_bytes = _READ_BYTES
        rate = settings.bytes_per_s
        if rate is not None:
            useful_bytes = int(rate * (settings.longest_propagation_s + _QUEUE_S))
            self._limit_bytes = min(MAX_IN_FLIGHT_BYTES, max(_READ_BYTES, useful_bytes))
            self._piece_bytes = min(_READ_BYTES, max(_MIN_PIECE_BYTES, int(rate * _PIECE_S)))
        self._review_fullness()

    def empty(self) -> None:
        """Throw away what is under way."""
        self._timer.disarm()
        self._queue.clear()
        self._link.empty()
        self.in_flight_bytes = 0
        self._review_fullness()

    def close(self) -> None:
        """Free the timer. Idempotent."""
        self._timer.close()

    def _schedule(self, target: Endpoint, item: bytes | Mark) -> None:
        was_empty = not self._queue
        now = time.monotonic()
        if isinstance(item, Mark):
            self._queue.append((self._link.transit(0, now), target, item))
        else:
            self._schedule_pieces(target, item, now)
        if was_empty and not self._held:
            self._timer.arm(self._queue[0][0])

    def _schedule_pieces(self, target: Endpoint, chunk: bytes, now: float) -> None:
        """Queue a chunk in pieces. The last byte arrives when the model says, each piece earlier by
        as long as the bytes after it take."""
        earliest = self._queue[-1][0] if self._queue else now
        arrival = self._link.transit(len(chunk), now)
        rate = self._link.settings.bytes_per_s
        view = memoryview(chunk)
        for start in range(0, len(chunk), self._piece_bytes):
            piece = view[start : start + self._piece_bytes]
            lead_s = 0.0 if rate is None else (len(chunk) - start - len(piece)) / rate
            self._queue.append((max(earliest, arrival - lead_s), target, piece))
        self.in_flight_bytes += len(chunk)
        self._review_fullness()

    def _deliver_due(self) -> None:
        if self._held:
            return
        now = time.monotonic()
        while self._queue and self._queue[0][0] <= now:
            _, target, item = self._queue.popleft()
            if not isinstance(item, Mark):
                self.in_flight_bytes -= len(item)
            self._deliver(target, item)
        self._review_fullness()
        if self._queue:
            self._timer.arm(self._queue[0][0])

    def _deliver(self, target: Endpoint, item: bytes | memoryview | Mark) -> None:
        if isinstance(item, Mark):
            target.deliver_mark(item)
        else:
            self.delivered_bytes += len(item)
            target.deliver(item)

    def _review_fullness(self) -> None:
        # Resuming well above half keeps the link busy: what is under way must cover the delay.
        if not self._full and self.in_flight_bytes >= self._limit_bytes:
            self._full = True
            for source in self._sources:
                source.pause(Pause.LINE_FULL)
        elif self._full and self.in_flight_bytes <= self._limit_bytes * 7 // 8:
            self._full = False
            for source in self._sources:
                source.resume(Pause.LINE_FULL)


class Endpoint(asyncio.BufferedProtocol):
    """One socket of a connection through the emulator. Holds what it reads until `connect_to`."""

    transport: asyncio.Transport

    def __init__(
        self, line: DelayLine, made: Callable[[Endpoint], None], lost: Callable[[Endpoint], None]
    ) -> None:
        """Start without a socket. `line` takes what is read; `made` and `lost` are called as the
        socket comes and goes."""
        self.line = line
        self._made = made
        self._lost = lost
        self._peer: Endpoint | None = None
        self._pauses = {Pause.OPENING}
        self._early: list[bytes | Mark] = []
        self._received_eof = self._sent_eof = self._given_up = False
        self._buffer = memoryview(bytearray(_READ_BYTES))

    def connect_to(self, peer: Endpoint) -> None:
        """Send on to `peer` what was read and will be read."""
        self._peer = peer
        for item in self._early:
            self.line.push(peer, item)
        self._early.clear()
        self.resume(Pause.OPENING)

    def pause(self, reason: Pause) -> None:
        """Stop reading for one more reason."""
        if not self._pauses and self._readable():
            self.transport.pause_reading()
        self._pauses.add(reason)

    def resume(self, reason: Pause) -> None:
        """Read again, if that was the last reason not to."""
        self._pauses.discard(reason)
        if not self._pauses and self._readable():
            self.transport.resume_reading()

    def deliver(self, chunk: bytes | memoryview) -> None:
        """Write what has come through the line."""
        if not self.transport.is_closing():
            self.transport.write(chunk)

    def deliver_mark(self, mark: Mark) -> None:
        """Do to this socket what was done to the one at the other end of the line."""
        if mark is Mark.RESET:
            self.reset()
        elif not self.transport.is_closing():
            self._sent_eof = True
            try:
                self.transport.write_eof()
            except OSError:  # reset by its owner, unseen because nothing is read any more
                self.transport.abort()
            self._close_when_done()

    def reset(self) -> None:
        """End the connection of this socket with a TCP reset."""
        self._given_up = True
        if not self.transport.is_closing():
            tcp = self.transport.get_extra_info("socket")
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        tcp = transport.get_extra_info("socket")
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.line.join(self)
        self._made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._send_on(bytes(self._buffer[:nbytes]))
        # Only now: uvloop forgets a pause made in connection_made, and reads all the same.
        if self._pauses and self._readable():
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        self._received_eof = True
        self._send_on(Mark.END)
        self._close_when_done()
        return True  # the other direction stays open

    def pause_writing(self) -> None:
        if self._peer is not None:
            self._peer.pause(Pause.PEER_FULL)

    def resume_writing(self) -> None:
        if self._peer is not None:
            self._peer.resume(Pause.PEER_FULL)

    def connection_lost(self, exc: Exception | None) -> None:
        self.line.leave(self)
        self._lost(self)
        if self._peer is None:
            return
        self._peer.resume(Pause.PEER_FULL)
        if not self._given_up:
            self.line.push(self._peer, Mark.RESET)

    def _send_on(self, item: bytes | Mark) -> None:
        if self._peer is None:
            self._early.append(item)
        else:
            self.line.push(self._peer, item)

    def _readable(self) -> bool:
        # After the end of stream asyncio would report the end again at every resume.
        return not self._received_eof and not self.transport.is_closing()

    def _close_when_done(self) -> None:
        if self._received_eof and self._sent_eof and not self.transport.is_closing():
            self._given_up = True
            self.transport.close()
