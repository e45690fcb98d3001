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
    Engine,
    ForwardCancelled,
    ForwardRequest,
    Logits,
    Session,
    never,
)
from tandem.backends.request_checks import check_batch, own_session
from tandem.backends.wrapped_engine import WrappedEngine, WrappedSession
from tandem.core.text_lookup import find_follower

SURE_BEFORE_MODEL = 3
"""Tokens of a repeated end that is believed before a model: it would rather be asked than guess."""
MOST_OWED = 16
"""Tokens that may wait for a pass: a pass over more would hold up the sessions that share it."""


class LookupFirstEngine(WrappedEngine):
    """Implements `Engine` for drafts, over the draft model's `engine`."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.model_name = f"lookup+{engine.model_name}"
        self.capabilities = replace(self.capabilities, skips=True)

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        sessions = [
            own_session(request.session, LookupFirstSession, self._open) for request in batch
        ]
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
            session.commit(plan.whole)
        return rows

    def _rows(self, plan: LookupPlan, answer: Logits | None) -> Logits:
        shape = len(plan.followers), self.vocabulary_size
        logits = np.full(shape, -np.inf, np.float32) if answer is None else answer.copy()
        for row, follower in enumerate(plan.followers):
            if follower is not None:
                logits[row] = -np.inf
                logits[row, follower] = 0.0
        return logits

    def _wrapped(
        self, capacity: int, spare: int, open_inner: Callable[[int, int], Session]
    ) -> Session:
        inner = open_inner(capacity, spare)
        return LookupFirstSession(self._open, inner, capacity=capacity, spare=spare)


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

    def plan(self, request: ForwardRequest) -> LookupPlan:
        """Plan a pass over the request; a pending tree that it does not grow is dropped."""
        whole = self.whole(request)
        self.pending = None
        followers = self._followers(whole)
        owed = tuple(self.token_ids[self.inner.length :])
        if request.parents is not None:
            feeds = ForwardRequest(self.inner, owed, 0) if owed else None
            return LookupPlan(whole, followers, replace(request, session=self.inner), feeds)
        fed = (*owed, *request.token_ids)
        if None not in followers and len(fed) <= MOST_OWED:
            self.inner.rollback(self.inner.length)  # drops its pending tree
            return LookupPlan(whole, followers, None)
        share = replace(request, session=self.inner, token_ids=fed)
        return LookupPlan(whole, followers, share)

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
