"""A draft model in its target's vocabulary: an engine of the target's token ids.

Sessions count target tokens, each of which is one or several tokens of the draft model's own
session. Invariant: the logits after a text depend on the text alone as long as it fits the draft's
session; of a text that does not, the beginning is forgotten, which costs acceptance and no
exactness.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

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
from tandem.backends.request_checks import check_batch, check_capacity, check_length, grown
from tandem.backends.wrapped_session import WrappedSession
from tandem.core.errors import InvalidArgument
from tandem.core.tree import check_path
from tandem.text.translation import Translation

SPARE = 2
"""Room in the draft's session, in draft tokens per target token."""
_LEAST_ROOM = 64


class TranslatedEngine(EngineDefaults):
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
        self.translation = translation
        self.model_name = engine.model_name
        self.vocabulary_size = translation.intersection.target_size
        self.vocabulary_hash = vocabulary_hash
        self.eos_token_ids = eos_token_ids
        self.context_length = engine.context_length
        inner = engine.capabilities
        self.capabilities = Capabilities(
            trees=inner.trees,
            forks=inner.forks,
            cancellation=inner.cancellation,
            same_bits=inner.same_bits,
        )
        self.kv_bytes_per_token = SPARE * engine.kv_bytes_per_token
        self._engine = engine
        self._open: set[TranslatedSession] = set()

    @property
    def kv_bytes_in_use(self) -> int:
        return self._engine.kv_bytes_in_use

    @property
    def sessions_open(self) -> int:
        return len(self._open)

    def open(self, capacity: int, spare: int = 0) -> "TranslatedSession":
        check_capacity(capacity, self.context_length)
        inner = self._engine.open(self._room(capacity + spare))
        return TranslatedSession(
            open_sessions=self._open,
            translation=self.translation,
            inner=inner,
            capacity=capacity,
            spare=spare,
        )

    def open_for(self, owner: str, capacity: int, spare: int = 0) -> "TranslatedSession":
        check_capacity(capacity, self.context_length)
        inner = open_session(self._engine, owner, self._room(capacity + spare))
        return TranslatedSession(
            open_sessions=self._open,
            translation=self.translation,
            inner=inner,
            capacity=capacity,
            spare=spare,
        )

    def fork(self, parent: Session, length: int, capacity: int) -> "TranslatedSession":
        source = self._open_session(parent)
        check_length(length, source.length)
        check_capacity(capacity, self.context_length, length)
        shared = source.draft_length(length)
        inner = self._engine.fork(source.inner, shared, max(shared, self._room(capacity)))
        return source.copy(inner, length, capacity)

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        sessions = [self._open_session(request.session) for request in batch]
        check_batch(batch, self)
        batch = [session.whole(request) for session, request in zip(sessions, batch, strict=True)]
        for session, request in zip(sessions, batch, strict=True):
            session.prepare(request)
        self._feed_what_trees_stand_on(sessions, batch, cancelled)
        plans = [session.plan(request) for session, request in zip(sessions, batch, strict=True)]
        answers = self._engine.forward([plan.request for plan in plans], cancelled)
        for session, plan in zip(sessions, plans, strict=True):
            session.finish(plan)
        restricted = self.translation.intersection.restricted
        return [
            restricted(logits[list(plan.rows)]) for logits, plan in zip(answers, plans, strict=True)
        ]

    def _feed_what_trees_stand_on(
        self,
        sessions: "Sequence[TranslatedSession]",
        batch: Sequence[ForwardRequest],
        cancelled: Callable[[], bool],
    ) -> None:
        """Feed the committed tokens that the draft's session has lost, for requests with a tree:
        they cannot be fed in the same pass as a tree's nodes."""
        due = [
            session
            for session, request in zip(sessions, batch, strict=True)
            if request.parents is not None and session.owed
        ]
        if due:
            plans = [session.plan_owed() for session in due]
            self._engine.forward([plan.request for plan in plans], cancelled)
            for session, plan in zip(due, plans, strict=True):
                session.finish(plan)

    def _room(self, capacity: int) -> int:
        room = max(_LEAST_ROOM, SPARE * capacity + len(self.translation.lead))
        return min(self._engine.context_length, room)

    def _open_session(self, session: Session) -> "TranslatedSession":
        if not isinstance(session, TranslatedSession) or session not in self._open:
            raise InvalidArgument("session", "is closed, or belongs to another engine")
        return session


