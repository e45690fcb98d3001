"""A transformers sequence-classification model with one label, as a re-ranker. Safetensors only, no
remote code."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging

from tandem.core.errors import InvalidArgument

_BATCH = 16
_LOADING_ERRORS = (ImportError, KeyError, OSError, RuntimeError, TypeError, ValueError)


class CrossEncoder:
    """See `Reranker`. Pairs longer than the model reads lose the end of the longer half."""

    def __init__(self, folder: str, device: str = "cpu", threads: int = 1) -> None:
        if not Path(folder).is_dir():
            raise InvalidArgument("reranker", f"{folder!r} is no folder")
        torch.set_num_threads(threads)
        logging.disable_progress_bar()
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            loaded: Any = AutoModelForSequenceClassification.from_pretrained(
                folder, local_files_only=True, use_safetensors=True, output_loading_info=True
            )
        except _LOADING_ERRORS as error:
            why = " ".join(str(error).split())[:300]
            raise InvalidArgument("reranker", f"{folder} cannot be loaded: {why}") from error
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

    @torch.inference_mode()
    def score(self, query: str, texts: Sequence[str]) -> list[float]:
        scores: list[float] = []
        options = {"padding": True, "truncation": True, "max_length": self._longest}
        for start in range(0, len(texts), _BATCH):
            batch = list(texts[start : start + _BATCH])
            queries = [query] * len(batch)
            with self._lock:
                tokens = self._tokenizer(queries, batch, return_tensors="pt", **options)
                inputs = tokens.to(self._model.device)
                scores += self._model(**inputs).logits[:, 0].float().tolist()
        return scores
