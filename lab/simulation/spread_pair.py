"""A model pair whose distributions have long tails: what is cut off them counts.

The target's probabilities fall as those of words do (Zipf's law), over an order of tokens that the
context decides. The draft model's logits are the target's with normal noise, as wide as the
declared acceptance rate asks for. So a truncation costs acceptance about as it does with real
models. Invariant: a distribution is a function of its context and the seed."""

from __future__ import annotations

from functools import lru_cache
from statistics import NormalDist

import numpy as np

from lab.simulation.model_pair import Context, SimulatedPair
from tandem.core.errors import InvalidArgument
from tandem.core.hashing import hash_words
from tandem.core.probs import Array, SamplingParams

_REMEMBERED = 3
"""Tokens of a context that its distributions depend on, beside its length."""
_KEPT = 1024
"""Distributions that are kept of each model; drafting and judging ask for most of them twice."""
_ORDER = 0
_NOISE = 1


def spread_pair(
    acceptance_rate: float,
    *,
    seed: int = 0,
    vocabulary_size: int = 4096,
    exponent: float = 1.0,
) -> SimulatedPair:
    """Return a pair over a vocabulary whose size is a power of two.

    Args:
        acceptance_rate: about that of drafts from the draft model's whole distributions, in (0, 1].
        seed: of orders and noise.
        vocabulary_size: a power of two.
        exponent: how steeply probabilities fall; the i-th likeliest token has one in proportion to
            i ** -exponent."""
    if vocabulary_size < 2 or vocabulary_size & (vocabulary_size - 1):
        raise InvalidArgument("vocabulary_size", f"{vocabulary_size} is not a power of two")
    if not 0 < acceptance_rate <= 1:
        raise InvalidArgument("acceptance_rate", f"{acceptance_rate} is not in (0, 1]")
    ids = np.arange(vocabulary_size)
    falling: Array = (1.0 + ids) ** -exponent
    falling /= falling.sum()
    # Two distributions whose logits differ by normal noise of deviation s overlap by 2·Φ(-s/2).
    deviation = -2 * NormalDist().inv_cdf(acceptance_rate / 2)
    noise: Array = np.exp(deviation * np.random.default_rng(seed).standard_normal(vocabulary_size))

    def shuffled(values: Array, purpose: int, length: int, recent: Context) -> Array:
        word = hash_words(seed, purpose, length, *recent)
        step = 2 * (word % (vocabulary_size // 2)) + 1  # odd, so that no place comes twice
        places: Array = (step * ids + (word >> 24) % vocabulary_size) % vocabulary_size
        return values[places]

    @lru_cache(_KEPT)
    def target_of(length: int, recent: Context) -> Array:
        return _normalised(shuffled(falling, _ORDER, length, recent))

    @lru_cache(_KEPT)
    def draft_of(length: int, recent: Context) -> Array:
        probs = shuffled(falling, _ORDER, length, recent)
        return _normalised(probs * shuffled(noise, _NOISE, length, recent))

    return SimulatedPair(
        vocabulary_size,
        lambda context: draft_of(len(context), context[-_REMEMBERED:]),
        lambda context: target_of(len(context), context[-_REMEMBERED:]),
        SamplingParams(),
    )


def _normalised(weights: Array) -> Array:
    probs: Array = (weights / weights.sum()).astype(np.float32)
    probs.setflags(write=False)
    return probs
