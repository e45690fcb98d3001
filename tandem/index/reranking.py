"""Scores of (query, text) pairs by a cross-encoder: slower and better than comparing vectors.
torch is imported when a model is loaded."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from tandem.backends.model_files import read_json
from tandem.core.errors import InvalidArgument
from tandem.core.reading import reading
from tandem.index.model_folder import check_untrusted

_BATCH = 16


class Reranker(Protocol):
    """Judges how well a text answers a query; safe to call from several threads."""

    @property
    def name(self) -> str:
        """The model's name, for logs and answers."""

    def score(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return one score per text; larger is better."""


Rescoring = Callable[[str, Sequence[str]], Sequence[float]]


def load_reranker(folder: str, device: str = "cpu", threads: int = 1) -> Reranker:
    """Load the sequence-classification model in `folder`. Raises InvalidArgument saying what is
    wrong with it."""
    return CrossEncoder(folder, device, threads)


def find_rescoring(folder: str | None, device: str = "cpu", threads: int = 1) -> Rescoring | None:
    """Return the scoring function of the model in `folder`, None without one. Raises as
    `load_reranker`."""
    return None if folder is None else load_reranker(folder, device, threads).score


class CrossEncoder:
    """A `Reranker` by a transformers sequence-classification model with one label.

    Safetensors only, no remote code. Calls take turns. Pairs longer than the model reads lose the
    end of the longer half."""

    def __init__(self, folder: str, device: str = "cpu", threads: int = 1) -> None:
        if not Path(folder).is_dir():
            raise InvalidArgument("reranker", f"{folder!r} is not a folder")
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer
        from transformers.utils import logging

        torch.set_num_threads(threads)
        logging.disable_progress_bar()
        options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        with reading(folder, "reranker"):
            config = read_json(Path(folder) / "config.json")
            check_untrusted(Path(folder), config, "reranker")
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, **options)
            options |= {"use_safetensors": True, "attn_implementation": None}
            loaded: Any = AutoModelForSequenceClassification.from_pretrained(
                folder, **options, output_loading_info=True
            )
        model, report = loaded
        if report["missing_keys"]:
            missing = ", ".join(sorted(report["missing_keys"])[:3])
            raise InvalidArgument("reranker", f"{folder} lacks weights: {missing}")
        if (labels := model.config.num_labels) != 1:
            raise InvalidArgument("reranker", f"{folder} has {labels} labels; one is needed")
        self.name = Path(folder).name
        self._model: Any = model.float().eval().to(device)
        self._longest = min(512, int(model.config.max_position_embeddings))
        self._lock = threading.Lock()

    def score(self, query: str, texts: Sequence[str]) -> list[float]:
        import torch

        scores: list[float] = []
        options = {"padding": True, "truncation": True, "max_length": self._longest}
        for start in range(0, len(texts), _BATCH):
            batch = list(texts[start : start + _BATCH])
            queries = [query] * len(batch)
            with self._lock, torch.inference_mode():
                tokens = self._tokenizer(queries, batch, return_tensors="pt", **options)
                inputs = tokens.to(self._model.device)
                scores += self._model(**inputs).logits[:, 0].float().tolist()
        return scores
