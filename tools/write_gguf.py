"""Writes a model folder of the Llama family, whose tokenizer is byte-level, as a GGUF file.

python -m tools.write_gguf FOLDER FILE KIND    # of matrices: F32, F16, Q8_0, Q4_K, …
"""

import json
import sys
from collections.abc import Mapping
from ctypes import c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.backends.llamacpp.library import library

CONTROL = 3
NORMAL = 1
UNUSED = 5
"""gguf's numbers of a token's kind."""

_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def why_not(folder: Path, kind: str) -> str | None:
    """Return why the model of a folder cannot be written so; None if it can."""
    import gguf

    config = json.loads((folder / "config.json").read_text("utf-8"))
    if config["model_type"] != "llama":
        return f"only models of the type llama are written, not {config['model_type']}"
    tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    if "ByteLevel" not in json.dumps(tokenizer["pre_tokenizer"]):
        return "only byte-level tokenizers are written"
    if kind not in gguf.GGMLQuantizationType.__members__:
        return f"{kind} is no kind of tensors that GGUF knows"
    return None


def write_gguf(
    folder: Path,
    path: Path,
    *,
    kind: str = "F32",
    others: Mapping[str, str] = MappingProxyType({}),
    padding: int = 0,
    template: bool = True,
) -> Path:
    """The model of `folder`, which has a byte-level tokenizer; matrices as `kind`, like F32,
    Q8_0 or Q4_K, but for those of `others`, by names like attn_v. `padding`: so many ids more than
    the tokenizer has."""
    import gguf

    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(folder.name)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(_head_size(config))
    writer.add_key_length(_head_size(config))
    writer.add_value_length(_head_size(config))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    add_tokenizer(writer, folder, padding=padding, template=template)
    for name, tensor in _tensors(folder, config, padding).items():
        of_matrix = others.get(name.split(".")[-2], kind)
        as_kind = gguf.GGMLQuantizationType[of_matrix if tensor.ndim > 1 else "F32"]
        writer.add_tensor(name, _quantised(tensor, as_kind), raw_dtype=as_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _quantised(tensor: NDArray[np.float32], kind: Any) -> NDArray[Any]:
    """Return the tensor in a kind of gguf's: as llama.cpp rounds to the kinds Q2_K to Q6_K, which
    the package gguf only reads."""
    import gguf

    if not kind.name.endswith("_K"):
        rounded: NDArray[Any] = gguf.quants.quantize(tensor, kind)
        return rounded
    rows = np.ascontiguousarray(tensor, np.float32)
    output = np.empty(gguf.quants.quant_shape_to_byte_shape(rows.shape, kind), np.uint8)
    quantise = library().ggml_quantize_chunk
    quantise.restype = c_size_t
    quantise.argtypes = (c_int, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p)
    size = quantise(int(kind), rows.ctypes.data, output.ctypes.data, 0, *rows.shape, None)
    assert size == output.nbytes, (size, output.nbytes)
    return output


def _head_size(config: dict[str, Any]) -> int:
    size: int = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return size


def add_tokenizer(
    writer: Any, folder: Path, *, padding: int = 0, template: bool = True, words: int = 0
) -> None:
    """Add the tokenizer of a folder: with `padding` ids that mean nothing, or with as many more
    words as make `words` tokens."""
    described = json.loads((folder / "tokenizer.json").read_text())
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    added = {entry["content"]: entry["id"] for entry in described["added_tokens"]}
    ids = described["model"]["vocab"] | added
    names = sorted(ids, key=lambda name: ids[name])
    names += [f"word{number}" for number in range(len(names), words)]
    kinds = [CONTROL if name in added else NORMAL for name in names]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")  # digits one by one, else as GPT-2
    writer.add_token_list([*names, *(f"[PAD{len(names) + i}]" for i in range(padding))])
    writer.add_token_types([*kinds, *[UNUSED] * padding])
    merges = described["model"]["merges"]
    writer.add_token_merges([one if isinstance(one, str) else " ".join(one) for one in merges])
    writer.add_bos_token_id(ids[settings["bos_token"]])
    writer.add_eos_token_id(ids[settings["eos_token"]])
    writer.add_add_bos_token("TemplateProcessing" in json.dumps(described["post_processor"]))
    if template:
        writer.add_chat_template((folder / "chat_template.jinja").read_text())


def _tensors(folder: Path, config: dict[str, Any], padding: int) -> dict[str, NDArray[np.float32]]:
    from safetensors.torch import load_file

    found = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        matrix = tensor.float().numpy()
        stem = name.removesuffix(".weight")
        if stem in _OUTSIDE:
            rows = ((0, padding), (0, 0)) if matrix.ndim > 1 else ((0, 0),)
            found[f"{_OUTSIDE[stem]}.weight"] = np.pad(matrix, rows)
            continue
        _, _, layer, part = stem.split(".", 3)
        heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
        if _NAMES[part] in heads:
            matrix = _interleaved(matrix, config[heads[_NAMES[part]]])
        found[f"blk.{layer}.{_NAMES[part]}.weight"] = matrix
    return found


def _interleaved(matrix: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows as llama.cpp rotates them: pairs beside each other, not half a head apart."""
    rows, columns = matrix.shape
    halves = matrix.reshape(heads, 2, rows // heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows, columns)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    write_gguf(Path(sys.argv[1]), Path(sys.argv[2]), kind=sys.argv[3])
