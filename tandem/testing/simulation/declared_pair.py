"""A model pair of declared acceptance: no models, each draft accepted with the same probability.

The target is all but sure of one token after every context, and the draft model all but sure of one
that is the same as often as declared. So all acceptance rules accept alike, and a comparison over
rates compares schedules and payloads alone. Invariant: a distribution is a function of its context
and the seed."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from tandem.core.hashing import hash_words, unit
from tandem.core.probs import Array, SamplingParams
from tandem.testing.simulation.model_pair import PROBS_KEPT, Context, ProbsOf, SimulatedPair

_TAIL = 1e-7
_SECOND = 1e-3
_SECOND_RATE = 0.5
"""How often the draft model's second choice is right where its first is not."""
_REMEMBERED = 3
"""Tokens of a context that its distributions depend on, beside its length."""


def declared_pair(
    acceptance_rate: float | Callable[[int], float],
    *,
    seed: int = 0,
    vocabulary_size: int = 512,
) -> SimulatedPair:
    """Make a pair with declared acceptance.

    Args:
        acceptance_rate: of every draft, or a function of the draft's absolute position."""
    rate_at = acceptance_rate if callable(acceptance_rate) else lambda position: acceptance_rate

    def target_token(length: int, recent: Context) -> int:
        return hash_words(seed, 0, length, *recent) % vocabulary_size

    def target_probs(length: int, recent: Context) -> Array:
        return _peaked(vocabulary_size, target_token(length, recent))

    def draft_probs(length: int, recent: Context) -> Array:
        right = target_token(length, recent)
        word = hash_words(seed, 1, length, *recent)
        wrong = (right + 1 + word % (vocabulary_size - 2)) % vocabulary_size
        if unit(hash_words(seed, 2, length, *recent)) < rate_at(length):
            return _peaked(vocabulary_size, right, wrong)
        if unit(hash_words(seed, 3, length, *recent)) < _SECOND_RATE:
            return _peaked(vocabulary_size, wrong, right)
        other = (wrong + 1) % vocabulary_size
        other = other if other != right else (other + 1) % vocabulary_size
        return _peaked(vocabulary_size, wrong, other)

    draft, target = _remembered(draft_probs), _remembered(target_probs)
    return SimulatedPair(vocabulary_size, draft, target, SamplingParams())


def _remembered(probs_after: Callable[[int, Context], Array]) -> ProbsOf:
    """Cache distributions by a context's length and last tokens, as pre-drafting and judging ask
    for many again."""
    kept = lru_cache(PROBS_KEPT)(probs_after)
    return lambda context: kept(len(context), context[-_REMEMBERED:])


def _peaked(vocabulary_size: int, first: int, second: int | None = None) -> Array:
    probs = np.full(vocabulary_size, _TAIL, dtype=np.float32)
    if second is not None:
        probs[second] = _SECOND
    probs[first] = 0.0
    probs[first] = 1.0 - probs.sum()
    probs.setflags(write=False)
    return probs
