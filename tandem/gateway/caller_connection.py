"""The callers' connections: how long each may be idle, how long it may let what it asked for wait
to be read, and how many there may be. Invariant: a caller that does nothing, or reads nothing,
holds neither a descriptor nor an answer for longer than the limits say; nothing that it sends holds
the event loop for longer than reading `READ_AT_ONCE` bytes takes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

Address = tuple[str, int]
READ_AT_ONCE = 4096
"""Bytes that are read as HTTP before others have their turn. A body may come in chunks of one byte,
each of which takes as long as thousands of bytes in one: 200,000 of them held the loop for 3 s."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many callers a server has at once; what each gets from connecting, or from its last
    answer, to the end of its next headers; and to read what the buffers before it cannot hold."""

    connections: int = 512
    idle_s: float = 10.0
    write_s: float = 30.0


class Callers:
    """The connections of one server."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._connections: dict[Address, CallerConnection] = {}
        self._idle: dict[CallerConnection, None] = {}
        """Those of which no request is handled, the one that has been idle longest first."""

    def connection(self, **of_uvicorn: Any) -> asyncio.Protocol:
        """Return the protocol of a new connection; uvicorn calls this instead of a class."""
        return CallerConnection(self, H11Protocol(**of_uvicorn))

    def watched(self, app: ASGIApp) -> ASGIApp:
        """Wrap the application of this server, so that it is known whose requests are handled."""

        async def watched(scope: Scope, receive: Receive, send: Send) -> None:
            connection = self._connections.get(scope["client"])
            if connection is None:  # it is closed by now
                return await app(scope, receive, send)
            with connection.answering():
                await app(scope, receive, send)

        return watched

    def cut_off(self) -> None:
        """Close all connections at once."""
        for connection in list(self._connections.values()):
            connection.abort()

    def add(self, connection: CallerConnection) -> None:
        """Take in a connection. If there are too many, close the one that has been idle longest: a
        stranger with many silent connections loses the oldest of them to the next caller."""
        self._connections[connection.address] = connection
        self.note_idle(connection)
        if len(self._connections) > self.limits.connections:
            oldest = next(iter(self._idle))
            self.remove(oldest)
            oldest.abort()

    def remove(self, connection: CallerConnection) -> None:
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
        self.note_busy(connection)

    def note_idle(self, connection: CallerConnection) -> None:
        self._idle[connection] = None

    def note_busy(self, connection: CallerConnection) -> None:
        self._idle.pop(connection, None)


class CallerConnection(asyncio.Protocol):
    """Hands what happens on a connection on to `protocol`, which speaks HTTP."""

    address: Address = ("", 0)
    _transport: asyncio.Transport
    _idling: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _reading: asyncio.Handle | None = None
    """The turn in which more of what was received is read."""
    _may_read = True

    def __init__(self, callers: Callers, protocol: asyncio.Protocol) -> None:
        self._callers = callers
        self._protocol = protocol
        self._received = bytearray()
        """What was not read yet; nothing more is received before it was."""
        self._requests = 0
        """That are handled; one that comes before the last one's answer is complete waits."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        host, port, *_ = transport.get_extra_info("peername") or self.address
        self.address = str(host), int(port)
        self._callers.add(self)
        self._idling = self._abort_after(self._callers.limits.idle_s)
        self._protocol.connection_made(cast(asyncio.Transport, _InTurns(self, transport)))

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._reading is None and self._may_read:
            self._read()

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._callers.remove(self)
        _cancel(self._idling, self._stalled, self._reading)
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        """Start a time limit for the caller to read on: it has not read for so long that every
        buffer on the way is full."""
        self._protocol.pause_writing()
        if self._stalled is None:
            loop = asyncio.get_running_loop()
            self._stalled = loop.call_later(self._callers.limits.write_s, self._give_up)

    def resume_writing(self) -> None:
        _cancel(self._stalled)
        self._stalled = None
        self._protocol.resume_writing()

    def abort(self) -> None:
        self._transport.abort()

    def pause_reading(self) -> None:
        """Read no more, as the protocol asks."""
        self._may_read = False
        _cancel(self._reading)
        self._reading = None
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._may_read = True
        self._go_on()

    def _read(self) -> None:
        """Read as much as there is a turn for."""
        self._reading = None
        part = bytes(self._received[:READ_AT_ONCE])
        del self._received[:READ_AT_ONCE]
        self._protocol.data_received(part)
        if self._may_read:
            self._go_on()

    def _go_on(self) -> None:
        """Read what was received in a later turn; if that is nothing, receive more."""
        if self._transport.is_closing():
            self._received.clear()
        elif not self._received:
            self._transport.resume_reading()
        elif self._reading is None:
            self._transport.pause_reading()
            self._reading = asyncio.get_running_loop().call_soon(self._read)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Handle one of its requests. What it has not read of its last answer `idle_s` later, it
        never will."""
        self._requests += 1
        _cancel(self._idling)
        self._callers.note_busy(self)
        try:
            yield
        finally:
            self._requests -= 1
            if not self._requests and not self._transport.is_closing():
                self._callers.note_idle(self)
                self._idling = self._abort_after(self._callers.limits.idle_s)

    def _abort_after(self, delay_s: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay_s, self._transport.abort)

    def _give_up(self) -> None:
        """Close the connection of a caller that does not read; its requests end as if it had
        left."""
        log.warning("caller does not read", waited_s=self._callers.limits.write_s)
        self._transport.abort()


class _InTurns:
    """A connection's transport, for a protocol that reads in turns."""

    def __init__(self, connection: CallerConnection, transport: asyncio.Transport) -> None:
        self.pause_reading = connection.pause_reading
        self.resume_reading = connection.resume_reading
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _cancel(*handles: asyncio.Handle | None) -> None:
    for handle in handles:
        if handle is not None:
            handle.cancel()
