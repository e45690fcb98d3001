"""The base of engines around another engine, and of their sessions.

A session of theirs knows its text; the wrapped engine's session, `inner`, holds a stretch of it:
the tokens from `start` on, as far as they were fed. Those after them are owed, and are fed with the
next pass. Invariant: what is held follows from `start` and the length of `inner`, so that a pass
that failed after a part of it ran can be repeated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, Self

from tandem.backends.interface import (
    Capabilities,
    Engine,
    EngineDefaults,
    ForwardRequest,
    Logits,
    Session,
    never,
    open_session,
)
from tandem.backends.request_checks import (
    check_batch,
    check_capacity,
    check_length,
    own_session,
)
from tandem.backends.text_session import TextSession


class WrappedEngine(EngineDefaults, ABC):
    """An engine around `engine`, with its description and those of its capabilities that every kind
    of wrapping keeps. A subclass opens its sessions in `_wrapped`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.inner = engine
        self.model_name = engine.model_name
        self.vocabulary_size = engine.vocabulary_size
        self.vocabulary_hash = engine.vocabulary_hash
        self.context_length = engine.context_length
        self.eos_token_ids = engine.eos_token_ids
        self.kv_bytes_per_token = engine.kv_bytes_per_token
        inner = engine.capabilities
        self.capabilities = Capabilities(
            trees=inner.trees,
            forks=inner.forks,
            cancellation=inner.cancellation,
            same_bits=inner.same_bits,
        )
        self._longest = engine.context_length
        self._open: set[WrappedSession] = set()

    @property
    def kv_bytes_in_use(self) -> int:
        return self._engine.kv_bytes_in_use

    @property
    def sessions_open(self) -> int:
        return self._engine.sessions_open

    def open(self, capacity: int, spare: int = 0) -> Session:
        check_capacity(capacity, self._longest)
        return self._wrapped(capacity, spare, self._engine.open)

    def open_for(self, owner: str, capacity: int, spare: int = 0) -> Session:
        check_capacity(capacity, self._longest)
        return self._wrapped(capacity, spare, partial(open_session, self._engine, owner))

    def fork(self, parent: Session, length: int, capacity: int) -> Session:
        source = own_session(parent, WrappedSession, self._open)
        check_length(length, source.length)
        check_capacity(capacity, self._longest, length)
        shared = source.inner_length(length)
        room = max(shared, self._room_of_fork(source, capacity))
        return source.around(self._engine.fork(source.inner, shared, room), length, capacity)

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        sessions = [self._own(request.session) for request in batch]
        check_batch(batch, self)
        requests = [
            request if session is None else session.prepared(request)
            for session, request in zip(sessions, batch, strict=True)
        ]
        # What a tree hangs on cannot be fed beside its nodes.
        owed = [
            due
            for session, request in zip(sessions, requests, strict=True)
            if session is not None and request.parents is not None and (due := session.owed())
        ]
        if owed:
            self._engine.forward(owed, cancelled)
        shares = [
            request if session is None else session.share(request)
            for session, request in zip(sessions, requests, strict=True)
        ]
        answers = self._engine.forward(shares, cancelled)
        for session, request in zip(sessions, requests, strict=True):
            if session is not None:
                session.commit(request)
        return [
            logits if session is None else session.answer(logits)
            for session, logits in zip(sessions, answers, strict=True)
        ]

    @abstractmethod
    def _wrapped(
        self, capacity: int, spare: int, open_inner: Callable[[int, int], Session]
    ) -> Session:
        """Return a new session around one that `open_inner(capacity, spare)` returns."""

    @abstractmethod
    def _room_of_fork(self, source: WrappedSession, capacity: int) -> int:
        """Return the capacity of the inner session of a fork for `capacity` tokens."""

    def _own(self, session: Session) -> WrappedSession | None:
        """Return the session; None for one of the wrapped engine, whose requests are passed on."""
        return own_session(session, WrappedSession, self._open)


class WrappedSession(TextSession):
    """A text of which `inner` holds the tokens from `start` on, as far as it goes; one of its
    tokens for each."""

    def __init__(
        self, open_sessions: set[Any], inner: Session, *, capacity: int, spare: int = 0
    ) -> None:
        super().__init__(open_sessions, capacity, spare)
        self.inner = inner
        self.start = 0

    @property
    def held(self) -> int:
        """Number of tokens that `inner` holds."""
        return self.inner.length

    def inner_length(self, length: int) -> int:
        """Return the length of `inner` where it holds no more than the first `length` tokens."""
        return min(max(0, length - self.start), self.inner.length)

    def around(self, inner: Session, length: int, capacity: int) -> Self:
        """Return a session of the first `length` tokens, around a fork of this one's `inner`."""
        made = copy(self)
        made.inner = inner
        made.capacity = made.slots = capacity
        made.token_ids = self.token_ids[:length]
        made.pending = None
        made._open_sessions.add(made)
        return made

    def prepared(self, request: ForwardRequest) -> ForwardRequest:
        """Make ready for a pass: take back what one that failed has fed, drop a pending tree that
        does not grow, and make room. Return the request, or one with the whole tree where `inner`
        has another."""
        held = self.inner_length(self.length)
        if self.inner.length != held:
            self.inner.rollback(held)
        if len(self.inner.tree or ()) != len(self.tree or ()):
            request = self.whole(request)
        if not request.extends_tree:
            self.pending = None
            if self.start >= self.length:  # the text went back behind what was held
                self.start = 0
        self.make_room(request)
        return request

    def make_room(self, request: ForwardRequest) -> None:
        """Have `inner` hold a part of the text that leaves room for the request: move `start`."""

    def due(self, request: ForwardRequest) -> tuple[int, ...]:
        """Return the tokens after those that are held: owed ones, then the request's."""
        first = self.start + self.held
        return (*self.token_ids[first:], *request.token_ids[max(0, first - self.length) :])

    def owed(self) -> ForwardRequest | None:
        """Return a pass over the committed tokens that `inner` lacks, if it lacks any."""
        token_ids = tuple(self.token_ids[self.start + self.held :])
        return ForwardRequest(self.inner, token_ids, 0, checked=True) if token_ids else None

    def share(self, request: ForwardRequest) -> ForwardRequest:
        """Return the wrapped engine's share of a pass."""
        if request.parents is not None:
            return replace(request, session=self.inner)
        return replace(request, session=self.inner, token_ids=self.due(request), checked=True)

    def answer(self, logits: Logits) -> Logits:
        """Return what the request is answered, of the logits of its share."""
        return logits

    def rollback(self, length: int) -> None:
        super().rollback(length)
        self.inner.rollback(self.inner_length(length))

    def keep_path(self, indices: Sequence[int]) -> None:
        super().keep_path(indices)
        self.inner.keep_path(self.inner_path(indices))

    def inner_path(self, indices: Sequence[int]) -> Sequence[int]:
        """Return the nodes of the pending tree of `inner` on a path."""
        return indices

    def close(self) -> None:
        super().close()
        self.inner.close()