@dataclass(frozen=True, slots=True)
class Plan:
    """One pass in the draft's tokens. `rows` of its logits are kept; `nodes[i]` are the
    indices of target token i's draft tokens in the pass; `token_ids` are committed by it."""

    request: ForwardRequest
    rows: tuple[int, ...]
    nodes: tuple[tuple[int, ...], ...]
    token_ids: tuple[int, ...] = ()
    tree: ForwardRequest | None = None


class TranslatedSession(WrappedSession):
    """A sequence of target tokens; the draft's session holds those from `_start` on. `_ends[i]` is
    the length of the draft's session after target token `_start + i`. Tokens after those are owed:
    committed, but not fed since the draft's session was emptied."""

    def __init__(
        self,
        open_sessions: "set[TranslatedSession]",
        translation: Translation,
        inner: Session,
        capacity: int,
        spare: int = 0,
    ) -> None:
        super().__init__(open_sessions, inner, capacity=capacity, slots=capacity + spare)
        self._translation = translation
        self._token_ids: list[int] = []
        self._start = 0
        self._ends: list[int] = []
        self._tree: Plan | None = None

    @property
    def length(self) -> int:
        return len(self._token_ids)

    @property
    def tree(self) -> tuple[int, ...] | None:
        plan = self._tree
        return None if plan is None or plan.tree is None else plan.tree.parents

    def whole(self, request: ForwardRequest) -> ForwardRequest:
        """Return the request, or the whole tree that it grows: making room may change all of its
        logits, so it is fed again from its roots on."""
        if not request.extends_tree or self._tree is None or self._tree.tree is None:
            return request
        return grown(self._tree.tree, request)

    @property
    def owed(self) -> tuple[int, ...]:
        """Committed tokens that the draft's session does not hold."""
        return tuple(self._token_ids[self._start + len(self._ends) :])

    def draft_length(self, length: int) -> int:
        """Return the length of the draft's session for the first `length` tokens; 0 if it holds
        none."""
        held = min(length - self._start, len(self._ends))
        return self._ends[held - 1] if held > 0 else 0

    def copy(self, inner: Session, length: int, capacity: int) -> "TranslatedSession":
        """Return a session of the first `length` tokens, around a fork of this one's inner
        session."""
        made = TranslatedSession(self._open_sessions, self._translation, inner, capacity)
        made._token_ids = self._token_ids[:length]
        if length > self._start:
            made._start = self._start
            made._ends = self._ends[: length - self._start]
        return made

    def rollback(self, length: int) -> None:
        self._check_open()
        check_length(length, self.length)
        self.inner.rollback(self.draft_length(length))
        del self._token_ids[length:]
        if length > self._start:
            del self._ends[length - self._start :]
        else:
            self._start = 0
            self._ends = []
        self._tree = None

    def keep_path(self, indices: Sequence[int]) -> None:
        self._check_open()
        check_path(self.tree, indices)
        tree = self._tree
        assert tree is not None
        assert tree.tree is not None
        self.inner.keep_path([node for index in indices for node in tree.nodes[index]])
        for index in indices:
            self._token_ids.append(tree.tree.token_ids[index])
            held = self._ends[-1] if self._ends else 0
            self._ends.append(held + len(tree.nodes[index]))
        self._tree = None

    def prepare(self, request: ForwardRequest) -> None:
        """Drop a pending tree and make room, before a pass. Raises InvalidArgument("token_ids")."""
        self._tree = None
        if self._start > self.length:  # a cancelled pass had forgotten more than there is now
            self._start = 0
        sizes = [len(ids) for ids in self._spelt(self._due(request))]
        if self.inner.length + sum(sizes) <= self.inner.capacity:
            return
        needed = request.logits_to_keep if request.parents is None else len(request.token_ids)
        self._forget(request, max(1, needed))

    def plan(self, request: ForwardRequest) -> Plan:
        """Return the pass that does what the request asks for, committed tokens that are owed
        included."""
        if request.parents is not None:
            return self._tree_plan(request)
        spelt = self._spelt(self._due(request))
        keep = request.logits_to_keep
        return _plan(
            inner=self.inner,
            spelt=spelt,
            nodes=_consecutive(spelt),
            logits_to_keep=keep,
            parents=None,
            token_ids=tuple(request.token_ids),
        )

    def plan_owed(self) -> Plan:
        spelt = self._spelt(self.owed)
        return _plan(
            inner=self.inner, spelt=spelt, nodes=_consecutive(spelt), logits_to_keep=0, parents=None
        )

    def finish(self, plan: Plan) -> None:
        """Hold the tokens of a pass that is over."""
        if plan.tree is not None:
            self._tree = plan
            return
        held = self._ends[-1] if self._ends else 0
        self._ends += [held + nodes[-1] + 1 for nodes in plan.nodes]
        self._token_ids += plan.token_ids

    def _tree_plan(self, request: ForwardRequest) -> Plan:
        """Plan a pass over a tree. A node of several draft tokens becomes a chain, and the node's
        children follow the end of the chain."""
        assert request.parents is not None
        spelt = [self._translation.draft_ids(token) for token in request.token_ids]
        if not self._token_ids:
            for node, parent in enumerate(request.parents):
                if parent < 0:
                    spelt[node] = self._translation.first(request.token_ids[node])
        nodes = _consecutive(spelt)
        parents = tuple(
            inner - 1 if inner > chain[0] else (nodes[parent][-1] if parent >= 0 else -1)
            for chain, parent in zip(nodes, request.parents, strict=True)
            for inner in chain
        )
        return _plan(
            inner=self.inner,
            spelt=spelt,
            nodes=nodes,
            logits_to_keep=request.logits_to_keep,
            parents=parents,
            tree=request,
        )

    def _spelt(self, token_ids: Sequence[int]) -> list[tuple[int, ...]]:
        spelt = [self._translation.draft_ids(token) for token in token_ids]
        if spelt and not self._ends:
            spelt[0] = self._translation.first(token_ids[0])
        return spelt

    def _due(self, request: ForwardRequest) -> tuple[int, ...]:
        held = self._start + len(self._ends)
        return (*self._token_ids[held:], *request.token_ids[max(0, held - self.length) :])

    def _forget(self, request: ForwardRequest, needed: int) -> None:
        """Empty the draft's session and keep the latest tokens: those that fill half of it, or the
        last `needed` ones."""
        tokens = (*self._token_ids, *request.token_ids)
        lead = len(self._translation.lead)
        room = self.inner.capacity
        sizes = [len(self._translation.draft_ids(token)) for token in reversed(tokens)]
        totals = list(accumulate(sizes, initial=lead))[1:]
        if totals[needed - 1] > room:
            why = f"{totals[needed - 1]} draft tokens exceed the remaining capacity of {room}"
            raise InvalidArgument("token_ids", why)
        kept = max(needed, sum(total <= room // 2 for total in totals))
        self._start = len(tokens) - kept
        self._ends = []
        self.inner.rollback(0)


def _plan(
    inner: Session,
    spelt: Sequence[tuple[int, ...]],
    nodes: tuple[tuple[int, ...], ...],
    logits_to_keep: int,
    parents: tuple[int, ...] | None,
    token_ids: tuple[int, ...] = (),
    tree: ForwardRequest | None = None,
) -> Plan:
    """Plan one pass in the draft's tokens. The logits kept for a target token are those after its
    last draft token."""
    draft_ids = tuple(token for ids in spelt for token in ids)
    ends = [chain[-1] for chain in nodes[len(nodes) - logits_to_keep :]]
    first = ends[0] if ends else len(draft_ids)
    request = ForwardRequest(inner, draft_ids, len(draft_ids) - first, parents)
    rows = tuple(end - first for end in ends)
    return Plan(request=request, rows=rows, nodes=nodes, token_ids=token_ids, tree=tree)


def _consecutive(spelt: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Return the indices of each token's draft tokens when they are fed side by side."""
    ends = list(accumulate(len(ids) for ids in spelt))
    return tuple(tuple(range(end - len(ids), end)) for ids, end in zip(spelt, ends, strict=True))
