"""GGUF files made on the spot."""

import json
import shutil
from pathlib import Path

import numpy as np

from tandem.demo import demo_folder
from tools.write_gguf import add_tokenizer, write_gguf


def q4_k_gguf(folder: Path) -> Path:
    """A model of random weights in Q4_K and Q6_K, whose rows are too long for the demo pair."""
    path = folder / "random-Q4_K_M.gguf"
    larger = dict.fromkeys(("token_embd", "attn_v", "ffn_down"), "Q6_K")
    return write_gguf(_random_model(folder / "random"), path, kind="Q4_K", others=larger)


def _random_model(folder: Path) -> Path:
    """The demo draft's tokenizer, and two layers whose rows have 256 weights or 512."""
    from safetensors.numpy import save_file

    shutil.copytree(demo_folder("demo-draft"), folder)
    path = folder / "config.json"
    heads, width, inner = 4, 256, 512
    sizes = {"hidden_size": width, "intermediate_size": inner, "num_attention_heads": heads}
    config = json.loads(path.read_text()) | sizes | {"num_key_value_heads": 2, "dtype": "float32"}
    path.write_text(json.dumps(config))
    shapes = {
        "self_attn.q_proj": (width, width),
        "self_attn.k_proj": (width // 2, width),
        "self_attn.v_proj": (width // 2, width),
        "self_attn.o_proj": (width, width),
        "mlp.gate_proj": (inner, width),
        "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
    }
    random = np.random.default_rng(5)
    ones = np.ones(width, np.float32)
    tensors = {"model.norm.weight": ones}
    embedding = (config["vocab_size"], width)
    tensors["model.embed_tokens.weight"] = random.normal(0, 1, embedding).astype(np.float32)
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        tensors[f"{name}.input_layernorm.weight"] = ones.copy()
        tensors[f"{name}.post_attention_layernorm.weight"] = ones.copy()
        for part, shape in shapes.items():
            weights = random.normal(0, 0.12, shape).astype(np.float32)
            tensors[f"{name}.{part}.weight"] = weights
    save_file(tensors, folder / "model.safetensors")
    return folder


def draft_gguf(folder: Path, kind: str = "F32") -> Path:
    """The demo pair's draft model."""
    return write_gguf(demo_folder("demo-draft"), folder / f"demo-draft-{kind}.gguf", kind=kind)


def random_q4_gguf(
    path: Path,
    *,
    layers: int,
    hidden_size: int,
    intermediate_size: int,
    heads: int,
    kv_heads: int,
    vocabulary_size: int,
) -> Path:
    """A model of a given shape whose weights are random blocks of Q4_0, written as they are: to
    draw and round half a billion numbers would take a minute. Its tokenizer is the demo's, and what
    that lacks of the vocabulary are words that no text has."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(path.stem)
    writer.add_block_count(layers)
    writer.add_context_length(4096)
    writer.add_embedding_length(hidden_size)
    writer.add_feed_forward_length(intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(hidden_size // heads)
    writer.add_layer_norm_rms_eps(1e-6)
    add_tokenizer(writer, demo_folder("demo-draft"), words=vocabulary_size)
    random = np.random.default_rng(7)
    kv_size = hidden_size // heads * kv_heads
    shapes = {
        "attn_q": (hidden_size, hidden_size),
        "attn_k": (kv_size, hidden_size),
        "attn_v": (kv_size, hidden_size),
        "attn_output": (hidden_size, hidden_size),
        "ffn_gate": (intermediate_size, hidden_size),
        "ffn_up": (intermediate_size, hidden_size),
        "ffn_down": (hidden_size, intermediate_size),
    }
    tensors = {
        f"blk.{layer}.{name}.weight": shape
        for layer in range(layers)
        for name, shape in shapes.items()
    }
    tensors["token_embd.weight"] = (vocabulary_size, hidden_size)
    kind = gguf.GGMLQuantizationType.Q4_0
    for name, (rows, columns) in tensors.items():
        blocks = random.integers(0, 256, (rows, columns // 32, 18), np.uint8)
        blocks[:, :, :2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)  # each block's scale
        writer.add_tensor(name, blocks.reshape(rows, -1), raw_dtype=kind)
    ones = np.ones(hidden_size, np.float32)
    for name in [
        "output_norm",
        *(f"blk.{n}.{p}_norm" for n in range(layers) for p in ("attn", "ffn")),
    ]:
        writer.add_tensor(f"{name}.weight", ones)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
