"""GGUF files made on the spot."""

import json
import shutil
from pathlib import Path

import numpy as np

from tandem.demo import demo_folder
from tools.write_gguf import write_gguf


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
