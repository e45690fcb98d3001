"""Growing a small model into a larger one that computes the same (Chen et al. 2016, Net2Net).

A model of the target's size learns slowly from the few million tokens one core can process; the
small one is through them many times. So the target starts as the small one, embedded in its first
hidden dimensions, heads, neurons and in two of its layers. New heads, neurons and layers are
random on their input side and zero on their output side: they change nothing at first, and learn.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from lab.training.demo_pair.architecture import Size


def grow(small: torch.nn.Module, large: torch.nn.Module, sizes: tuple[Size, Size]) -> None:
    """Overwrite freshly initialised `large` so that its logits equal those of `small`.

    They differ only by the norms' epsilon, which weighs more beside a smaller mean square.

    `sizes` are those of (small, large). ValueError if the large one has fewer of anything, or
    another number of key/value heads, since the new query heads read the old keys.
    """
    _check_sizes(*sizes)
    outer: Any = large
    inner: Any = small
    with torch.no_grad():
        embedding = outer.model.embed_tokens.weight
        embedding.zero_()
        _place(inner.model.embed_tokens.weight, embedding)
        _grow_norm(inner.model.norm, outer.model.norm)
        for layer in outer.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        for index, layer in enumerate(inner.model.layers):
            position = index * len(outer.model.layers) // len(inner.model.layers)
            _grow_layer(layer, outer.model.layers[position])


def _check_sizes(small: Size, large: Size) -> None:
    if small.kv_heads != large.kv_heads:
        raise ValueError(f"kv_heads differ: {small.kv_heads} and {large.kv_heads}")
    for name in ("hidden", "layers", "intermediate", "heads"):
        if getattr(small, name) > getattr(large, name):
            raise ValueError(f"cannot shrink {name}")


def _grow_layer(small: Any, large: Any) -> None:
    """Copy each matrix into the top left corner; heads and neurons keep their numbers."""
    for block, name in (
        ("self_attn", "q_proj"),
        ("self_attn", "k_proj"),
        ("self_attn", "v_proj"),
        ("self_attn", "o_proj"),
        ("mlp", "gate_proj"),
        ("mlp", "up_proj"),
        ("mlp", "down_proj"),
    ):
        _place(
            getattr(getattr(small, block), name).weight, getattr(getattr(large, block), name).weight
        )
    _grow_norm(small.input_layernorm, large.input_layernorm)
    _grow_norm(small.post_attention_layernorm, large.post_attention_layernorm)


def _place(small: torch.Tensor, large: torch.Tensor) -> None:
    large[: small.shape[0], : small.shape[1]] = small


def _grow_norm(small: Any, large: Any) -> None:
    """Copy a norm's gains to a wider one, scaled: zeros in the new dimensions lower the root mean
    square, and the gains make up for it."""
    width = small.weight.shape[0]
    new_width = large.weight.shape[0]
    gains = small.weight * math.sqrt(width / new_width)
    large.weight.fill_(gains.mean().item())
    large.weight[:width] = gains
