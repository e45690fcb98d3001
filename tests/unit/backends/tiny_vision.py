"""Tiny models that see, made from configurations: random weights, a vision tower of two layers."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import (
    GenerationConfig,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from tests.unit.backends.tiny_folders import write_tokenizer

CONTEXT = 320
VISION_SPECIAL = ["<|vision_start|>", "<|image_pad|>", "<|vision_end|>"]
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}{% endfor %}"
    "{% endif %}<end>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
START = 5
PAD = 6
END = 7
TEXT: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.12,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
}
PLACES: dict[str, Any] = {
    "vision_start_token_id": START,
    "image_token_id": PAD,
    "vision_end_token_id": END,
    "video_token_id": 319,
}
TOWER: dict[str, Any] = {
    "depth": 2,
    "num_heads": 2,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "in_channels": 3,
}
KINDS = ("qwen2-vl", "qwen2.5-vl")


def model_of(kind: str, seed: int) -> Any:
    torch.manual_seed(seed)
    if kind == "qwen2-vl":
        tower = {**TOWER, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2}
        model: Any = Qwen2VLForConditionalGeneration(
            Qwen2VLConfig(text_config=dict(TEXT), vision_config=tower, **PLACES)
        )
    else:
        tower = {**TOWER, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 48}
        tower |= {"window_size": 16, "fullatt_block_indexes": [1]}
        model = Qwen2_5_VLForConditionalGeneration(
            Qwen2_5_VLConfig(text_config=dict(TEXT), vision_config=tower, **PLACES)
        )
    for name, parameter in model.named_parameters():
        if "visual" in name:  # what it sees must be heard in the logits
            parameter.data *= 4 if parameter.dim() > 1 else 1
    return model.eval()


def image_processor(longest: int = 1024) -> Any:
    size = {"shortest_edge": 64, "longest_edge": longest}
    return Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, temporal_patch_size=2, size=size)


def write_vision_model(folder: Path, kind: str, seed: int = 1, longest: int = 1024) -> Path:
    """`longest`: most pixels of an image as the model sees it."""
    model_of(kind, seed).save_pretrained(folder)
    GenerationConfig(eos_token_id=[1]).save_pretrained(folder)
    image_processor(longest).save_pretrained(folder)
    return write_tokenizer(folder, TEMPLATE, size=320, more_special=VISION_SPECIAL)


def picture(width: int = 56, height: int = 40, seed: int = 0, kind: str = "PNG") -> bytes:
    """A file of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()
