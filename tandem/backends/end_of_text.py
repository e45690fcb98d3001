"""A draft model whose context is shorter than its target's: of a longer text it reads the end.

Sessions that fit are the draft engine's own. In a longer one the draft's session holds the text
from some position on, which moves on by half a context at a time. Invariant: that position is a
function of the text's length, so the logits after a text are a function of the text, and of an
engine with `same_bits` they are so to the bit; what is drafted with less of the text costs
acceptance and no exactness.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tandem.backends.interface import (
    CachesPrefixes,
    Engine,
    EngineDefaults,
    ForwardRequest,
    Logits,
    Session,
    never,
    open_session,
)
from tandem.backends.request_checks import check_batch, check_length, grown
from tandem.backends.wrapped_session import WrappedSession
from tandem.core.errors import InvalidArgument
from tandem.core.tree import check_path

LEAST_WINDOW = 4
"""Of a long text as many times the nodes of a tree are read, at least."""


def reading_the_end(engine: Engine) -> Engine:
    """Return a draft engine that also opens sessions longer than its context. An engine that caches
    prefixes itself is returned as it is: it knows texts by their beginning."""
    if isinstance(engine, CachesPrefixes):
        return engine
    return EndOfTextEngine(engine)


def reads_the_end(engine: Engine, spare: int = 0) -> bool:
    """Return whether an engine opens sessions longer than its context, with `spare` more nodes of a
    tree: these take room from the text, of which enough must be left."""
    room = engine.context_length - spare
    return isinstance(engine, EndOfTextEngine) and room >= LEAST_WINDOW * max(1, spare)


def window_start(length: int, window: int) -> int:
    """Return the first position that is read of a text of `length` tokens: 0 as long as it fits the
    `window`; then the window's end is left at most half empty."""
    step = max(1, window // 2)
    return -(-max(0, length - window) // step) * step


class EndOfTextEngine(EngineDefaults):
    """Implements `Engine` over a draft `engine`, except that `open` and `open_for` take any
    capacity; `context_length` is what the engine reads at once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.model_name = engine.model_name
        self.capabilities = engine.capabilities
        self.vision = engine.vision
        self.kv_files = engine.kv_files
        self.kv_copies = engine.kv_copies
        self.vocabulary_size = engine.vocabulary_size
        self.vocabulary_hash = engine.vocabulary_hash
        self.context_length = engine.context_length
        self.eos_token_ids = engine.eos_token_ids
        self.exit_depths = engine.exit_depths
        self.exit_temperatures = engine.exit_temperatures
        self.kv_bytes_per_token = engine.kv_bytes_per_token
        self.inner = engine
        self._long: set[LongSession] = set()

    @property
    def kv_bytes_in_use(self) -> int:
        return self._engine.kv_bytes_in_use

    @property
    def sessions_open(self) -> int:
        return self._engine.sessions_open

    def open(self, capacity: int, spare: int = 0) -> Session:
        if capacity <= self.context_length:
            return self._engine.open(capacity, spare)
        window = self._window(capacity, spare)
        return LongSession(self._long, self._engine.open(window, spare), capacity, spare)

    def open_for(self, owner: str, capacity: int, spare: int = 0) -> Session:
        if capacity <= self.context_length:
            return open_session(self._engine, owner, capacity, spare)
        window = self._window(capacity, spare)
        inner = open_session(self._engine, owner, window, spare)
        return LongSession(self._long, inner, capacity, spare)

    def fork(self, parent: Session, length: int, capacity: int) -> Session:
        if not isinstance(parent, LongSession):
            return self._engine.fork(parent, length, capacity)
        source = self._checked(parent)
        check_length(length, source.length)
        if capacity < max(1, length):
            raise InvalidArgument("capacity", f"{capacity} is below {max(1, length)}")
        inner = self._engine.fork(source.inner, source.held(length), source.inner.capacity)
        return source.copy(inner, length, capacity)

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        if not any(isinstance(request.session, LongSession) for request in batch):
            return self._engine.forward(batch, cancelled)
        check_batch(batch, self)
        long = [
            (self._checked(request.session), request)
            for request in batch
            if isinstance(request.session, LongSession)
        ]
        for session, request in long:
            session.move(request)
        # What a tree hangs on cannot be fed beside its nodes.
        due = [
            ForwardRequest(session.inner, session.owed, 0)
            for session, request in long
            if request.parents is not None and session.owed
        ]
        if due:
            self._engine.forward(due, cancelled)
        logits = self._engine.forward(
            [
                request.session.inner_request(request)
                if isinstance(request.session, LongSession)
                else request
                for request in batch
            ],
            cancelled,
        )
        for session, request in long:
            session.take(request)
        return logits

    def _window(self, capacity: int, spare: int) -> int:
        """Return how many tokens of a long session are read."""
        if not reads_the_end(self, spare):
            why = f"{capacity} is outside 1..{self.context_length}"
            raise InvalidArgument("capacity", why)
        return self.context_length - spare

    def _checked(self, session: Session) -> LongSession:
        if not isinstance(session, LongSession) or session not in self._long:
            raise InvalidArgument("session", "is closed, or belongs to another engine")
        return session


class LongSession(WrappedSession):
    """A sequence whose end is in `inner`, a session of the draft engine: the tokens from `_start`
    on, as far as they were fed. Those after them are owed."""

    def __init__(
        self, open_sessions: set[LongSession], inner: Session, capacity: int, spare: int = 0
    ) -> None:
        super().__init__(open_sessions, inner, capacity=capacity, slots=capacity + spare)
        self._spare = spare
        self._token_ids: list[int] = []
        self._start = 0
        self._tree: ForwardRequest | None = None

    @property
    def length(self) -> int:
        return len(self._token_ids)

    @property
    def tree(self) -> tuple[int, ...] | None:
        return None if self._tree is None else self._tree.parents

    @property
    def owed(self) -> tuple[int, ...]:
        """Committed tokens that the draft's session lacks."""
        return tuple(self._token_ids[self._start + self.inner.length :])

    def held(self, length: int) -> int:
        """Return how many of the first `length` tokens are in the draft's session."""
        return min(max(0, length - self._start), self.inner.length)

    def copy(self, inner: Session, length: int, capacity: int) -> LongSession:
        """Return a session of the first `length` tokens, around a fork of this one's."""
        made = LongSession(self._open_sessions, inner, capacity)
        made._token_ids = self._token_ids[:length]
        made._start = self._start
        return made

    def move(self, request: ForwardRequest) -> None:
        """Empty the draft's session if another part of the text is read in this pass. Raises
        InvalidArgument("logits_to_keep") for logits of tokens that are not."""
        if request.extends_tree:
            return
        count = len(request.token_ids)
        ahead = count if request.parents is None else max(count, self._spare)
        start = window_start(self.length + ahead, self.inner.capacity)
        if request.parents is None and self.length + count - start < request.logits_to_keep:
            why = f"{request.logits_to_keep}; the model reads {self.inner.capacity} tokens at once"
            raise InvalidArgument("logits_to_keep", why)
        self._tree = None
        if start != self._start:
            self.inner.rollback(0)
            self._start = start

    def inner_request(self, request: ForwardRequest) -> ForwardRequest:
        """Return the draft's share of a pass."""
        if request.parents is not None:
            return replace(request, session=self.inner)
        first = self._start + self.inner.length
        token_ids = (*self._token_ids[first:], *request.token_ids[max(0, first - self.length) :])
        return replace(request, session=self.inner, token_ids=token_ids)

    def take(self, request: ForwardRequest) -> None:
        """Commit a chain, or hold a tree, after a pass."""
        if request.parents is None:
            self._token_ids += request.token_ids
        elif request.extends_tree and self._tree is not None:
            self._tree = grown(self._tree, request)
        else:
            self._tree = request

    def rollback(self, length: int) -> None:
        self._check_open()
        check_length(length, self.length)
        self.inner.rollback(self.held(length))
        del self._token_ids[length:]
        self._tree = None

    def keep_path(self, indices: Sequence[int]) -> None:
        self._check_open()
        check_path(self.tree, indices)
        assert self._tree is not None
        self.inner.keep_path(indices)
        self._token_ids += [self._tree.token_ids[node] for node in indices]
        self._tree = None

    def close(self) -> None:
        self._open_sessions.discard(self)
        self.inner.close()
