"""Vectors of texts by any sentence-transformers model, with torch. Safetensors only, no remote
code."""

import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging

from tandem.core.reading import reading
from tandem.index.model_folder import ModelFolder
from tandem.index.records import Vectors

_BATCH = 32


class TorchEmbedder:
    """An `Embedder` by the model in a folder: tokens, hidden states, pooling, unit length.

    Texts longer than the model reads are cut at its limit, as its own library does."""

    def __init__(self, folder: ModelFolder, device: str = "cpu", threads: int = 1) -> None:
        """Load the model in a folder. Raises InvalidArgument saying what is wrong with it."""
        self._first_token = folder.pools_first_token
        self.name = folder.name
        torch.set_num_threads(threads)
        logging.disable_progress_bar()
        options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        with reading(folder.path, "embedding"):
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder.path, **options)
            options |= {"use_safetensors": True, "attn_implementation": None}
            model: Any = AutoModel.from_pretrained(folder.path, **options, dtype=torch.float32)
            self._model = model.eval().to(device)
        limits = (folder.max_length, model.config.max_position_embeddings)
        self._longest = min(limit for limit in limits if limit)
        self.dimension = int(model.config.hidden_size)
        # Of the tokenizer, whose padding is set anew by each call. The model itself is not changed
        # by a call: a query must not wait for the batch of a long document.
        self._tokenizing = threading.Lock()

    @property
    def max_tokens(self) -> int:
        return self._longest - int(self._tokenizer.num_special_tokens_to_add())

    @cached_property
    def vocabulary_size(self) -> int:
        return int(self._model.config.vocab_size)

    @property
    def unknown_id(self) -> int | None:
        unknown: int | None = self._tokenizer.unk_token_id
        return unknown

    @cached_property
    def marks(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        with self._tokenizing:
            plain = self._tokenizer("a", add_special_tokens=False)["input_ids"]
            marked = self._tokenizer("a")["input_ids"]
        places = range(len(marked) - len(plain) + 1)
        first = next(n for n in places if marked[n : n + len(plain)] == plain)
        return tuple(marked[:first]), tuple(marked[first + len(plain) :])

    def embed(self, texts: Sequence[str]) -> Vectors:
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        # Like lengths together: padding costs as much as text.
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        for start in range(0, len(order), _BATCH):
            batch = order[start : start + _BATCH]
            vectors[batch] = self._embed_batch([texts[i] for i in batch])
        return vectors

    def embed_questions(self, texts: Sequence[str]) -> Vectors:
        return self.embed(texts)

    def count_tokens(self, pieces: Sequence[str]) -> Sequence[int]:
        if not pieces:
            return []
        with self._tokenizing:
            encoded = self._tokenizer(list(pieces), add_special_tokens=False)
        return [len(ids) for ids in encoded["input_ids"]]

    def token_ids(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        if not texts:
            return []
        with self._tokenizing:
            # Nobody is to be warned of long texts.
            encoded = self._tokenizer(list(texts), add_special_tokens=False, verbose=False)
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    def embed_tokens(self, token_ids: Sequence[Sequence[int]]) -> Vectors:
        before, after = self.marks
        marked = [(*before, *ids, *after) for ids in token_ids]
        length = max(map(len, marked), default=0)
        pad = self._tokenizer.pad_token_id or 0
        rows = [[*ids, *[pad] * (length - len(ids))] for ids in marked]
        masks = [[1] * len(ids) + [0] * (length - len(ids)) for ids in marked]
        return self._pooled(
            {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(masks)}
        )

    def _embed_batch(self, texts: list[str]) -> Vectors:
        with self._tokenizing:
            tokens = self._tokenizer(
                texts, padding=True, truncation=True, max_length=self._longest, return_tensors="pt"
            )
        return self._pooled(tokens)

    def _pooled(self, tokens: Mapping[str, Any]) -> Vectors:
        """Return the unit vectors of padded token ids, which come with their mask."""
        with torch.inference_mode():
            inputs = {name: each.to(self._model.device) for name, each in tokens.items()}
            states = self._model(**inputs).last_hidden_state
            if self._first_token:
                pooled = states[:, 0]
            else:
                weights = inputs["attention_mask"].unsqueeze(-1).to(states.dtype)
                pooled = (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
            vectors: Vectors = torch.nn.functional.normalize(pooled, dim=-1).float().cpu().numpy()
        return vectors
