"""A deterministic model without weights: the law after a context is a function of that context.

For tests and simulation. `ScriptedEngine` keeps the whole Engine contract; `scripted_law` makes a
law by hashing the last tokens, `noisy_law` a draft model of it with a chosen acceptance rate.
This module must not import torch.
"""

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tandem.core.errors import InvalidArgument
from tandem.core.tree import check_path
from tandem.engine.base import ForwardCancelled, Logits, Segment, Session, never
from tandem.engine.batch import check_batch, check_capacity, check_length, grown

Law = Callable[[tuple[int, ...]], Sequence[float] | NDArray[np.floating]]
_LAWS_KEPT = 1024


class ScriptedEngine:
    """An engine whose logits after a context are the logarithm of `law(context)` [vocabulary_size].

    Temperature 1 without truncation therefore samples `law` itself.
    """

    def __init__(
        self,
        vocabulary_size: int,
        law: Law,
        *,
        context_length: int = 4096,
        eos_token_ids: frozenset[int] = frozenset(),
        model_name: str = "scripted",
        kv_bytes_per_token: int = 1,
        exit_laws: Sequence[Law] = (),
    ) -> None:
        """`exit_laws[i](context)` is what early exit i makes of a context; the exits lie evenly in
        the pass."""
        self.model_name = model_name
        self.vocabulary_size = vocabulary_size
        self.context_length = context_length
        self.eos_token_ids = eos_token_ids
        self.vocabulary_hash = hashlib.sha256(f"scripted:{vocabulary_size}".encode()).hexdigest()
        self.kv_bytes_per_token = kv_bytes_per_token
        self._law = law
        self._exit_laws = tuple(exit_laws)
        count = len(self._exit_laws) + 1
        self.exit_depths = tuple((index + 1) / count for index in range(count - 1))
        self._open: set[ScriptedSession] = set()

    @property
    def kv_bytes_in_use(self) -> int:
        return sum(session.own_capacity for session in self._open) * self.kv_bytes_per_token

    @property
    def sessions_open(self) -> int:
        return len(self._open)

    def open(self, capacity: int, spare: int = 0) -> "ScriptedSession":
        check_capacity(capacity, self.context_length)
        return ScriptedSession(self._open, (), capacity, spare)

    def fork(self, parent: Session, length: int, capacity: int) -> "ScriptedSession":
        source = self._own(parent)
        check_length(length, source.length)
        check_capacity(capacity, self.context_length, length)
        return ScriptedSession(self._open, source.token_ids[:length], capacity)

    def forward(
        self, batch: Sequence[Segment], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        sessions = [self._own(segment.session) for segment in batch]
        check_batch(batch, self.vocabulary_size, len(self.exit_depths))
        wholes = [session.begin(seg) for session, seg in zip(sessions, batch, strict=True)]
        self._tell_exits(sessions, wholes, cancelled)
        answers = []
        for session, whole in zip(sessions, wholes, strict=True):
            if cancelled():
                raise ForwardCancelled("cancelled while the scripted model was computing")
            answers.append(self._logits(session.token_ids, whole, self._law))
        for session, whole in zip(sessions, wholes, strict=True):
            session.feed(whole)
        return answers

    def _tell_exits(
        self,
        sessions: "Sequence[ScriptedSession]",
        batch: Sequence[Segment],
        cancelled: Callable[[], bool],
    ) -> None:
        for index, law in enumerate(self._exit_laws):
            for session, segment in zip(sessions, batch, strict=True):
                if index in segment.exits and segment.wanted:
                    if cancelled():
                        raise ForwardCancelled("cancelled between two early exits")
                    segment.on_exit(index, self._logits(session.token_ids, segment, law))

    def _logits(self, committed: tuple[int, ...], segment: Segment, law_of: Law) -> Logits:
        rows = np.empty((segment.wanted, self.vocabulary_size), dtype=np.float32)
        first = len(segment.token_ids) - segment.wanted
        for row in range(segment.wanted):
            law = np.asarray(law_of(committed + _fed_path(segment, first + row)))
            if law.shape != (self.vocabulary_size,):
                raise InvalidArgument("law", f"shape {law.shape}, not ({self.vocabulary_size},)")
            with np.errstate(divide="ignore"):
                rows[row] = np.log(law)
        return rows

    def _own(self, session: Session) -> "ScriptedSession":
        if not isinstance(session, ScriptedSession) or session not in self._open:
            raise InvalidArgument("session", "closed, or of another engine")
        return session


class ScriptedSession:
    """A session that keeps the token ids themselves in place of keys and values."""

    def __init__(
        self,
        open_sessions: "set[ScriptedSession]",
        shared: tuple[int, ...],
        capacity: int,
        spare: int = 0,
    ) -> None:
        self.capacity = capacity
        self.slots = capacity + spare
        self.own_capacity = self.slots - len(shared)
        self.token_ids = shared
        self._tree: Segment | None = None
        self._open_sessions = open_sessions
        open_sessions.add(self)

    @property
    def length(self) -> int:
        return len(self.token_ids)

    @property
    def tree(self) -> tuple[int, ...] | None:
        return None if self._tree is None else self._tree.parents

    def begin(self, segment: Segment) -> Segment:
        """What a pass works on: the segment after the pending tree if it grows that, else alone."""
        if segment.grows and self._tree is not None:
            return grown(self._tree, segment)
        self._tree = None
        return segment

    def feed(self, segment: Segment) -> None:
        """Commit a chain, or hold a tree until `keep_path`."""
        if segment.parents is None:
            self.token_ids += tuple(segment.token_ids)
        else:
            self._tree = segment

    def rollback(self, length: int) -> None:
        self._check_open()
        check_length(length, self.length)
        self.token_ids = self.token_ids[:length]
        self._tree = None

    def keep_path(self, indices: Sequence[int]) -> None:
        self._check_open()
        tree = self._tree
        check_path(None if tree is None else tree.parents, indices)
        assert tree is not None
        self.token_ids += tuple(tree.token_ids[node] for node in indices)
        self._tree = None

    def close(self) -> None:
        self._open_sessions.discard(self)

    def _check_open(self) -> None:
        if self not in self._open_sessions:
            raise InvalidArgument("session", "the session is closed")


def scripted_law(seed: int, vocabulary_size: int, order: int = 2, sharpness: float = 8.0) -> Law:
    """A fixed pseudo-random law for every context, decided by its last `order` tokens.

    The log-probabilities spread evenly over `sharpness` nats: 0 gives the uniform law, large values
    almost one-hot laws.
    """

    @lru_cache(maxsize=_LAWS_KEPT)
    def law_after(recent: tuple[int, ...]) -> NDArray[np.float64]:
        weights = np.exp(sharpness * (_uniforms(seed, recent, vocabulary_size) - 1.0))
        law: NDArray[np.float64] = weights / weights.sum()
        law.setflags(write=False)
        return law

    return lambda context: law_after(tuple(context[max(0, len(context) - order) :]))


def noisy_law(target_law: Law, noise_law: Law, noise: float) -> Law:
    """A draft model's law: (1 - noise) · target + noise · unrelated law.

    The expected acceptance rate of the rejection rule is at least 1 - noise.
    """
    if not 0.0 <= noise <= 1.0:
        raise InvalidArgument("noise", f"{noise} is outside 0..1")

    def law(context: tuple[int, ...]) -> NDArray[np.float64]:
        target, other = np.asarray(target_law(context)), np.asarray(noise_law(context))
        mixed: NDArray[np.float64] = (1.0 - noise) * target + noise * other
        return mixed

    return law


def _fed_path(segment: Segment, node: int) -> tuple[int, ...]:
    """The fed tokens that position `node` of the segment sees, itself last."""
    if segment.parents is None:
        return tuple(segment.token_ids[: node + 1])
    path: list[int] = []
    while node >= 0:
        path.append(segment.token_ids[node])
        node = segment.parents[node]
    return tuple(reversed(path))


def _uniforms(seed: int, recent: tuple[int, ...], count: int) -> NDArray[np.float64]:
    """`count` numbers in [0, 1) from a hash of the seed and the tokens."""
    key = hashlib.blake2b(repr((seed, recent)).encode(), digest_size=8).digest()
    with np.errstate(over="ignore"):
        state = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        state = state + np.uint64(int.from_bytes(key, "little"))
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state = state ^ (state >> np.uint64(31))
    return (state >> np.uint64(11)).astype(np.float64) / float(1 << 53)
