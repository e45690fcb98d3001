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
        self.vocabulary_size = 2**30  # no two words have one id
        self.unknown_id = None
        self.marks = ((101,), (102,))
        self._words: dict[int, str] = {}

    def token_ids(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        """One for each word, known from then on."""
        ids = [[self._id_of(word) for word in text.lower().split()] for text in texts]
        return ids

    def embed_tokens(self, token_ids: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        return self.embed([" ".join(self._words[each] for each in ids) for ids in token_ids])

    def _id_of(self, word: str) -> int:
        token_id = 1000 + zlib.crc32(word.encode()) % (self.vocabulary_size - 1000)
        self._words[token_id] = word
        return token_id

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = np.zeros((len(texts), self.dimension), np.float32)
        for row, text in zip(vectors, texts, strict=True):
            for word in text.lower().split() or [""]:
                source = np.random.default_rng(zlib.crc32(word.encode()))
                row += source.standard_normal(self.dimension, dtype=np.float32)
            row /= np.linalg.norm(row)
        return vectors

    def embed_questions(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self.embed(texts)

    def count_tokens(self, pieces: Sequence[str]) -> Sequence[int]:
        return [1] * len(pieces)
