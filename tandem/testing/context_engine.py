"""An engine without weights: a function of the context gives the distribution after it. It keeps
the whole Engine contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.backends.interface import (
    KV_BLOCK,
    Capabilities,
    EngineDefaults,
    ForwardCancelled,
    ForwardRequest,
    Logits,
    Session,
    never,
)
from tandem.backends.request_checks import (
    check_batch,
    check_capacity,
    check_length,
    own_session,
)
from tandem.backends.text_session import TextSession
from tandem.core.errors import InvalidArgument

Distribution = Callable[[tuple[int, ...]], Sequence[float] | NDArray[np.floating]]
"""The probabilities [vocabulary_size] of the token after a context."""


class ContextEngine(EngineDefaults):
    """An engine whose logits after a context are the logarithm of `probs(context)`
    [vocabulary_size]. Temperature 1 without truncation therefore samples `probs` itself."""

    def __init__(
        self,
        vocabulary_size: int,
        probs: Distribution,
        *,
        model_name: str,
        vocabulary_hash: str,
        context_length: int = 4096,
        eos_token_ids: frozenset[int] = frozenset(),
        kv_bytes_per_token: int = 1,
        exit_distributions: Sequence[Distribution] = (),
        copies: bool = False,
    ) -> None:
        """Make an engine that predicts `probs(context)`. `exit_distributions[i](context)` is what
        early exit i predicts; exits are evenly spaced. `copies`: whether it has `kv_copies`."""
        self.model_name = model_name
        self.vocabulary_size = vocabulary_size
        self.context_length = context_length
        self.eos_token_ids = eos_token_ids
        self.vocabulary_hash = vocabulary_hash
        self.kv_bytes_per_token = kv_bytes_per_token
        self._probs = probs
        self._exit_distributions = tuple(exit_distributions)
        count = len(self._exit_distributions) + 1
        self.exit_depths = tuple((index + 1) / count for index in range(count - 1))
        self.capabilities = Capabilities(
            trees=True,
            forks=True,
            cancellation=True,
            exits=bool(self.exit_depths),
            same_bits=True,
            batch_invariant=True,
        )
        self._open: set[ContextSession] = set()
        self.kv_copies = ContextCopies(self._open) if copies else None

    @property
    def kv_bytes_in_use(self) -> int:
        return sum(session.own_capacity for session in self._open) * self.kv_bytes_per_token

    @property
    def sessions_open(self) -> int:
        return len(self._open)

    def open(self, capacity: int, spare: int = 0) -> ContextSession:
        check_capacity(capacity, self.context_length)
        return ContextSession(self._open, (), capacity, spare)

    def fork(self, parent: Session, length: int, capacity: int) -> ContextSession:
        source = own_session(parent, ContextSession, self._open)
        check_length(length, source.length)
        check_capacity(capacity, self.context_length, length)
        return ContextSession(self._open, source.token_ids[:length], capacity)

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        sessions = [own_session(request.session, ContextSession, self._open) for request in batch]
        check_batch(batch, self)
        wholes = [session.begin(seg) for session, seg in zip(sessions, batch, strict=True)]
        self._call_exits(sessions, wholes, cancelled)
        answers = []
        for session, whole in zip(sessions, wholes, strict=True):
            if cancelled():
                raise ForwardCancelled("cancelled while the model was computing")
            answers.append(self._logits(session, whole, self._probs))
        for session, whole in zip(sessions, wholes, strict=True):
            session.commit(whole)
        return answers

    def _call_exits(
        self,
        sessions: Sequence[ContextSession],
        batch: Sequence[ForwardRequest],
        cancelled: Callable[[], bool],
    ) -> None:
        for index, probs in enumerate(self._exit_distributions):
            for session, request in zip(sessions, batch, strict=True):
                if index in request.exits and request.logits_to_keep:
                    if cancelled():
                        raise ForwardCancelled("cancelled between two early exits")
                    request.on_exit(index, self._logits(session, request, probs))

    def _logits(
        self, session: ContextSession, request: ForwardRequest, probs_of: Distribution
    ) -> Logits:
        committed = tuple(session.token_ids)
        rows = np.empty((request.logits_to_keep, self.vocabulary_size), dtype=np.float32)
        first = len(request.token_ids) - request.logits_to_keep
        for row in range(request.logits_to_keep):
            probs = np.asarray(probs_of(committed + _fed_path(request, first + row)))
            if probs.shape != (self.vocabulary_size,):
                why = f"shape {probs.shape}, not ({self.vocabulary_size},)"
                raise InvalidArgument("probs", why)
            with np.errstate(divide="ignore"):
                rows[row] = np.log(probs)
        return rows


class ContextSession(TextSession):
    """A session that keeps the token ids themselves in place of keys and values; of those that it
    begins with, `shared`, another one keeps them."""

    def __init__(
        self,
        open_sessions: set[Any],
        shared: Sequence[int],
        capacity: int,
        spare: int = 0,
    ) -> None:
        super().__init__(open_sessions, capacity, spare)
        self.token_ids += shared
        self.own_capacity = self.slots - len(shared)

    def begin(self, request: ForwardRequest) -> ForwardRequest:
        """Return what a pass works on: the request after the pending tree if it grows that, else
        alone, and the tree is dropped."""
        whole = self.whole(request)
        if not request.extends_tree:
            self.pending = None
        return whole


class ContextCopies:
    """Copies of the token ids of a session's blocks, for the `open_sessions` of an engine."""

    def __init__(self, open_sessions: set[ContextSession]) -> None:
        self._open = open_sessions

    def copy(self, session: Session, first: int, end: int) -> list[tuple[int, ...]]:
        token_ids = own_session(session, ContextSession, self._open).token_ids
        if not 0 <= first <= end <= len(token_ids):
            raise InvalidArgument("length", f"has {len(token_ids)} tokens, {end} are needed")
        return [tuple(token_ids[at : at + KV_BLOCK]) for at in range(first, end, KV_BLOCK)]

    def paste(self, session: Session, copies: Sequence[tuple[int, ...]]) -> None:
        mine = own_session(session, ContextSession, self._open)
        token_ids = list(chain.from_iterable(copies))
        if mine.length or len(token_ids) > mine.capacity:
            why = f"{len(token_ids)} tokens for a session with {mine.length} of {mine.capacity}"
            raise InvalidArgument("length", why)
        mine.token_ids = token_ids


def _fed_path(request: ForwardRequest, node: int) -> tuple[int, ...]:
    """Return the fed tokens that position `node` of the request attends to, itself last."""
    if request.parents is None:
        return tuple(request.token_ids[: node + 1])
    path: list[int] = []
    while node >= 0:
        path.append(request.token_ids[node])
        node = request.parents[node]
    return tuple(reversed(path))
