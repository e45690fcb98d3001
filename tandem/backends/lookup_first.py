"""Lookup, else model: an engine that answers from the text itself where its end stood in it before,
and asks the draft model only elsewhere.

Invariant: the logits after a text are a function of the text alone, so both acceptance rules stay
exact. Tokens that no row of the model was wanted for are owed to its session, and fed with the next
pass that needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tandem.backends.interface import (
    Capabilities,
    Engine,
    EngineDefaults,
    ForwardCancelled,
    ForwardRequest,
    Logits,
    Session,
    never,
    open_session,
)
from tandem.backends.request_checks import check_batch, check_capacity, check_length, grown
from tandem.backends.wrapped_session import WrappedSession
from tandem.core.errors import InvalidArgument
from tandem.core.text_lookup import find_follower
from tandem.core.tree import check_path

SURE_BEFORE_MODEL = 3
"""Tokens of a repeated end that is believed before a model: it would rather be asked than guess."""
MOST_OWED = 16
"""Tokens that may wait for a pass: a pass over more would hold up the sessions that share it."""


class LookupFirstEngine(EngineDefaults):
    """Implements `Engine` for drafts, over the draft model's `engine`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.model_name = f"lookup+{engine.model_name}"
        self.vocabulary_size = engine.vocabulary_size
        self.vocabulary_hash = engine.vocabulary_hash
        self.context_length = engine.context_length
        self.eos_token_ids = engine.eos_token_ids
        self.kv_bytes_per_token = engine.kv_bytes_per_token
        self.inner = engine
        inner = engine.capabilities
        self.capabilities = Capabilities(
            trees=inner.trees,
            forks=inner.forks,
            cancellation=inner.cancellation,
            same_bits=inner.same_bits,
            skips=True,
        )
        self._open: set[LookupFirstSession] = set()

    @property
    def kv_bytes_in_use(self) -> int:
        return self._engine.kv_bytes_in_use

    @property
    def sessions_open(self) -> int:
        return len(self._open)

    def open(self, capacity: int, spare: int = 0) -> LookupFirstSession:
        check_capacity(capacity, self.context_length)
        return LookupFirstSession(self._open, self._engine.open(capacity, spare), ())

    def open_for(self, owner: str, capacity: int, spare: int = 0) -> LookupFirstSession:
        check_capacity(capacity, self.context_length)
        inner = open_session(self._engine, owner, capacity, spare)
        return LookupFirstSession(self._open, inner, ())

    def fork(self, parent: Session, length: int, capacity: int) -> LookupFirstSession:
        source = self._open_session(parent)
        check_length(length, source.length)
        check_capacity(capacity, self.context_length, length)
        inner = self._engine.fork(source.inner, min(length, source.inner.length), capacity)
        return LookupFirstSession(self._open, inner, source.token_ids[:length])

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        sessions = [self._open_session(request.session) for request in batch]
        check_batch(batch, self)
        plans = [session.plan(request) for session, request in zip(sessions, batch, strict=True)]
        if self.capabilities.cancellation and cancelled():
            raise ForwardCancelled("cancelled before the lookup")
        due = [plan.owed for plan in plans if plan.owed is not None]
        if due:
            self._engine.forward(due, cancelled)
        requests = [plan.request for plan in plans if plan.request is not None]
        answers = iter(self._engine.forward(requests, cancelled) if requests else ())
        rows = [self._rows(plan, next(answers) if plan.request else None) for plan in plans]
        for session, plan in zip(sessions, plans, strict=True):
            session.finish(plan)
        return rows

    def _rows(self, plan: LookupPlan, answer: Logits | None) -> Logits:
        shape = len(plan.followers), self.vocabulary_size
        logits = np.full(shape, -np.inf, np.float32) if answer is None else answer.copy()
        for row, follower in enumerate(plan.followers):
            if follower is not None:
                logits[row] = -np.inf
                logits[row, follower] = 0.0
        return logits

    def _open_session(self, session: Session) -> LookupFirstSession:
        if not isinstance(session, LookupFirstSession) or session not in self._open:
            raise InvalidArgument("session", "is closed, or belongs to another engine")
        return session


