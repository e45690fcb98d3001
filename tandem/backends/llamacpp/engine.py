"""The engine for GGUF models: packed passes over the sequences of one llama.cpp context."""

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from tandem.backends.interface import (
    Capabilities,
    EngineDefaults,
    ForwardCancelled,
    ForwardRequest,
    Logits,
    Session,
    never,
)
from tandem.backends.llamacpp.native import LlamaContext
from tandem.backends.llamacpp.sequences import LlamaSession, Placed, SequencePool
from tandem.backends.request_checks import (
    check_batch,
    check_capacity,
    check_length,
    own_session,
)
from tandem.core.errors import FailedPrecondition, ResourceExhausted


class LlamaCppEngine(EngineDefaults):
    """Implements `tandem.backends.interface.Engine` over a context, which it takes over.

    `cancelled` is asked before each `most_tokens` of the context: what llama.cpp computes at once.
    Opening raises ResourceExhausted where the context has too few cells left.

    llama.cpp chooses how to compute a product by its number of rows, and each way rounds
    differently, so a sequence's logits depend in their last bits on what shares its passes. Over a
    context whose sequences lie apart the engine is batch-invariant: each token has a pass of its
    own, which is the same whatever was drafted and whoever else asks. It then has neither trees nor
    forks. The cells must lie apart as attention sums over them in their order.
    """

    def __init__(
        self,
        context: LlamaContext,
        *,
        model_name: str,
        vocabulary_hash: str,
        vocabulary_size: int,
        context_length: int,
        kv_bytes_per_token: int,
        eos_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        self.model_name = model_name
        self.vocabulary_hash = vocabulary_hash
        self.vocabulary_size = vocabulary_size
        self.eos_token_ids = eos_token_ids
        self.kv_bytes_per_token = kv_bytes_per_token
        self._context = context
        self._pool = SequencePool(context)
        self.context_length = min(context_length, context.cells_of_each)
        self.capabilities = (
            Capabilities(cancellation=True, same_bits=True, batch_invariant=True)
            if context.apart
            else Capabilities(trees=True, forks=True, cancellation=True)
        )

    @property
    def kv_bytes_in_use(self) -> int:
        return self._pool.cells_in_use * self.kv_bytes_per_token

    @property
    def sessions_open(self) -> int:
        return len(self._pool.sessions)

    def open(self, capacity: int, spare: int = 0) -> LlamaSession:
        check_capacity(capacity, self.context_length)
        if not self._context.apart:
            self._check_cells(capacity + spare)
        return LlamaSession(self._pool, self._pool.take(), capacity, spare=spare)

    def fork(self, parent: Session, length: int, capacity: int) -> LlamaSession:
        if not self.capabilities.forks:
            raise FailedPrecondition("llama.cpp cannot fork sessions where it is batch-invariant")
        source = own_session(parent, LlamaSession, self._pool.sessions)
        check_length(length, source.length)
        check_capacity(capacity, self.context_length, length)
        self._check_cells(capacity - length)
        return source.fork(length, capacity)

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        sessions = [
            own_session(request.session, LlamaSession, self._pool.sessions) for request in batch
        ]
        check_batch(batch, self)
        if not batch:
            return []
        begun: list[LlamaSession] = []
        places = []
        try:
            for session, request in zip(sessions, batch, strict=True):
                begun.append(session)
                places.append(session.place(request))
            if self._context.apart:
                answers = self._feed_apart(batch, sessions, cancelled)
            else:
                answers = self._feed_together(batch, places, cancelled)
        except Exception:
            for session in begun:
                session.undo()
            raise
        for session, request in zip(sessions, batch, strict=True):
            session.finish(request)
        return answers

    def _feed_apart(
        self,
        batch: Sequence[ForwardRequest],
        sessions: Sequence[LlamaSession],
        cancelled: Callable[[], bool],
    ) -> list[Logits]:
        """Feed each token alone, one session after the other."""
        return [
            self._feed_one_by_one(request, session, cancelled)[:, : self.vocabulary_size]
            for session, request in zip(sessions, batch, strict=True)
        ]

    def _feed_one_by_one(
        self, request: ForwardRequest, session: LlamaSession, cancelled: Callable[[], bool]
    ) -> Logits:
        rows = []
        first_kept = len(request.token_ids) - request.logits_to_keep
        for number, token in enumerate(request.token_ids):
            if cancelled():
                raise ForwardCancelled("cancelled before llama.cpp had processed all tokens")
            rows.append(
                self._context.feed(
                    token_ids=[token],
                    positions=[session.length + number],
                    sequences=[[session.sequence]],
                    wanted=np.array([number >= first_kept]),
                )
            )
        return np.concatenate(rows)

    def _feed_together(
        self,
        batch: Sequence[ForwardRequest],
        places: Sequence[Placed],
        cancelled: Callable[[], bool],
    ) -> list[Logits]:
        """Feed all tokens side by side, as many at once as the context takes."""
        token_ids = [token for request in batch for token in request.token_ids]
        positions = [position for place in places for position in place.positions]
        sequences = [joined for place in places for joined in place.sequences]
        kept = np.zeros(len(token_ids), np.bool_)
        for end, request in zip(_ends(batch), batch, strict=True):
            kept[end - request.logits_to_keep : end] = True
        rows = []
        step = self._context.most_tokens
        for start in range(0, len(token_ids), step):
            if cancelled():
                raise ForwardCancelled("cancelled before llama.cpp had processed all tokens")
            part = slice(start, start + step)
            rows.append(
                self._context.feed(
                    token_ids=token_ids[part],
                    positions=positions[part],
                    sequences=sequences[part],
                    wanted=kept[part],
                )
            )
        logits = rows[0] if len(rows) == 1 else np.concatenate(rows)
        logits = logits[:, : self.vocabulary_size]
        ends = list(accumulate(request.logits_to_keep for request in batch))
        return [logits[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]

    def _check_cells(self, wanted: int) -> None:
        free = self._context.cells - self._pool.cells_in_use
        if wanted > free:
            why = f"{wanted} tokens needed, {free} of {self._context.cells} free"
            raise ResourceExhausted(f"llama.cpp's keys and values: {why} (raise kv_cells)")


def _ends(batch: Sequence[ForwardRequest]) -> list[int]:
    return list(accumulate(len(request.token_ids) for request in batch))
