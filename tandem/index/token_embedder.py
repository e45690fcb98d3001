"""What all embedders share: texts as tokens between marks, in batches, and vectors of length 1."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from tandem.index.model_folder import ModelFolder
from tandem.index.records import Vectors

MOST_TOKENS_TOGETHER = 4096
"""Tokens of one call of a model; so many take MiniLM about 60 MB."""


class TokenEmbedder(ABC):
    """An `Embedder` by a model of tokens. Texts longer than the model reads are cut at its limit,
    as its own library does."""

    def __init__(
        self,
        folder: ModelFolder,
        tokenizer: Tokenizer,
        *,
        longest: int,
        dimension: int,
        vocabulary_size: int,
        unknown_id: int | None,
    ) -> None:
        """Prepare to embed. `longest`: tokens that the model reads, with the marks."""
        self.name = folder.name
        self._question_prompt = folder.question_prompt
        self._passage_prompt = folder.passage_prompt
        self.dimension = dimension
        self.vocabulary_size = vocabulary_size
        self.unknown_id = unknown_id
        self._longest = longest
        self._tokenizer = tokenizer
        # Set once and for all: encoding may then run on several threads.
        tokenizer.no_truncation()
        tokenizer.no_padding()

    @cached_property
    def marks(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        plain = self._tokenizer.encode("a", add_special_tokens=False).ids
        marked = self._tokenizer.encode("a").ids
        places = range(len(marked) - len(plain) + 1)
        first = next(n for n in places if marked[n : n + len(plain)] == plain)
        return tuple(marked[:first]), tuple(marked[first + len(plain) :])

    @property
    def max_tokens(self) -> int:
        before, after = self.marks
        return self._longest - len(before) - len(after)

    def embed(self, texts: Sequence[str]) -> Vectors:
        return self._embed_after(self._passage_prompt, texts)

    def embed_questions(self, texts: Sequence[str]) -> Vectors:
        return self._embed_after(self._question_prompt, texts)

    def count_tokens(self, pieces: Sequence[str]) -> Sequence[int]:
        return [len(ids) for ids in self.token_ids(pieces)]

    def token_ids(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        encode: Any = self._tokenizer.encode_batch_fast
        return [encoded.ids for encoded in encode(list(texts), add_special_tokens=False)]

    def embed_tokens(self, token_ids: Sequence[Sequence[int]]) -> Vectors:
        before, after = self.marks
        vectors = np.empty((len(token_ids), self.dimension), np.float32)
        # Like lengths together: where texts are padded, that costs as much as text.
        order = sorted(range(len(token_ids)), key=lambda number: len(token_ids[number]))
        together: list[int] = []
        waiting = 0
        for number in order:
            together.append(number)
            waiting += len(before) + len(token_ids[number]) + len(after)
            if waiting >= MOST_TOKENS_TOGETHER or number == order[-1]:
                marked = [(*before, *token_ids[each], *after) for each in together]
                vectors[together] = self._pooled(marked)
                together, waiting = [], 0
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors

    def _embed_after(self, prompt: str, texts: Sequence[str]) -> Vectors:
        token_ids = self.token_ids([prompt + text for text in texts])
        return self.embed_tokens([ids[: self.max_tokens] for ids in token_ids])

    @abstractmethod
    def _pooled(self, marked: Sequence[Sequence[int]]) -> Vectors:
        """Return a vector for each text, [texts, dimension], not yet scaled to length 1."""
