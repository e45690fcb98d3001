"""Tiny random models of several architectures, each as an eager reference and as an engine."""

import copy
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    PhiConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    StableLmConfig,
)

from tandem.backends.interface import ForwardRequest
from tandem.backends.torch.engine import HuggingFaceEngine
from tandem.backends.torch.kv_cache import KvSession

VOCABULARY = 211
CONTEXT = 640
WINDOW = 11
SIZE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    # Far above the usual 0.02: attention must matter for a wrong mask to be seen in the logits.
    "initializer_range": 0.12,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED: dict[str, Any] = {**SIZE, "intermediate_size": 96, "num_key_value_heads": 2}
MIXED_WINDOWS = ["sliding_attention", "full_attention", "sliding_attention"]

CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**GROUPED),
    "llama-biased": LlamaConfig(
        **{**GROUPED, "num_key_value_heads": 1},
        head_dim=24,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
    ),
    "qwen2": Qwen2Config(
        **GROUPED, use_sliding_window=True, sliding_window=WINDOW, layer_types=MIXED_WINDOWS
    ),
    "qwen3": Qwen3Config(**GROUPED, head_dim=32),
    "mistral": MistralConfig(**GROUPED, sliding_window=WINDOW),
    "gemma2": Gemma2Config(**GROUPED, head_dim=16, sliding_window=WINDOW),
    "opt": OPTConfig(**SIZE, ffn_dim=96, word_embed_proj_dim=64),
    "gpt2": GPT2Config(
        vocab_size=VOCABULARY, n_embd=64, n_layer=3, n_head=4, n_positions=CONTEXT,
        initializer_range=0.12, bos_token_id=1, eos_token_id=2,
    ),
    "phi": PhiConfig(**SIZE, intermediate_size=96),
    # Does not hand keyword arguments down to its attention.
    "stablelm": StableLmConfig(**GROUPED),
    # Attention sinks, sliding windows, experts.
    "gpt-oss": GptOssConfig(
        **GROUPED, head_dim=16, sliding_window=WINDOW, num_local_experts=4, num_experts_per_tok=2,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        layer_types=MIXED_WINDOWS,
    ),
}  # fmt: skip
FAST_PATH = ["llama", "llama-biased", "qwen2", "qwen3", "mistral"]


@dataclass(frozen=True, slots=True)
class Pair:
    """A model run by transformers alone, and the same weights in an engine."""

    reference: torch.nn.Module
    engine: HuggingFaceEngine

    def logits(self, token_ids: list[int] | tuple[int, ...]) -> NDArray[np.float32]:
        """Reference logits [tokens, VOCABULARY] of one sequence from its start."""
        device = next(self.reference.parameters()).device
        with torch.inference_mode():
            outputs = self.reference(torch.tensor([list(token_ids)], device=device))
        found: NDArray[np.float32] = outputs.logits[0].float().cpu().numpy()
        return found

    def feed(self, session: KvSession, token_ids: list[int] | tuple[int, ...]) -> None:
        self.engine.forward([ForwardRequest(session, tuple(token_ids), 0)])


@cache
def pair(name: str, fast_path: bool = True, device: str = "cpu") -> Pair:
    torch.manual_seed(7)
    config = copy.deepcopy(CONFIGS[name])
    reference = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for parameter_name, parameter in reference.named_parameters():
        if parameter_name.endswith("bias") or parameter.dim() == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    model = copy.deepcopy(reference)
    engine = HuggingFaceEngine(
        model.to(device), model_name=name, vocabulary_hash="none", fast_path=fast_path
    )
    return Pair(reference.to(device), engine)


def tokens(count: int, seed: int) -> list[int]:
    """Random token ids."""
    found: list[int] = np.random.default_rng(seed).integers(3, VOCABULARY, count).tolist()
    return found
