"""Sizes of the two models.

The draft is shallow and comparatively wide, because the time of one decoding step at this size is
set by the number of layers, not by the number of multiplications.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from lab.training.demo_pair.tokenizer import BOS, CONTEXT_LENGTH, EOS, PAD


@dataclass(frozen=True, slots=True)
class Size:
    hidden: int
    layers: int
    intermediate: int
    heads: int
    kv_heads: int


TARGET = Size(hidden=320, layers=6, intermediate=960, heads=5, kv_heads=1)
DRAFT = Size(hidden=128, layers=2, intermediate=352, heads=2, kv_heads=1)


def build_model(size: Size, tokenizer: Tokenizer, seed: int) -> torch.nn.Module:
    """Return a freshly initialised model in fp32; its end-of-text tokens are eos and <|end|>."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        intermediate_size=size.intermediate,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        head_dim=64,
        max_position_embeddings=CONTEXT_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.token_to_id(BOS),
        eos_token_id=tokenizer.token_to_id(EOS),
        pad_token_id=tokenizer.token_to_id(PAD),
    )
    make_model: Any = LlamaForCausalLM
    model: torch.nn.Module = make_model(config)
    generation: Any = model.generation_config
    generation.eos_token_id = [
        tokenizer.token_to_id(EOS),
        tokenizer.token_to_id("<|end|>"),
    ]
    return model
