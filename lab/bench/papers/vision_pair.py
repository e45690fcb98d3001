"""A pair of models that see, small enough to be trained when a report is made.

Qwen2-VL's architecture with a vision tower of two layers; target and draft learn the robot's task
by cross-entropy. They are no useful models: they are there so that early exits, adapters that were
trained on pictures, and both machines' frames meet images. Invariant: the folder is a function of
the seed and the number of steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from transformers import GenerationConfig, Qwen2VLConfig, Qwen2VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from lab.bench.papers.robot_task import BOS, CELL, END, EOS, PAD, START, VOCABULARY, robot_task
from tandem.backends.image_files import decode_image

ROWS = 24
PATCH = CELL // 2
MERGED = 2
TARGET = (64, 6)
DRAFT = (48, 1)
"""Hidden size and layers."""
LEARNING_RATE = 3e-3


def train_pair(folder: Path, seed: int, steps: int) -> tuple[Path, Path]:
    """Train target and draft, and return their folders."""
    return (
        _train(folder / "target", seed, *TARGET, steps),
        _train(folder / "draft", seed + 1, *DRAFT, steps),
    )


def _train(folder: Path, seed: int, hidden: int, layers: int, steps: int) -> Path:
    model, processor = _model(seed, hidden, layers), _processor()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    for step in range(steps):
        tasks = [robot_task((seed * steps + step) * ROWS + row) for row in range(ROWS)]
        ids = torch.tensor([task.token_ids for task in tasks])
        images = [decode_image(task.image, 0) for task in tasks]
        logits = model(
            input_ids=ids,
            mm_token_type_ids=(ids == PAD).int(),
            **processor(images=images, return_tensors="pt"),
            use_cache=False,
        ).logits
        first = len(tasks[0].prompt_ids)
        said, wanted = logits[:, first - 1 : -1].flatten(0, 1), ids[:, first:].flatten()
        loss = functional.cross_entropy(said, wanted)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    GenerationConfig(eos_token_id=[EOS]).save_pretrained(folder)
    return folder


def _model(seed: int, hidden: int, layers: int) -> Any:
    torch.manual_seed(seed)
    text = {
        "vocab_size": VOCABULARY,
        "initializer_range": 0.08,
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 16,
        "num_key_value_heads": 1,
        "max_position_embeddings": 256,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "mrope_section": [2, 3, 3],
        },
    }
    tower = {
        "depth": 2,
        "initializer_range": 0.1,
        "embed_dim": 32,
        "num_heads": 2,
        "mlp_ratio": 2,
        "hidden_size": hidden,
        "patch_size": PATCH,
        "spatial_merge_size": MERGED,
        "temporal_patch_size": 2,
        "in_channels": 3,
    }
    config = Qwen2VLConfig(
        text_config=text,
        vision_config=tower,
        vision_start_token_id=START,
        image_token_id=PAD,
        vision_end_token_id=END,
        video_token_id=VOCABULARY - 1,
    )
    return Qwen2VLForConditionalGeneration(config)


def _processor() -> Any:
    size = {"shortest_edge": CELL**2, "longest_edge": 32 * CELL**2}
    return Qwen2VLImageProcessorPil(
        patch_size=PATCH, merge_size=MERGED, temporal_patch_size=2, size=size
    )
