"""A session that an engine keeps around a session of the engine that it wraps."""

from __future__ import annotations

from typing import Any

from tandem.backends.interface import Session
from tandem.core.errors import InvalidArgument


class WrappedSession:
    """What all of them share: being open or closed. `open_sessions` are those of the engine, this
    one among them until it is closed."""

    def __init__(
        self, open_sessions: set[Any], inner: Session, *, capacity: int, slots: int
    ) -> None:
        self.inner = inner
        self.capacity = capacity
        self.slots = slots
        self._open_sessions = open_sessions
        open_sessions.add(self)

    def close(self) -> None:
        self._open_sessions.discard(self)
        self.inner.close()

    def _check_open(self) -> None:
        if self not in self._open_sessions:
            raise InvalidArgument("session", "the session is closed")
