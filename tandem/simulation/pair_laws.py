"""The laws of a model pair as functions of a context, each computed once.

A law depends on its context and on nothing else, so that runs over many links, pacings and presets
share what the models say. Invariant: one engine session per model; the KV of what a context has in
common with the last one is used again. Must not import torch or grpc.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tandem.core.laws import Array, Sampling, law_from_logits
from tandem.engine.base import Engine, Logits, Segment

Context = tuple[int, ...]
LawOf = Callable[[Context], Array]
OnExit = Callable[[int, Logits], None]
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
        return law_from_logits(self._fed_with(context)[0], self._sampling)

    def _fed_with(
        self, context: Context, exits: Context = (), on_exit: OnExit = lambda index, logits: None
    ) -> Logits:
        """Logits [1, vocabulary] after a context; what its early exits say goes to `on_exit`."""
        kept = min(_common_length(self._fed, context), len(context) - 1)
        self._session.rollback(kept)
        segment = Segment(self._session, context[kept:], 1, exits=exits, on_exit=on_exit)
        (logits,) = self._engine.forward([segment])
        self._fed = context
        return logits


class ExitLaws(EngineLaws):
    """The laws of a model's early exits. In a session of its own: where nobody asks, it costs
    nothing."""

    def exit_law(self, index: int) -> LawOf:
        """The law of exit `index` as a function of a context."""

        def law_of(context: Context) -> Array:
            law: Array = self(context)[index]
            return law

        return law_of

    def _computed(self, context: Context) -> Array:
        """[exits, vocabulary], all from one pass."""
        found: dict[int, Array] = {}

        def hear(index: int, logits: Logits) -> None:
            found[index] = law_from_logits(logits[0], self._sampling)

        exits = tuple(range(len(self._engine.exit_depths)))
        self._fed_with(context, exits, hear)
        return np.stack([found[index] for index in exits])


def _common_length(one: Context, other: Context) -> int:
    for length, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return length
    return min(len(one), len(other))
