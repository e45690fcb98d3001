"""One caller's connection, on uvicorn's HTTP/1.1: how long it may be idle, how long it may let what
it asked for wait to be read, and how many there may be. Invariant: a caller that does nothing, or
reads nothing, holds neither a descriptor nor an answer for longer than the limits say."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from uvicorn.protocols.http.h11_impl import H11Protocol

from tandem.telemetry.logging import get_logger

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many callers a server has at once; what each gets from connecting, or from its last
    answer, to the end of its next headers; and to read what the buffers before it cannot hold."""

    connections: int = 512
    idle_s: float = 10.0
    write_s: float = 30.0


class CallerConnection(H11Protocol):
    """Limits are the attribute `limits` of the server's configuration."""

    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._limits: ConnectionLimits = self.config.limits  # type: ignore[attr-defined]
        self._idle_since_s: float | None = self.loop.time()
        if len(self.connections) > self._limits.connections:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_stalled()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start a time limit for the caller to read on: it has not read for so long that every
        buffer on the way is full."""
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self._limits.write_s, self._give_up)

    def resume_writing(self) -> None:
        self._unset_stalled()
        super().resume_writing()

    @property
    def is_answered(self) -> bool:
        """True if one of its requests is being handled."""
        return self.cycle is not None and not self.cycle.response_complete

    def idle_for_s(self) -> float:
        """Return how long ago it should have begun its next request; 0 while one is handled."""
        if self.is_answered:
            self._idle_since_s = None
            return 0.0
        if self._idle_since_s is None:
            self._idle_since_s = self.loop.time()
        return self.loop.time() - self._idle_since_s

    def close_if_idle(self) -> None:
        """Close the connection if it is idle: what it has not read of its last answer by now it
        never will."""
        if self.idle_for_s() > self._limits.idle_s:
            self.transport.abort()

    def _make_room(self) -> None:
        """Close the connection that has been idle longest: a stranger with many silent connections
        loses the oldest of them to the next caller."""
        connections = (each for each in self.connections if isinstance(each, CallerConnection))
        idle = [each for each in connections if not each.is_answered]
        max(idle, key=CallerConnection.idle_for_s).transport.abort()

    def _give_up(self) -> None:
        """Close the connection of a caller that does not read; its requests end as if it had
        left."""
        self._stalled = None
        log.warning("caller does not read", waited_s=self._limits.write_s)
        self.transport.abort()

    def _unset_stalled(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