@dataclass(frozen=True, slots=True)
class LookupPlan:
    """Plan of a pass for one session. `followers`: what is sure to follow at each row that is kept,
    or None. `request` is the model's share of the pass, None where it has none; `owed` what the
    model must be fed before a tree. `whole` has all tokens that are pending or committed."""

    whole: ForwardRequest
    followers: list[int | None]
    request: ForwardRequest | None
    owed: ForwardRequest | None = None


class LookupFirstSession(WrappedSession):
    """A sequence of which the model's session holds the beginning."""

    def __init__(
        self,
        open_sessions: set[LookupFirstSession],
        inner: Session,
        token_ids: tuple[int, ...],
    ) -> None:
        super().__init__(open_sessions, inner, capacity=inner.capacity, slots=inner.slots)
        self.token_ids = token_ids
        self._tree: ForwardRequest | None = None

    @property
    def length(self) -> int:
        return len(self.token_ids)

    @property
    def tree(self) -> tuple[int, ...] | None:
        return None if self._tree is None else self._tree.parents

    def plan(self, request: ForwardRequest) -> LookupPlan:
        """Plan a pass over the request; a pending tree that it does not grow is dropped."""
        tree, self._tree = self._tree, None
        grows = request.extends_tree and tree is not None
        whole = grown(tree, request) if grows and tree is not None else request
        followers = self._followers(whole)
        owed = self.token_ids[self.inner.length :]
        if request.parents is not None:
            feeds = ForwardRequest(self.inner, owed, 0) if owed else None
            return LookupPlan(whole, followers, replace(request, session=self.inner), feeds)
        fed = (*owed, *request.token_ids)
        if None not in followers and len(fed) <= MOST_OWED:
            self.inner.rollback(self.inner.length)  # drops its pending tree
            return LookupPlan(whole, followers, None)
        share = replace(request, session=self.inner, token_ids=fed)
        return LookupPlan(whole, followers, share)

    def finish(self, plan: LookupPlan) -> None:
        """Commit a chain, or hold a tree, after a pass."""
        if plan.whole.parents is None:
            self.token_ids += tuple(plan.whole.token_ids)
        else:
            self._tree = plan.whole

    def rollback(self, length: int) -> None:
        self._check_open()
        check_length(length, self.length)
        self.inner.rollback(min(length, self.inner.length))
        self.token_ids = self.token_ids[:length]
        self._tree = None

    def keep_path(self, indices: Sequence[int]) -> None:
        self._check_open()
        check_path(self.tree, indices)
        assert self._tree is not None
        self.inner.keep_path(indices)
        self.token_ids += tuple(self._tree.token_ids[node] for node in indices)
        self._tree = None

    def _followers(self, whole: ForwardRequest) -> list[int | None]:
        committed = np.asarray((*self.token_ids, *whole.token_ids), dtype=np.int64)
        first = len(whole.token_ids) - whole.logits_to_keep
        return [
            _sure_follower(_context(committed, self.length, whole.parents, node))
            for node in range(first, len(whole.token_ids))
        ]


def _sure_follower(context: NDArray[np.int64]) -> int | None:
    follower, matched = find_follower(context)
    return follower if matched >= SURE_BEFORE_MODEL else None


def _context(
    tokens: NDArray[np.int64], length: int, parents: tuple[int, ...] | None, node: int
) -> NDArray[np.int64]:
    """Return the tokens up to a node of what is fed after the first `length`, the node's own
    included."""
    if parents is None:
        return tokens[: length + node + 1]
    path: list[int] = []
    while node >= 0:
        path.append(length + node)
        node = parents[node]
    return np.concatenate((tokens[:length], tokens[path[::-1]]))
