"""The draft: a few decoder layers of the target, between its embedding and some rows of its head.

Embedding and head stay the target's own, so they are neither trained nor stored.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn


class PrunedLlama(nn.Module):
    """Some layers of `target`, a Llama model of transformers in float32, and its last norm; all
    else of it is shared. Parameters are what is trained."""

    def __init__(self, target: Any, layers: Sequence[int]) -> None:
        super().__init__()
        decoder = target.model
        self.layers = nn.ModuleList(copy.deepcopy(decoder.layers[index]) for index in layers)
        self.norm = copy.deepcopy(decoder.norm)
        self._outside = decoder.embed_tokens, decoder.rotary_emb  # a tuple: no submodules

    def forward(self, input_ids: Tensor, use_cache: bool = False) -> SimpleNamespace:
        """Return, in the place of logits, the normalised states [rows, length, size]: the objective
        multiplies by the head only those it learns from."""
        embed, rotary = self._outside
        hidden: Tensor = embed(input_ids).detach()
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        turn = rotary(hidden, positions)
        for layer in self.layers:
            hidden = layer(hidden, position_ids=positions, position_embeddings=turn)
        return SimpleNamespace(logits=self.norm(hidden))


def spread_layers(count: int) -> tuple[int, ...]:
    """Return which of `count` layers a draft begins with: an eighth of them, the first ones and the
    last."""
    taken = max(1, round(count / 8))
    return (*range(taken - 1), count - 1) if taken > 1 else (0,)


def frequent_tokens(counts: Tensor, kept: int, needed: frozenset[int]) -> Tensor:
    """Return the `kept` most frequent tokens by counts [V], `needed` among them, int64 in ascending
    order. Of tokens never seen the lower ids come first: a tokenizer merged them earlier."""
    ranked = counts.double().clone()
    ranked[list(needed)] = float("inf")
    order = torch.argsort(ranked, descending=True, stable=True)
    return order[:kept].sort().values
