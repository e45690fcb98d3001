"""A session that knows its text: what back ends share that keep the token ids themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tandem.backends.interface import ForwardRequest
from tandem.backends.request_checks import check_length, grown
from tandem.core.errors import InvalidArgument
from tandem.core.tree import check_path


class TextSession:
    """The committed `token_ids` and a pending tree. `open_sessions` are those of the engine, this
    one among them until it is closed."""

    def __init__(self, open_sessions: set[Any], capacity: int, spare: int = 0) -> None:
        self.capacity = capacity
        self.slots = capacity + spare
        self.token_ids: list[int] = []
        self.pending: ForwardRequest | None = None
        self._open_sessions = open_sessions
        open_sessions.add(self)

    @property
    def length(self) -> int:
        return len(self.token_ids)

    @property
    def tree(self) -> tuple[int, ...] | None:
        return None if self.pending is None else self.pending.parents

    def whole(self, request: ForwardRequest) -> ForwardRequest:
        """Return the request, or all of the pending tree with the nodes that it adds."""
        if not request.extends_tree or self.pending is None:
            return request
        return grown(self.pending, request)

    def commit(self, request: ForwardRequest) -> None:
        """Commit a chain, or hold a tree, after its pass."""
        if request.parents is None:
            self.token_ids += request.token_ids
            self.pending = None
        else:
            self.pending = self.whole(request)

    def rollback(self, length: int) -> None:
        self._check_open()
        check_length(length, self.length)
        del self.token_ids[length:]
        self.pending = None

    def keep_path(self, indices: Sequence[int]) -> None:
        self._check_open()
        check_path(self.tree, indices)
        assert self.pending is not None
        self.token_ids += [self.pending.token_ids[node] for node in indices]
        self.pending = None

    def close(self) -> None:
        self._open_sessions.discard(self)

    def _check_open(self) -> None:
        if self not in self._open_sessions:
            raise InvalidArgument("session", "the session is closed")
