"""A sentence-transformers model on torch: tokens, hidden states, pooling, unit length. Texts longer
than the model reads are cut at its limit, as its own library does."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging

from tandem.core.errors import InvalidArgument
from tandem.index.embedding import fingerprint, read_json
from tandem.index.records import Vectors

_BATCH = 32
_LOADING_ERRORS = (ImportError, KeyError, OSError, RuntimeError, TypeError, ValueError)
_STEPS = ("Transformer", "Pooling", "Normalize")


class SentenceModel:
    """The model in a folder; see `Embedder`. Calls take turns."""

    def __init__(self, folder: Path, device: str = "cpu", threads: int = 1) -> None:
        """Raises InvalidArgument saying what is wrong with the folder."""
        self._first_token = _pools_first_token(folder)
        self._longest = _longest(folder)
        self.name = f"{_model_name(folder)}:{fingerprint(folder)}"
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
        self._lock = threading.Lock()

    @property
    def max_tokens(self) -> int:
        return self._longest - int(self._tokenizer.num_special_tokens_to_add())

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
        with self._lock:
            encoded = self._tokenizer(list(pieces), add_special_tokens=False)
        return [len(ids) for ids in encoded["input_ids"]]

    @torch.inference_mode()
    def _embed_batch(self, texts: list[str]) -> Vectors:
        with self._lock:
            inputs = self._tokenizer(
                texts, padding=True, truncation=True, max_length=self._longest, return_tensors="pt"
            ).to(self._model.device)
            states = self._model(**inputs).last_hidden_state
        if self._first_token:
            pooled = states[:, 0]
        else:
            weights = inputs["attention_mask"].unsqueeze(-1).to(states.dtype)
            pooled = (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        vectors: Vectors = torch.nn.functional.normalize(pooled, dim=-1).float().cpu().numpy()
        return vectors


def _pools_first_token(folder: Path) -> bool:
    """Whether it pools by the first token, else by the mean."""
    steps = [step["type"].rsplit(".", 1)[-1] for step in read_json(folder / "modules.json")]
    unknown = [step for step in steps if step not in _STEPS]
    if unknown or steps[:2] != ["Transformer", "Pooling"]:
        raise InvalidArgument("embedding", f"{folder}: modules {steps}; only {_STEPS} are known")
    modules = read_json(folder / "modules.json")
    pooling = read_json(folder / modules[1]["path"] / "config.json")
    # Written by releases since 5 as one word, before as one switch for each mode.
    modes = {
        name.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token")
        for name, on in pooling.items()
        if name.startswith("pooling_mode_") and on is True
    } or {pooling.get("pooling_mode")}
    if modes not in ({"mean"}, {"cls"}):
        raise InvalidArgument("embedding", f"{folder}: pools by {modes}, not by mean or cls")
    return modes == {"cls"}


def _longest(folder: Path) -> int:
    path = folder / "sentence_bert_config.json"
    return int(read_json(path).get("max_seq_length") or 0) if path.exists() else 0


def _model_name(folder: Path) -> str:
    """The folder's name, which is a package's or a commit's for one that is called `model`."""
    return folder.parent.name if folder.name == "model" else folder.name
