"""An embedder without a model: the sum of random directions, one for each word. Similar texts are
those that share words, which is all that tests of an index need."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class WordVectors:
    def __init__(self, dimension: int = 16, name: str = "words") -> None:
        self.dimension = dimension
        self.name = name
        self.max_tokens = 256

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = np.zeros((len(texts), self.dimension), np.float32)
        for row, text in zip(vectors, texts, strict=True):
            for word in text.lower().split() or [""]:
                source = np.random.default_rng(zlib.crc32(word.encode()))
                row += source.standard_normal(self.dimension, dtype=np.float32)
            row /= np.linalg.norm(row)
        return vectors

    def count_tokens(self, pieces: Sequence[str]) -> Sequence[int]:
        return [1] * len(pieces)
