"""Synthetic distributions shaped like a language model's: Zipf, with a new order of tokens per
context.

Invariant: a distribution is a pure function of (seed, context); float32, sums to 1. The draft's
distribution is the target's with Gaussian noise on its logits, so that acceptance falls as `noise`
grows.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np

from tandem.core.hashing import hash_words
from tandem.core.probs import Array

_ORDER = 1
_NOISE = 2


@dataclass(frozen=True, slots=True)
class ZipfDistributions:
    """Distributions over `vocabulary_size` tokens with probability ∝ rank^(−exponent)."""

    vocabulary_size: int
    exponent: float
    noise: float
    seed: int

    def target(self, context: tuple[int, ...]) -> Array:
        return _normalised(self._logits(context))

    def draft(self, context: tuple[int, ...]) -> Array:
        generator = np.random.default_rng(self._key(context, _NOISE))
        noise = generator.standard_normal(self.vocabulary_size, dtype=np.float32)
        return _normalised(self._logits(context) + np.float32(self.noise) * noise)

    def _logits(self, context: tuple[int, ...]) -> Array:
        """Return −exponent · log rank of each token; an affine map modulo the vocabulary deals out
        the ranks."""
        size = self.vocabulary_size
        key = self._key(context, _ORDER)
        step = 1 + key % (size - 1)
        start = (key >> 32) % size
        while gcd(step, size) != 1:
            step += 1
        ranks = (np.arange(size, dtype=np.int64) * step + start) % size
        logits: Array = np.log(ranks + 1, dtype=np.float32) * np.float32(-self.exponent)
        return logits

    def _key(self, context: tuple[int, ...], purpose: int) -> int:
        return int(hash_words(self.seed, purpose, len(context), *context[-2:]))


def _normalised(logits: Array) -> Array:
    weights = np.exp(logits - logits.max())
    probs: Array = weights / weights.sum()
    return probs
