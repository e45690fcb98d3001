"""Vectors of texts by any sentence-transformers model, with torch. Safetensors only, no remote
code."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging

from tandem.core.reading import reading
from tandem.index.model_folder import ModelFolder
from tandem.index.records import Vectors
from tandem.index.token_embedder import TokenEmbedder


class TorchEmbedder(TokenEmbedder):
    """An `Embedder` by the model in a folder."""

    def __init__(self, folder: ModelFolder, device: str = "cpu", threads: int = 1) -> None:
        """Load the model in a folder. Raises InvalidArgument saying what is wrong with it."""
        self._first_token = folder.pools_first_token
        torch.set_num_threads(threads)
        logging.disable_progress_bar()
        options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        with reading(folder.path, "embedding"):
            tokenizer: Any = AutoTokenizer.from_pretrained(folder.path, **options)
            if not tokenizer.is_fast:
                raise ValueError("its tokenizer is none of the library tokenizers")
            options |= {"use_safetensors": True, "attn_implementation": None}
            model: Any = AutoModel.from_pretrained(folder.path, **options, dtype=torch.float32)
            self._model = model.eval().to(device)
        self._pad = tokenizer.pad_token_id or 0
        limits = (folder.max_length, model.config.max_position_embeddings)
        super().__init__(
            folder,
            tokenizer.backend_tokenizer,
            longest=min(limit for limit in limits if limit),
            dimension=int(model.config.hidden_size),
            vocabulary_size=int(model.config.vocab_size),
            unknown_id=tokenizer.unk_token_id,
        )

    def _pooled(self, marked: Sequence[Sequence[int]]) -> Vectors:
        length = max(map(len, marked))
        rows = [[*ids, *[self._pad] * (length - len(ids))] for ids in marked]
        masks = [[1] * len(ids) + [0] * (length - len(ids)) for ids in marked]
        with torch.inference_mode():
            mask = torch.tensor(masks, device=self._model.device)
            tokens = torch.tensor(rows, device=self._model.device)
            states = self._model(input_ids=tokens, attention_mask=mask).last_hidden_state
            if self._first_token:
                pooled = states[:, 0]
            else:
                weights = mask.unsqueeze(-1).to(states.dtype)
                pooled = (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
            vectors: Vectors = pooled.float().cpu().numpy()
        return vectors
