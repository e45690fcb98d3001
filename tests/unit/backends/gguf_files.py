"""GGUF files made on the spot, and whether a test that reads them can run."""

import ctypes
import json
import os
import shutil
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from tandem.demo import demo_folder
from tools.write_gguf import write_gguf

Q4_K_M = 15
"""llama.cpp's number of this mixture of Q4_K and Q6_K."""


def needs_llamacpp() -> None:
    """Skip the calling test where the extra is missing. CI installs it, and there it must be."""
    for name in ("llama_cpp", "gguf"):
        if os.environ.get("LLAMACPP") == "required":
            import_module(name)
        pytest.importorskip(name, reason="needs the extra 'llamacpp': make llamacpp")


def q4_k_gguf(folder: Path) -> Path:
    """A model of random weights in Q4_K and Q6_K, whose rows are too long for the demo pair."""
    import llama_cpp.llama_cpp as library

    exact = write_gguf(_random_model(folder / "random"), folder / "random-F32.gguf")
    path = folder / "random-Q4_K_M.gguf"
    options = library.llama_model_quantize_default_params()
    options.ftype = Q4_K_M
    options.nthread = 1
    failed = library.llama_model_quantize(
        str(exact).encode(), str(path).encode(), ctypes.byref(options)
    )
    assert not failed
    return path


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
