"""A draft model whose context is shorter than its target's: of a longer text it reads the end.

Sessions that fit are the draft engine's own. In a longer one the draft's session holds the text
from some position on, which moves on by half a context at a time. Invariant: that position is a
function of the text's length, so the logits after a text are a function of the text, and of an
engine with `same_bits` they are so to the bit; what is drafted with less of the text costs
acceptance and no exactness.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from tandem.backends.interface import (
    Engine,
    ForwardRequest,
    Logits,
    Session,
    never,
)
from tandem.backends.wrapped_engine import WrappedEngine, WrappedSession
from tandem.core.errors import InvalidArgument

LEAST_WINDOW = 4
"""Of a long text at least so many times the nodes of a tree are read."""


def has_sliding_window(engine: Engine, spare: int = 0) -> bool:
    """Return whether an engine opens sessions longer than its context, with `spare` more nodes of a
    tree: these take room from the text, of which enough must be left."""
    room = engine.context_length - spare
    return isinstance(engine, SlidingWindowEngine) and room >= LEAST_WINDOW * max(1, spare)


def window_start(length: int, window: int) -> int:
    """Return the first position that is read of a text of `length` tokens: 0 as long as it fits the
    `window`; then the window's end is left at most half empty."""
    step = max(1, window // 2)
    return -(-max(0, length - window) // step) * step


class SlidingWindowEngine(WrappedEngine):
    """Implements `Engine` over a draft `engine`, except that `open` and `open_for` take any
    capacity; `context_length` is what the engine reads at once. The window is of the text that is
    fed, whatever attention the model has."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.capabilities = engine.capabilities
        self.vision = engine.vision
        self.kv_files = engine.kv_files
        self.kv_copies = engine.kv_copies
        self.exit_depths = engine.exit_depths
        self.exit_temperatures = engine.exit_temperatures
        self._longest = sys.maxsize

    def fork(self, parent: Session, length: int, capacity: int) -> Session:
        if self._own(parent) is None:
            return self._engine.fork(parent, length, capacity)
        return super().fork(parent, length, capacity)

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        if not any(isinstance(request.session, WindowedSession) for request in batch):
            return self._engine.forward(batch, cancelled)
        return super().forward(batch, cancelled)

    def _wrapped(
        self, capacity: int, spare: int, open_inner: Callable[[int, int], Session]
    ) -> Session:
        if capacity <= self.context_length:
            return open_inner(capacity, spare)
        if not has_sliding_window(self, spare):
            why = f"{capacity} is outside 1..{self.context_length}"
            raise InvalidArgument("capacity", why)
        inner = open_inner(self.context_length - spare, spare)
        return WindowedSession(self._open, inner, capacity=capacity, spare=spare)

    def _room_of_fork(self, source: WrappedSession, capacity: int) -> int:
        return source.inner.capacity

    def _own(self, session: Session) -> WrappedSession | None:
        return super()._own(session) if isinstance(session, WindowedSession) else None


class WindowedSession(WrappedSession):
    """A sequence whose end is in the draft's session."""

    def make_room(self, request: ForwardRequest) -> None:
        """Empty the draft's session if another part of the text is read in this pass. Raises
        InvalidArgument("logits_to_keep") for logits of tokens that are not."""
        if request.extends_tree:
            return
        count = len(request.token_ids)
        window = self.inner.capacity
        if request.parents is None:
            start = window_start(self.length + count, window)
            if self.length + count - start < request.logits_to_keep:
                why = f"{request.logits_to_keep}; the model reads {window} tokens at once"
                raise InvalidArgument("logits_to_keep", why)
        else:
            ahead = max(count, self.slots - self.capacity)
            start = min(self.length, window_start(self.length + ahead, window))
        if start != self.start:
            self.inner.rollback(0)
            self.start = start
