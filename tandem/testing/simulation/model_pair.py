"""The distributions of a model pair as functions of a context, each computed once.

A distribution depends on its context and on nothing else, so that runs over many links, pacings and
presets share what the models computed. Invariant: one engine session per model; the KV cache of the
prefix that a context shares with the last one is used again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tandem.backends.interface import Engine, ForwardRequest, Logits, Session
from tandem.core.errors import InvalidArgument
from tandem.core.probs import Array, SamplingParams, probs_from_logits

Context = tuple[int, ...]
ProbsOf = Callable[[Context], Array]
OnExit = Callable[[int, Logits], None]
Attach = Callable[[Engine, Session], None]
PROBS_KEPT = 16_384


def _nothing(engine: Engine, session: Session) -> None:
    """Attach no images."""


@dataclass(frozen=True, slots=True)
class SimulatedPair:
    """Two models over one vocabulary: `context -> probs` after `sampling`. The target's early
    exits, if it has any, wait for `exit_depths` of its pass."""

    vocabulary_size: int
    draft_probs: ProbsOf
    target_probs: ProbsOf
    sampling: SamplingParams
    context_length: int = 1 << 20
    exit_distributions: tuple[ProbsOf, ...] = ()
    exit_depths: tuple[float, ...] = ()
    exit_temperatures: tuple[float, ...] = ()
    """What calibrates how sure each exit is; empty: 1."""


def simulated_pair(
    draft: Engine, target: Engine, sampling: SamplingParams, attach: Attach = _nothing
) -> SimulatedPair:
    """Return two engines as functions of a context. Raises InvalidArgument when their vocabularies
    differ. `attach` is called with each engine and a session of it, before anything is fed."""
    if draft.vocabulary_hash != target.vocabulary_hash:
        raise InvalidArgument("draft", "its vocabulary is not the target's")
    exits = ExitDistributions(target, sampling, attach=attach) if target.exit_depths else None
    return SimulatedPair(
        target.vocabulary_size,
        EngineDistributions(draft, sampling, attach=attach),
        EngineDistributions(target, sampling, attach=attach),
        sampling,
        min(draft.context_length, target.context_length),
        tuple(exits.exit_probs(index) for index in range(len(target.exit_depths))) if exits else (),
        target.exit_depths,
        target.exit_temperatures,
    )


class EngineDistributions:
    """The distributions of one model after sampling settings, float32 [vocabulary]."""

    def __init__(
        self,
        engine: Engine,
        sampling: SamplingParams,
        probs_kept: int = PROBS_KEPT,
        attach: Attach = _nothing,
    ) -> None:
        self._engine = engine
        self._sampling = sampling
        self._probs_kept = probs_kept
        self._session = engine.open(engine.context_length)
        attach(engine, self._session)
        self._fed: Context = ()
        self._distributions: dict[Context, Array] = {}

    def __call__(self, context: Context) -> Array:
        """Return the distribution after a context. Raises InvalidArgument for one longer than the
        model's."""
        probs = self._distributions.get(context)
        if probs is None:
            if len(self._distributions) >= self._probs_kept:
                self._distributions.clear()
            probs = self._distributions[context] = self._computed(context)
            probs.setflags(write=False)
        return probs

    def close(self) -> None:
        """Free the session. Closing twice is allowed."""
        self._session.close()

    def _computed(self, context: Context) -> Array:
        return probs_from_logits(self._fed_with(context)[0], self._sampling)

    def _fed_with(
        self, context: Context, exits: Context = (), on_exit: OnExit = lambda index, logits: None
    ) -> Logits:
        """Return the logits [1, vocabulary] after a context; logits of its early exits go to
        `on_exit`."""
        kept = min(_common_length(self._fed, context), len(context) - 1)
        self._session.rollback(kept)
        request = ForwardRequest(self._session, context[kept:], 1, exits=exits, on_exit=on_exit)
        (logits,) = self._engine.forward([request])
        self._fed = context
        return logits


class ExitDistributions(EngineDistributions):
    """The distributions of a model's early exits, in a session of their own; free unless read."""

    def exit_probs(self, index: int) -> ProbsOf:
        """Return the distribution of exit `index` as a function of a context."""

        def probs_of(context: Context) -> Array:
            probs: Array = self(context)[index]
            return probs

        return probs_of

    def _computed(self, context: Context) -> Array:
        """Return the distributions [exits, vocabulary], all from one pass."""
        probs_of: dict[int, Array] = {}

        def keep(index: int, logits: Logits) -> None:
            probs_of[index] = probs_from_logits(logits[0], self._sampling)

        exits = tuple(range(len(self._engine.exit_depths)))
        self._fed_with(context, exits, keep)
        return np.stack([probs_of[index] for index in exits])


def _common_length(one: Context, other: Context) -> int:
    for length, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return length
    return min(len(one), len(other))
