"""The laws of a model pair as functions of a context, each computed once.

A law depends on its context and on nothing else, so that runs over many links, pacings and presets
share what the models say. Invariant: one engine session per model; the KV of what a context has in
common with the last one is used again. Must not import torch or grpc.
"""

from __future__ import annotations

from collections.abc import Callable

from tandem.core.laws import Array, Sampling, law_from_logits
from tandem.engine.base import Engine, Segment

Context = tuple[int, ...]
LawOf = Callable[[Context], Array]
LAWS_KEPT = 16_384


class EngineLaws:
    """The laws of one model after sampling settings, float32 [vocabulary]."""

    def __init__(self, engine: Engine, sampling: Sampling, laws_kept: int = LAWS_KEPT) -> None:
        self._engine = engine
        self._sampling = sampling
        self._laws_kept = laws_kept
        self._session = engine.open(engine.context_length)
        self._fed: Context = ()
        self._laws: dict[Context, Array] = {}

    def __call__(self, context: Context) -> Array:
        """The law after a context. InvalidArgument for one that is longer than the model's."""
        law = self._laws.get(context)
        if law is None:
            if len(self._laws) >= self._laws_kept:
                self._laws.clear()
            law = self._laws[context] = self._computed(context)
            law.setflags(write=False)
        return law

    def close(self) -> None:
        """Free the session. Closing twice is allowed."""
        self._session.close()

    def _computed(self, context: Context) -> Array:
        kept = min(_common_length(self._fed, context), len(context) - 1)
        self._session.rollback(kept)
        fed = context[kept:]
        (logits,) = self._engine.forward([Segment(self._session, fed, wanted=1)])
        self._fed = context
        return law_from_logits(logits[0], self._sampling)


def _common_length(one: Context, other: Context) -> int:
    for length, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return length
    return min(len(one), len(other))
