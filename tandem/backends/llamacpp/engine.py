"""The engine for GGUF models: packed passes over the sequences of one llama.cpp context."""

from collections.abc import Callable, Sequence
from dataclasses import replace
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
from tandem.backends.llamacpp.fixed_rows import GROUPS, MOST_FILLING, feed_alone
from tandem.backends.llamacpp.native import LlamaContext
from tandem.backends.llamacpp.sequences import LlamaSession, Placed, SequencePool
from tandem.backends.request_checks import check_batch, check_capacity, check_length
from tandem.core.errors import FailedPrecondition, InvalidArgument, ResourceExhausted

_PROBE_TOKENS = 300
_PROBE_STEPS = 5
_PROBE_PIECE = 7
_PROBE_ROWS = (1, 2, 3, 4, 5, 8, 13, 1)
"""Tokens of the passes in which a batch-invariant engine must give the bits of a single pass."""
_FIRST_PROBE_TOKENS = 64
_PROBE_LONG_PIECE = 33


class LlamaCppEngine(EngineDefaults):
    """Implements `tandem.backends.interface.Engine` over a context, which it takes over.

    `cancelled` is asked before each `most_tokens` of the context: what llama.cpp computes at once.
    Opening raises ResourceExhausted where the context has too few cells left. Loading measures
    whether a sequence's logits depend on what shares its passes: quantisations differ in that.

    Over a context whose sequences lie apart the engine is batch-invariant, where loading finds a
    size of groups that makes it so (`fixed_rows`): it then has neither trees nor forks.
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
        self._rows = 0
        """Tokens of a group where sequences lie apart; 0: they share passes as they come."""
        if context.apart:
            self.context_length = min(context_length, context.cells_of_each - MOST_FILLING)
            self._fix_rows()
            return
        self.context_length = min(context_length, context.cells)
        self.capabilities = Capabilities(trees=True, forks=True, cancellation=True)
        self.capabilities = replace(self.capabilities, same_bits=_gives_same_bits(self))

    def _fix_rows(self) -> None:
        """Choose the smallest groups with which no bit depends on the rows of a pass."""
        self.capabilities = Capabilities(cancellation=True)
        for rows in GROUPS:
            self._rows = rows
            if _is_batch_invariant(self):
                self.capabilities = replace(self.capabilities, same_bits=True, batch_invariant=True)
                return

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
        source = self._open_session(parent)
        check_length(length, source.length)
        check_capacity(capacity, self.context_length, length)
        self._check_cells(capacity - length)
        return source.fork(length, capacity)

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        sessions = [self._open_session(request.session) for request in batch]
        check_batch(batch, self)
        if not batch:
            return []
        begun: list[LlamaSession] = []
        places = []
        try:
            for session, request in zip(sessions, batch, strict=True):
                begun.append(session)
                places.append(session.place(request))
            if self._rows:
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
        """Feed each session's tokens in a fixed shape, one session after the other."""
        return [
            feed_alone(
                self._context,
                session.sequence,
                session.length,
                request.token_ids,
                logits_to_keep=request.logits_to_keep,
                rows=self._rows,
                cancelled=cancelled,
            )[:, : self.vocabulary_size]
            for session, request in zip(sessions, batch, strict=True)
        ]

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
                self._context.feed(token_ids[part], positions[part], sequences[part], kept[part])
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

    def _open_session(self, session: Session) -> LlamaSession:
        if not isinstance(session, LlamaSession) or session not in self._pool.sessions:
            raise InvalidArgument("session", "is closed, or belongs to another engine")
        return session


def _ends(batch: Sequence[ForwardRequest]) -> list[int]:
    return list(accumulate(len(request.token_ids) for request in batch))


def _gives_same_bits(engine: LlamaCppEngine) -> bool:
    """Return whether a sequence has bit-identical logits fed at once, and in chunks together with
    another. Its cells lie apart then, between those of the other: some quantisations that pass
    alone do not beside others, nor after a few dozen tokens."""
    length = min(_PROBE_TOKENS, engine.context_length // 3)
    return _bits_are_kept(engine, length, (1,) * _PROBE_STEPS, _PROBE_PIECE)


def _is_batch_invariant(engine: LlamaCppEngine) -> bool:
    """Return the same of passes over any number of tokens, one and several. A model whose products
    depend on what its other rows are, as where experts are chosen by token, does not pass."""
    return all(
        _bits_are_kept(engine, min(length, engine.context_length), _PROBE_ROWS, _PROBE_LONG_PIECE)
        for length in (_FIRST_PROBE_TOKENS, _PROBE_TOKENS)
    )


def _bits_are_kept(
    engine: LlamaCppEngine, length: int, passes: Sequence[int], piece_tokens: int
) -> bool:
    """Return whether the last tokens of `length` have the same logits bit for bit in these passes,
    given by their tokens, as in one over all. What precedes them is fed in pieces."""
    tokens = tuple(step * 7 % engine.vocabulary_size for step in range(1, length + 1))
    prompt = tokens[: -sum(passes)]
    if not prompt:
        return False
    whole, pieces, other = (engine.open(length) for _ in range(3))
    try:
        (want,) = engine.forward([ForwardRequest(whole, tokens, sum(passes))])
        for start in range(0, len(prompt), piece_tokens):
            piece = prompt[start : start + piece_tokens]
            beside = ForwardRequest(other, piece[:3], 0)
            engine.forward([beside, ForwardRequest(pieces, piece, 0)])
        got = []
        end = len(prompt)
        for count in passes:
            fed = tokens[end : end + count]
            got.append(engine.forward([ForwardRequest(pieces, fed, count)])[0])
            end += count
        return bool(np.array_equal(np.concatenate(got), want))
    finally:
        for session in (whole, pieces, other):
            session.close()
