"""A draft model in its target's vocabulary: an engine that takes and gives the target's token ids.

Sessions count target tokens, each of which is one or several tokens of the draft model's own
session. Invariant: the logits after a text depend on the text alone as long as it fits the draft's
session; of a text that does not, the beginning is forgotten, which costs acceptance and no
exactness. Must not import torch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from tandem.core.errors import InvalidArgument
from tandem.core.translation import Translation
from tandem.core.tree import check_path
from tandem.engine.base import Engine, Logits, Segment, Session, never
from tandem.engine.batch import check_batch, check_capacity, check_length, grown

SPARE = 2
"""Room in the draft's session, in draft tokens per target token."""
_LEAST_ROOM = 64


class TranslatedEngine:
    """Implements `Engine` for the target's vocabulary over a draft `engine` with another one."""

    def __init__(
        self,
        engine: Engine,
        translation: Translation,
        *,
        vocabulary_hash: str,
        eos_token_ids: frozenset[int],
    ) -> None:
        """`vocabulary_hash` and `eos_token_ids` are the target's."""
        self.translation = translation
        self.model_name = engine.model_name
        self.vocabulary_size = translation.intersection.target_size
        self.vocabulary_hash = vocabulary_hash
        self.eos_token_ids = eos_token_ids
        self.context_length = engine.context_length
        self.exit_depths: tuple[float, ...] = ()  # a draft model has none
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
        return TranslatedSession(self._open, self.translation, inner, capacity, spare)

    def fork(self, parent: Session, length: int, capacity: int) -> "TranslatedSession":
        source = self._own(parent)
        check_length(length, source.length)
        check_capacity(capacity, self.context_length, length)
        shared = source.draft_length(length)
        inner = self._engine.fork(source.inner, shared, max(shared, self._room(capacity)))
        return source.copy(inner, length, capacity)

    def forward(
        self, batch: Sequence[Segment], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        sessions = [self._own(segment.session) for segment in batch]
        check_batch(batch, self.vocabulary_size)
        batch = [session.whole(segment) for session, segment in zip(sessions, batch, strict=True)]
        for session, segment in zip(sessions, batch, strict=True):
            session.prepare(segment)
        self._feed_what_trees_stand_on(sessions, batch, cancelled)
        plans = [session.plan(segment) for session, segment in zip(sessions, batch, strict=True)]
        answers = self._engine.forward([plan.segment for plan in plans], cancelled)
        for session, plan in zip(sessions, plans, strict=True):
            session.finish(plan)
        restricted = self.translation.intersection.restricted
        return [
            restricted(logits[list(plan.rows)]) for logits, plan in zip(answers, plans, strict=True)
        ]

    def _feed_what_trees_stand_on(
        self,
        sessions: "Sequence[TranslatedSession]",
        batch: Sequence[Segment],
        cancelled: Callable[[], bool],
    ) -> None:
        """Committed tokens that the draft's session lost cannot be fed beside a tree's nodes."""
        due = [
            session
            for session, segment in zip(sessions, batch, strict=True)
            if segment.parents is not None and session.owed
        ]
        if due:
            plans = [session.plan_owed() for session in due]
            self._engine.forward([plan.segment for plan in plans], cancelled)
            for session, plan in zip(due, plans, strict=True):
                session.finish(plan)

    def _room(self, capacity: int) -> int:
        wanted = max(_LEAST_ROOM, SPARE * capacity + len(self.translation.lead))
        return min(self._engine.context_length, wanted)

    def _own(self, session: Session) -> "TranslatedSession":
        if not isinstance(session, TranslatedSession) or session not in self._open:
            raise InvalidArgument("session", "closed, or of another engine")
        return session


@dataclass(frozen=True, slots=True)
class Plan:
    """One pass in the draft's tokens. `rows` of its logits are the wanted ones; `nodes[i]` are the
    indices of target token i's draft tokens in the pass; `token_ids` are committed by it."""

    segment: Segment
    rows: tuple[int, ...]
    nodes: tuple[tuple[int, ...], ...]
    token_ids: tuple[int, ...] = ()
    tree: Segment | None = None


class TranslatedSession:
    """A sequence of target tokens; the draft's session holds those from `_start` on.

    `_ends[i]` is the length of the draft's session after target token `_start + i`. Tokens after
    those are owed: committed, but not fed since the draft's session was emptied.
    """

    def __init__(
        self,
        open_sessions: "set[TranslatedSession]",
        translation: Translation,
        inner: Session,
        capacity: int,
        spare: int = 0,
    ) -> None:
        self.capacity = capacity
        self.slots = capacity + spare
        self.inner = inner
        self._translation = translation
        self._token_ids: list[int] = []
        self._start = 0
        self._ends: list[int] = []
        self._tree: Plan | None = None
        self._open_sessions = open_sessions
        open_sessions.add(self)

    @property
    def length(self) -> int:
        return len(self._token_ids)

    @property
    def tree(self) -> tuple[int, ...] | None:
        plan = self._tree
        return None if plan is None or plan.tree is None else plan.tree.parents

    def whole(self, segment: Segment) -> Segment:
        """The segment, or what it grows a pending tree to: that is fed again from its roots on, for
        what is forgotten to make room may change all of it."""
        if not segment.grows or self._tree is None or self._tree.tree is None:
            return segment
        return grown(self._tree.tree, segment)

    @property
    def owed(self) -> tuple[int, ...]:
        """Committed tokens that the draft's session does not hold."""
        return tuple(self._token_ids[self._start + len(self._ends) :])

    def draft_length(self, length: int) -> int:
        """Length of the draft's session for the first `length` tokens; 0 if it holds none."""
        held = min(length - self._start, len(self._ends))
        return self._ends[held - 1] if held > 0 else 0

    def copy(self, inner: Session, length: int, capacity: int) -> "TranslatedSession":
        """A session of the first `length` tokens, around a fork of this one's inner session."""
        made = TranslatedSession(self._open_sessions, self._translation, inner, capacity)
        made._token_ids = self._token_ids[:length]
        if length > self._start:
            made._start, made._ends = self._start, self._ends[: length - self._start]
        return made

    def rollback(self, length: int) -> None:
        self._check_open()
        check_length(length, self.length)
        self.inner.rollback(self.draft_length(length))
        del self._token_ids[length:]
        if length > self._start:
            del self._ends[length - self._start :]
        else:
            self._start, self._ends = 0, []
        self._tree = None

    def keep_path(self, indices: Sequence[int]) -> None:
        self._check_open()
        tree = self._tree
        check_path(self.tree, indices)
        assert tree is not None
        assert tree.tree is not None
        self.inner.keep_path([node for index in indices for node in tree.nodes[index]])
        for index in indices:
            self._token_ids.append(tree.tree.token_ids[index])
            held = self._ends[-1] if self._ends else 0
            self._ends.append(held + len(tree.nodes[index]))
        self._tree = None

    def close(self) -> None:
        self._open_sessions.discard(self)
        self.inner.close()

    def prepare(self, segment: Segment) -> None:
        """Before a pass: drop a pending tree, and make room for the segment.

        Raises InvalidArgument("token_ids") if what must be computed at once does not fit.
        """
        self._tree = None
        if self._start > self.length:  # a cancelled pass had forgotten more than there is now
            self._start = 0
        sizes = [len(ids) for ids in self._spelt(self._due(segment))]
        if self.inner.length + sum(sizes) <= self.inner.capacity:
            return
        needed = segment.wanted if segment.parents is None else len(segment.token_ids)
        self._forget(segment, max(1, needed))

    def plan(self, segment: Segment) -> Plan:
        """The pass that does what the segment asks for, committed tokens that are owed included."""
        if segment.parents is not None:
            return self._tree_plan(segment)
        spelt = self._spelt(self._due(segment))
        nodes = _consecutive(spelt)
        token_ids = tuple(segment.token_ids)
        return _plan(self.inner, spelt, nodes, segment.wanted, None, token_ids=token_ids)

    def plan_owed(self) -> Plan:
        """The pass that feeds what is owed and nothing else."""
        spelt = self._spelt(self.owed)
        return _plan(self.inner, spelt, _consecutive(spelt), 0, None)

    def finish(self, plan: Plan) -> None:
        """After the pass: its tokens are held."""
        if plan.tree is not None:
            self._tree = plan
            return
        held = self._ends[-1] if self._ends else 0
        self._ends += [held + nodes[-1] + 1 for nodes in plan.nodes]
        self._token_ids += plan.token_ids

    def _tree_plan(self, segment: Segment) -> Plan:
        """A node of several draft tokens is a chain; what hangs on it hangs on its end."""
        assert segment.parents is not None
        spelt = [self._translation.draft_ids(token) for token in segment.token_ids]
        if not self._token_ids:
            spelt = [
                self._translation.first(token) if parent < 0 else ids
                for token, parent, ids in zip(
                    segment.token_ids, segment.parents, spelt, strict=True
                )
            ]
        nodes = _consecutive(spelt)
        parents = tuple(
            inner - 1 if inner > chain[0] else (nodes[parent][-1] if parent >= 0 else -1)
            for chain, parent in zip(nodes, segment.parents, strict=True)
            for inner in chain
        )
        return _plan(self.inner, spelt, nodes, segment.wanted, parents, tree=segment)

    def _spelt(self, token_ids: Sequence[int]) -> list[tuple[int, ...]]:
        """The draft tokens of each of `token_ids`, which follow those that are held."""
        spelt = [self._translation.draft_ids(token) for token in token_ids]
        if spelt and not self._ends:
            spelt[0] = self._translation.first(token_ids[0])
        return spelt

    def _due(self, segment: Segment) -> tuple[int, ...]:
        """What the draft's session must hold after the pass and does not hold yet."""
        held = self._start + len(self._ends)
        new = segment.token_ids[max(0, held - self.length) :]
        return (*self._token_ids[held:], *new)

    def _forget(self, segment: Segment, needed: int) -> None:
        """Empty the draft's session and keep the latest tokens: those that fill half of it, or the
        last `needed` ones."""
        tokens = (*self._token_ids, *segment.token_ids)
        lead, room = len(self._translation.lead), self.inner.capacity
        sizes = [len(self._translation.draft_ids(token)) for token in reversed(tokens)]
        totals = list(accumulate(sizes, initial=lead))[1:]
        if totals[needed - 1] > room:
            raise InvalidArgument(
                "token_ids", f"{totals[needed - 1]} draft tokens exceed the room for {room}"
            )
        kept = max(needed, sum(total <= room // 2 for total in totals))
        self._start, self._ends = len(tokens) - kept, []
        self.inner.rollback(0)

    def _check_open(self) -> None:
        if self not in self._open_sessions:
            raise InvalidArgument("session", "the session is closed")


def _plan(
    inner: Session,
    spelt: Sequence[tuple[int, ...]],
    nodes: tuple[tuple[int, ...], ...],
    wanted: int,
    parents: tuple[int, ...] | None,
    token_ids: tuple[int, ...] = (),
    tree: Segment | None = None,
) -> Plan:
    """A target token's logits are those after its last draft token."""
    draft_ids = tuple(token for ids in spelt for token in ids)
    ends = [chain[-1] for chain in nodes[len(nodes) - wanted :]]
    first = ends[0] if ends else len(draft_ids)
    segment = Segment(inner, draft_ids, len(draft_ids) - first, parents)
    return Plan(segment, tuple(end - first for end in ends), nodes, token_ids, tree)


def _consecutive(spelt: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """The indices of each token's draft tokens when they are fed side by side."""
    ends = list(accumulate(len(ids) for ids in spelt))
    return tuple(tuple(range(end - len(ids), end)) for ids, end in zip(spelt, ends, strict=True))
