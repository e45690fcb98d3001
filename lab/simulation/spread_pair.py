"""A model pair whose distributions have long tails: what is cut off them counts.

The target's probabilities fall as those of words do (Zipf's law), over an order of tokens that the
context decides. The draft model's are a mixture of the target's and of others like them, over
another order. So the acceptance rate is at least the target's share of that mixture, and a
truncation costs acceptance as it does with real models. Invariant: a distribution is a function of
its context and the seed."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from lab.simulation.model_pair import Context, SimulatedPair
from tandem.core.errors import InvalidArgument
from tandem.core.hashing import hash_words
from tandem.core.probs import Array, SamplingParams

_REMEMBERED = 3
"""Tokens of a context that its distributions depend on, beside its length."""
_KEPT = 1024
"""Distributions that are kept of each model; drafting and judging ask for most of them twice."""
_TARGET, _OTHER = 0, 1


def spread_pair(
    likeness: float, *, seed: int = 0, vocabulary_size: int = 4096, exponent: float = 1.0
) -> SimulatedPair:
    """Return a pair over a vocabulary whose size is a power of two.

    Args:
        likeness: share of the draft model's probability that is distributed as the target's.
        seed: of the orders of tokens.
        vocabulary_size: a power of two.
        exponent: how steeply probabilities fall; the i-th likeliest token has one in proportion to
            i ** -exponent."""
    if vocabulary_size < 2 or vocabulary_size & (vocabulary_size - 1):
        raise InvalidArgument("vocabulary_size", f"{vocabulary_size} is not a power of two")
    ids = np.arange(vocabulary_size)
    falling: Array = (1.0 + ids) ** -exponent
    falling /= falling.sum()

    def ordered(purpose: int, length: int, recent: Context) -> Array:
        word = hash_words(seed, purpose, length, *recent)
        step = 2 * (word % (vocabulary_size // 2)) + 1  # odd, so that no rank comes twice
        first = (word >> 24) % vocabulary_size
        ranks = (step * ids + first) % vocabulary_size
        probs: Array = falling[ranks]
        return probs

    @lru_cache(_KEPT)
    def target_of(length: int, recent: Context) -> Array:
        return _sealed(ordered(_TARGET, length, recent))

    @lru_cache(_KEPT)
    def draft_of(length: int, recent: Context) -> Array:
        like = ordered(_TARGET, length, recent)
        return _sealed(likeness * like + (1 - likeness) * ordered(_OTHER, length, recent))

    return SimulatedPair(
        vocabulary_size,
        lambda context: draft_of(len(context), context[-_REMEMBERED:]),
        lambda context: target_of(len(context), context[-_REMEMBERED:]),
        SamplingParams(),
    )


def _sealed(probs: Array) -> Array:
    sealed: Array = probs.astype(np.float32)
    sealed.setflags(write=False)
    return sealed
