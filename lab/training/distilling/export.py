"""The draft as it is stored, and joined with what is the target's.

Stored are its layers in 8 bits and the tokens that it can propose; embedding and head are the
target's. The joined folder is a plain Llama model in transformers' format, for any program; the
engine torch also reads which tokens a draft's head is for (`head_tokens.json`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from lab.training.distilling.pruning import PrunedLlama
from tandem.backends.model_source import HEAD_TOKENS
from tandem.backends.torch.quantised import int8_weight

STORED = "draft.safetensors"
_SCALE = ".scale"
_NOTHING: Mapping[str, Any] = MappingProxyType({})


def store(
    draft: PrunedLlama, kept: Tensor, target: Any, folder: Path, about: Mapping[str, Any] = _NOTHING
) -> None:
    """Write a draft to a folder, atomically: matrices in 8 bits with a scale for each output, norms
    as they are. `about` (as JSON) says how the draft was trained."""
    tensors: dict[str, Tensor] = {"head_tokens": kept.to("cpu", torch.int32)}
    for name, parameter in draft.state_dict().items():
        weight = parameter.cpu()
        if weight.ndim < 2:
            tensors[f"model.{name}"] = weight.bfloat16()
            continue
        numbers, scale = int8_weight(weight)
        tensors |= {f"model.{name}": numbers, f"model.{name}{_SCALE}": scale}
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{STORED}.partial"
    metadata = {"embedding": _digest(target.lm_head.weight), "training": json.dumps(dict(about))}
    save_file(tensors, partial, metadata=metadata)
    os.replace(partial, folder / STORED)


def stored_facts(folder: Path) -> dict[str, Any]:
    """Return how a stored draft was trained; nothing of one that does not say."""
    with safe_open(folder / STORED, framework="pt") as archive:
        facts: dict[str, Any] = json.loads(archive.metadata().get("training", "{}"))
    return facts


def join(stored: Path, target: Path, folder: Path) -> None:
    """Write the whole draft to `folder`. ValueError if it was stored for another target."""
    whole: Any = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    with safe_open(stored / STORED, framework="pt") as archive:
        tensors = {name: archive.get_tensor(name) for name in archive.keys()}  # noqa: SIM118
        if archive.metadata()["embedding"] != _digest(whole.lm_head.weight):
            raise ValueError(f"{stored} is a draft for other weights than those of {target}")
    kept = tensors.pop("head_tokens")
    weights = {
        name: _widened(weight, tensors.get(f"{name}{_SCALE}"))
        for name, weight in tensors.items()
        if not name.endswith(_SCALE)
    }
    layers = 1 + max(int(name.split(".")[2]) for name in weights if ".layers." in name)
    del whole.model.layers[layers:]
    whole.config.num_hidden_layers = layers
    whole.config.layer_types = None
    missing, unexpected = whole.load_state_dict(weights, strict=False)
    outside = {"model.embed_tokens.weight", "lm_head.weight"}
    if unexpected or not set(missing) <= outside:
        raise ValueError(f"{stored} does not fit {target}: {[*unexpected, *missing][:3]}")
    whole.save_pretrained(folder)
    AutoTokenizer.from_pretrained(target).save_pretrained(folder)
    (folder / HEAD_TOKENS).write_text(json.dumps(kept.tolist()), encoding="utf-8")


def _widened(weight: Tensor, scale: Tensor | None) -> Tensor:
    return weight.float() if scale is None else weight.float() * scale.float()[:, None]


def _digest(weight: Tensor) -> str:
    """Return the digest of an embedding. A draft for other weights would be accepted rarely, and
    nothing would say why."""
    return hashlib.sha256(weight.detach().float().cpu().contiguous().numpy().tobytes()).hexdigest()
