"""A draft model in its target's vocabulary: an engine of the target's token ids.

Sessions count target tokens, each of which is one or several tokens of the draft model's own
session. Invariant: the logits after a text depend on the text alone as long as it fits the draft's
session; of a text that does not, the beginning is forgotten, which costs acceptance and no
exactness.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from tandem.backends.interface import Engine, ForwardRequest, Logits, Session
from tandem.backends.wrapped_engine import WrappedEngine, WrappedSession
from tandem.core.errors import InvalidArgument
from tandem.text.translation import Translation

SPARE = 2
"""Room in the draft's session, in draft tokens per target token."""
_LEAST_ROOM = 64


class TranslatedEngine(WrappedEngine):
    """Implements `Engine` for the target's vocabulary over a draft `engine` with another one."""

    def __init__(
        self,
        engine: Engine,
        translation: Translation,
        *,
        vocabulary_hash: str,
        eos_token_ids: frozenset[int],
    ) -> None:
        """Wrap `engine`. `vocabulary_hash` and `eos_token_ids` are the target's."""
        super().__init__(engine)
        self.translation = translation
        self.vocabulary_size = translation.intersection.target_size
        self.vocabulary_hash = vocabulary_hash
        self.eos_token_ids = eos_token_ids
        self.kv_bytes_per_token = SPARE * engine.kv_bytes_per_token

    def _wrapped(
        self, capacity: int, spare: int, open_inner: Callable[[int, int], Session]
    ) -> Session:
        inner = open_inner(self._room(capacity + spare), 0)
        return TranslatedSession(
            self._open, inner, self.translation, capacity=capacity, spare=spare
        )

    def _room_of_fork(self, source: WrappedSession, capacity: int) -> int:
        return self._room(capacity)

    def _room(self, capacity: int) -> int:
        room = max(_LEAST_ROOM, SPARE * capacity + len(self.translation.lead))
        return min(self._engine.context_length, room)


class TranslatedSession(WrappedSession):
    """A sequence of target tokens, for each of which the draft's session holds one or several.
    `_ends[i]` is that session's length after target token `start + i`; one beyond the session's
    length says nothing, as its token is not held."""

    def __init__(
        self,
        open_sessions: set[Any],
        inner: Session,
        translation: Translation,
        *,
        capacity: int,
        spare: int = 0,
    ) -> None:
        super().__init__(open_sessions, inner, capacity=capacity, spare=spare)
        self._translation = translation
        self._ends: list[int] = []
        self._rows: list[int] = []  # of the pass under way: the draft's rows that are answered
        self._nodes: list[range] = []  # of the last tree: each node's draft tokens

    @property
    def held(self) -> int:
        return bisect_right(self._ends, self.inner.length)

    def inner_length(self, length: int) -> int:
        held = min(length - self.start, self.held)
        return self._ends[held - 1] if held > 0 else 0

    def prepared(self, request: ForwardRequest) -> ForwardRequest:
        """Make ready for a pass. Making room may change all logits of a tree that grows, so it is
        fed again from its roots on."""
        return super().prepared(self.whole(request))

    def make_room(self, request: ForwardRequest) -> None:
        """Forget the beginning of a text that outgrows the draft's session. Raises
        InvalidArgument("token_ids")."""
        self._ends = self._ends[: self.held]
        if self.inner.length + sum(map(len, self._spelt(self.due(request)))) > self.inner.capacity:
            wanted = request.logits_to_keep if request.parents is None else len(request.token_ids)
            self._forget(request, max(1, wanted))

    def owed(self) -> ForwardRequest | None:
        request = super().owed()
        return request and self._chain(request.token_ids, 0)

    def share(self, request: ForwardRequest) -> ForwardRequest:
        if request.parents is None:
            return self._chain(self.due(request), request.logits_to_keep)
        return self._tree(request.token_ids, request.parents, request.logits_to_keep)

    def answer(self, logits: Logits) -> Logits:
        return self._translation.intersection.restricted(logits[self._rows])

    def inner_path(self, indices: Sequence[int]) -> Sequence[int]:
        return [node for index in indices for node in self._nodes[index]]

    def keep_path(self, indices: Sequence[int]) -> None:
        length = self.inner.length
        super().keep_path(indices)
        for index in indices:
            length += len(self._nodes[index])
            self._ends.append(length)

    def _chain(self, token_ids: Sequence[int], logits_to_keep: int) -> ForwardRequest:
        spelt = self._spelt(token_ids)
        nodes = _consecutive(spelt)
        self._ends += [self.inner.length + chain.stop for chain in nodes]
        return self._request(spelt, nodes, logits_to_keep, None)

    def _tree(
        self, token_ids: Sequence[int], parents: tuple[int, ...], logits_to_keep: int
    ) -> ForwardRequest:
        """Return a tree of draft tokens. A node of several becomes a chain, and the node's children
        follow the end of the chain."""
        spelt = [
            self._translation.draft_ids(token)
            if self.token_ids or parent >= 0
            else self._translation.first(token)
            for token, parent in zip(token_ids, parents, strict=True)
        ]
        self._nodes = nodes = _consecutive(spelt)
        drafted = tuple(
            inner - 1 if inner > chain.start else (nodes[parent][-1] if parent >= 0 else -1)
            for chain, parent in zip(nodes, parents, strict=True)
            for inner in chain
        )
        return self._request(spelt, nodes, logits_to_keep, drafted)

    def _request(
        self,
        spelt: Sequence[tuple[int, ...]],
        nodes: Sequence[range],
        logits_to_keep: int,
        parents: tuple[int, ...] | None,
    ) -> ForwardRequest:
        """Return a pass over draft tokens. The logits kept for a target token are those after its
        last one."""
        draft_ids = tuple(token for ids in spelt for token in ids)
        lasts = [chain[-1] for chain in nodes[len(nodes) - logits_to_keep :]]
        first = lasts[0] if lasts else len(draft_ids)
        self._rows = [last - first for last in lasts]
        return ForwardRequest(
            self.inner, draft_ids, len(draft_ids) - first, parents, checked=parents is None
        )

    def _spelt(self, token_ids: Sequence[int]) -> list[tuple[int, ...]]:
        spelt = [self._translation.draft_ids(token) for token in token_ids]
        if spelt and not self._ends:
            spelt[0] = self._translation.first(token_ids[0])
        return spelt

    def _forget(self, request: ForwardRequest, needed: int) -> None:
        """Empty the draft's session and keep the latest tokens: those that fill half of it, or the
        last `needed` ones."""
        tokens = (*self.token_ids, *request.token_ids)
        room = self.inner.capacity
        sizes = [len(self._translation.draft_ids(token)) for token in reversed(tokens)]
        totals = list(accumulate(sizes, initial=len(self._translation.lead)))[1:]
        if totals[needed - 1] > room:
            why = f"{totals[needed - 1]} draft tokens exceed the remaining capacity of {room}"
            raise InvalidArgument("token_ids", why)
        self.start = len(tokens) - max(needed, sum(total <= room // 2 for total in totals))
        self._ends = []
        self.inner.rollback(0)


def _consecutive(spelt: Sequence[tuple[int, ...]]) -> list[range]:
    """Return the indices of each token's draft tokens when they are fed side by side."""
    ends = accumulate(len(ids) for ids in spelt)
    return [range(end - len(ids), end) for ids, end in zip(spelt, ends, strict=True)]
