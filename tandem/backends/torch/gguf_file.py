"""GGUF files in the PyTorch engine: the `gguf` package reads and dequantises them.

The model is the file's: its weights are what the blocks of its tensors stand for, in the precision
that was chosen. Invariant: an architecture, a tensor or a rotary scaling that is not known here is
refused, since a guess would give fluent nonsense. Nothing of the file is run but its chat template.
"""

import hashlib
import re
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from tandem.backends.gguf_check import check_gguf
from tandem.core.errors import InvalidArgument
from tandem.core.extras import install_command
from tandem.core.reading import reading
from tandem.text.tokenizer import TextTokenizer

_CONFIGS: dict[str, type[PreTrainedConfig]] = {
    "llama": LlamaConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
}
"""Of the file's own names of architectures. Mistral's and SmolLM's call themselves llama."""

_LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_TENSOR = re.compile(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)")


class GgufFile:
    """One file, open: what was read of it stays in memory as long as this lives. Raises
    InvalidArgument("model") without the extra, and for what is no GGUF file or not of a known
    kind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            from gguf import GGUFReader
        except ImportError as error:
            why = f"GGUF files in the engine torch need another package: {install_command('gguf')}"
            raise InvalidArgument("model", why) from error
        check_gguf(path)
        with reading(path, "model", "cannot be read"):
            self._reader = GGUFReader(path)
        self._architecture = self._metadata("general.architecture")
        if self._architecture not in _CONFIGS:
            why = f"{path} has the architecture {self._architecture!r}, which is not one of"
            raise InvalidArgument("model", f"{why} {', '.join(_CONFIGS)}")

    def model(self, dtype: torch.dtype) -> Any:
        """Return transformers' own model, with the file's weights dequantised."""
        weights = {
            self._name(tensor.name): self._weight(tensor, dtype) for tensor in self._reader.tensors
        }
        config = self._config(weights)
        if config.num_hidden_layers > len(weights):
            raise InvalidArgument("model", f"{self.path} says that it has more layers than tensors")
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
        if config.tie_word_embeddings:
            weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
        try:
            model.load_state_dict(weights, strict=True, assign=True)
        except RuntimeError as error:
            raise InvalidArgument("model", f"{self.path}: {str(error).splitlines()[-1]}") from error
        model.tie_weights()
        model.model.rotary_emb = type(model.model.rotary_emb)(config)
        return model

    def tokenizer(self) -> TextTokenizer:
        """Load the tokenizer with the file's chat template, and every end of text that it names."""
        said = (self._metadata(f"tokenizer.ggml.{end}_token_id") for end in ("eos", "eot", "eom"))
        ends = frozenset(token for token in said if token is not None)
        return TextTokenizer(self.own_tokenizer(), ends, self._rows())

    def own_tokenizer(self) -> Any:
        """Return transformers' own tokenizer of the file. Raises InvalidArgument("model")."""
        place: dict[str, Any] = {"gguf_file": self.path.name, "local_files_only": True}
        place["trust_remote_code"] = False
        with reading(f"the tokenizer of {self.path}", "model", "cannot be read"):
            return AutoTokenizer.from_pretrained(str(self.path.parent), **place)

    def _metadata(self, key: str, default: Any = None) -> Any:
        field = self._reader.get_field(key)
        return default if field is None else field.contents()

    def _architecture_value(self, key: str, default: Any = None) -> Any:
        """Return a value of the file's architecture. Raises InvalidArgument if it has none and
        there is no default."""
        value = self._metadata(f"{self._architecture}.{key}", default)
        if value is None:
            raise InvalidArgument("model", f"{self.path} has no {self._architecture}.{key}")
        return value

    def _config(self, weights: dict[str, torch.Tensor]) -> PreTrainedConfig:
        scaling = self._architecture_value("rope.scaling.type", "none")
        if scaling != "none":
            raise InvalidArgument(
                "model", f"{self.path} uses position scaling ({scaling}), which is not supported"
            )
        heads = self._architecture_value("attention.head_count")
        size = self._architecture_value("embedding_length")
        named: dict[str, Any] = {
            "hidden_size": size,
            "vocab_size": self._rows(),
            "num_attention_heads": heads,
            "intermediate_size": self._architecture_value("feed_forward_length"),
            "num_hidden_layers": self._architecture_value("block_count"),
            "num_key_value_heads": self._metadata(
                f"{self._architecture}.attention.head_count_kv", heads
            ),
            "head_dim": self._metadata(f"{self._architecture}.attention.key_length", size // heads),
            "max_position_embeddings": self._architecture_value("context_length"),
            "rms_norm_eps": self._architecture_value("attention.layer_norm_rms_epsilon"),
            "rope_theta": self._architecture_value("rope.freq_base", 10_000.0),
            "tie_word_embeddings": "lm_head.weight" not in weights,
            "bos_token_id": self._metadata("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self._metadata("tokenizer.ggml.eos_token_id"),
        }
        if self._architecture == "llama":
            named["attention_bias"] = "model.layers.0.self_attn.q_proj.bias" in weights
        return _CONFIGS[self._architecture](**named)

    def _rows(self) -> int:
        """Return for how many tokens there are logits."""
        for tensor in self._reader.tensors:
            if tensor.name == "token_embd.weight":
                return int(tensor.shape[1])
        raise InvalidArgument("model", f"{self.path} has no token_embd.weight")

    def _name(self, name: str) -> str:
        """Return transformers' name of a tensor. Raises InvalidArgument("model")."""
        match = _TENSOR.fullmatch(name)
        layer, part, kind = match.groups() if match else (None, "", "")
        known = _OUTSIDE if layer is None else _LAYER
        if part not in known:
            raise InvalidArgument("model", f"{self.path} holds {name}, which is not supported")
        inside = f"model.layers.{layer}." if layer is not None else ""
        return f"{inside}{known[part]}.{kind}"

    def _weight(self, tensor: Any, dtype: torch.dtype) -> torch.Tensor:
        from gguf.quants import dequantize

        try:
            values = dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            kind = tensor.tensor_type.name
            raise InvalidArgument("model", f"{self.path} has tensors of the type {kind}") from error
        weight = torch.from_numpy(values.copy()).to(dtype)  # what is not quantised is the file's
        part = tensor.name.split(".")[-2]
        if self._architecture != "llama" or part not in ("attn_q", "attn_k"):
            return weight
        heads = self._architecture_value("attention.head_count")
        if part == "attn_k":
            heads = self._architecture_value("attention.head_count_kv", heads)
        return _halves(weight, heads)


def content_hash(path: Path, dtype: str) -> str:
    """Hash what decides keys and values; reads all of the file."""
    with path.open("rb") as file:
        read = hashlib.file_digest(file, "sha256").hexdigest()
    return hashlib.sha256(f"{read}\n{dtype}".encode()).hexdigest()


def _halves(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder each head's rows from llama.cpp's layout to transformers': llama.cpp rotates pairs of
    rows beside each other, transformers pairs half a head apart."""
    pairs = weight.view(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
    return pairs.transpose(1, 2).reshape(weight.shape).contiguous()
