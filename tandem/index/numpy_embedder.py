"""Vectors of texts by a BERT encoder without torch: a quarter of the memory, and it loads in a
fraction of a second. Equal to torch's but for rounding, so an index may change between both."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from threadpoolctl import ThreadpoolController
from tokenizers import Tokenizer

from tandem.core.reading import reading
from tandem.index.bert_encoder import BertEncoder
from tandem.index.model_folder import ModelFolder
from tandem.index.records import Vectors

MOST_TOKENS_TOGETHER = 4096
"""Tokens of one call of the encoder; so many take about 60 MB."""


class NumpyEmbedder:
    """An `Embedder` by the BERT encoder in a folder. Texts longer than the model reads are cut at
    its limit, as its own library does."""

    def __init__(self, folder: ModelFolder, threads: int = 1) -> None:
        """Load the model in a folder. Raises InvalidArgument saying what is wrong with it.
        `threads` is for numpy's BLAS, in the whole process."""
        self.name = folder.name
        self._first_token = folder.pools_first_token
        ThreadpoolController().select(internal_api="openblas").limit(limits=threads)
        files = sorted(folder.path.glob("*.safetensors"))
        with reading(folder.path, "embedding"):
            if not files:
                raise FileNotFoundError("it has no file *.safetensors")
            weights = {name: each for file in files for name, each in load_file(file).items()}
            self._encoder = BertEncoder(folder.config, weights)
            self._tokenizer = Tokenizer.from_file(str(folder.path / "tokenizer.json"))
        # Set once and for all: encoding may then run on several threads.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._longest = min(folder.max_length or self._encoder.longest, self._encoder.longest)
        self.dimension = self._encoder.hidden_size
        self.vocabulary_size = int(folder.config["vocab_size"])
        self.unknown_id = self._tokenizer.token_to_id("[UNK]")

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
        return self.embed_tokens([ids[: self.max_tokens] for ids in self.token_ids(texts)])

    def embed_questions(self, texts: Sequence[str]) -> Vectors:
        return self.embed(texts)

    def count_tokens(self, pieces: Sequence[str]) -> Sequence[int]:
        return [len(ids) for ids in self.token_ids(pieces)]

    def token_ids(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        encode: Any = self._tokenizer.encode_batch_fast
        return [encoded.ids for encoded in encode(list(texts), add_special_tokens=False)]

    def embed_tokens(self, token_ids: Sequence[Sequence[int]]) -> Vectors:
        before, after = self.marks
        vectors = np.empty((len(token_ids), self.dimension), np.float32)
        together: list[tuple[int, ...]] = []
        first = waiting = 0
        for number, ids in enumerate(token_ids):
            together.append((*before, *ids, *after))
            waiting += len(together[-1])
            if waiting >= MOST_TOKENS_TOGETHER or number + 1 == len(token_ids):
                vectors[first : number + 1] = self._pooled(together)
                first = number + 1
                waiting = 0
                together = []
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors

    def _pooled(self, marked: Sequence[Sequence[int]]) -> Vectors:
        """Return a vector for each text, [texts, dimension], not yet scaled to length 1."""
        states = self._encoder.states(marked)
        return np.stack([each[0] if self._first_token else each.mean(0) for each in states])
