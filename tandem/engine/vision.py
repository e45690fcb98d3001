"""The vision tower of a Qwen2-VL or Qwen2.5-VL model, and the images it has looked at.

`tokens_per_image` needs headers only, `prepare` decodes and scales (any thread), `attach` runs the
tower and gives the session its sight (the engine's thread, before the session's first pass). Must
not import grpc.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import (
    PreTrainedModel,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLForConditionalGeneration,
)

from tandem.core.errors import InvalidArgument
from tandem.core.images import FIELD, MAX_IMAGE_TOKENS
from tandem.engine.base import Session
from tandem.engine.images import decode_image, image_sizes
from tandem.engine.kv import KvSession
from tandem.engine.sight import Sight

SEEING = (Qwen2VLForConditionalGeneration, Qwen2_5_VLForConditionalGeneration)


@dataclass(frozen=True, slots=True)
class Pixels:
    """Patches [n, size] of all images one after another, and each one's grid [images, 3]."""

    patches: Tensor
    grid: Tensor


class QwenVision:
    """Implements `tandem.engine.base.Vision`."""

    def __init__(self, model: PreTrainedModel, processor: Any) -> None:
        """`processor`: transformers' Qwen2VLImageProcessorPil, which needs no torchvision."""
        self._model: Any = model
        self._processor = processor
        config: Any = model.config
        self.image_token_id = int(config.image_token_id)
        self.around = (int(config.vision_start_token_id), int(config.vision_end_token_id))
        per_token = (processor.patch_size * processor.merge_size) ** 2
        most = min(processor.size["longest_edge"], MAX_IMAGE_TOKENS * per_token)
        processor.size = {"shortest_edge": processor.size["shortest_edge"], "longest_edge": most}
        self._decoding = threading.Lock()  # one image in memory at a time, however many ask

    def tokens_per_image(self, images: Sequence[bytes]) -> list[int]:
        merged = self._processor.merge_size**2
        return [
            self._processor.get_number_of_image_patches(height, width) // merged
            for height, width in image_sizes(images)
        ]

    def prepare(self, images: Sequence[bytes]) -> Pixels:
        patches, grids = [], []
        for index, encoded in enumerate(images):
            with self._decoding:
                decoded = decode_image(encoded, index)
                found = self._processor(images=[decoded], return_tensors="pt")
            patches.append(found["pixel_values"])
            grids.append(found["image_grid_thw"])
        return Pixels(torch.cat(patches), torch.cat(grids))

    @torch.inference_mode()
    def attach(self, session: Session, prompt_ids: Sequence[int], pixels: object) -> None:
        if not isinstance(session, KvSession) or not isinstance(pixels, Pixels):
            raise InvalidArgument(FIELD, "made by another engine")
        model = self._model
        grid = pixels.grid.to(model.device)
        seen = model.get_image_features(
            pixels.patches.to(model.device, model.dtype), grid, return_dict=True
        )
        ids = torch.tensor([list(prompt_ids)], device=model.device)
        kinds = (ids == self.image_token_id).int()
        rope, _ = model.model.get_rope_index(ids, kinds, image_grid_thw=grid)
        embeddings = torch.cat(list(seen.pooler_output)).to(model.dtype)
        session.sight = Sight(prompt_ids, self.image_token_id, embeddings, rope[:, 0])
