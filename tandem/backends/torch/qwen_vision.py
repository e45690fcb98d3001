"""The vision tower of a Qwen2-VL or Qwen2.5-VL model: images to embeddings of a session."""

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

from tandem.backends.image_files import decode_image, image_sizes
from tandem.backends.interface import Session
from tandem.backends.torch.image_embeddings import ImageEmbeddings
from tandem.backends.torch.kv_cache import KvSession
from tandem.core.errors import InvalidArgument
from tandem.core.prompt import FIELD, MAX_IMAGE_TOKENS

VISION_MODELS = (Qwen2VLForConditionalGeneration, Qwen2_5_VLForConditionalGeneration)


@dataclass(frozen=True, slots=True)
class Pixels:
    """Patches [n, size] of all images one after another, and each one's grid [images, 3]."""

    patches: Tensor
    grid: Tensor


class QwenVision:
    """Implements `tandem.backends.interface.Vision`."""

    def __init__(self, model: PreTrainedModel, processor: Any) -> None:
        """Prepare the images of `model` with `processor`, transformers' Qwen2VLImageProcessorPil,
        which needs no torchvision."""
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
        patches_of = self._processor.get_number_of_image_patches
        merged = self._processor.merge_size
        return [patches_of(height, width) // merged**2 for height, width in image_sizes(images)]

    def prepare(self, images: Sequence[bytes]) -> Pixels:
        patches = []
        grids = []
        for index, encoded in enumerate(images):
            with self._decoding:
                processed = self._processor(
                    images=[decode_image(encoded, index)], return_tensors="pt"
                )
            patches.append(processed["pixel_values"])
            grids.append(processed["image_grid_thw"])
        return Pixels(torch.cat(patches), torch.cat(grids))

    @torch.inference_mode()
    def attach(self, session: Session, prompt_ids: Sequence[int], pixels: object) -> None:
        if not isinstance(session, KvSession) or not isinstance(pixels, Pixels):
            raise InvalidArgument(FIELD, "made by another engine")
        model = self._model
        patches = pixels.patches.to(model.device, model.dtype)
        grid = pixels.grid.to(model.device)
        seen = model.get_image_features(patches, grid, return_dict=True)
        ids = torch.tensor([list(prompt_ids)], device=model.device)
        image = self.image_token_id
        rope, _ = model.model.get_rope_index(ids, (ids == image).int(), image_grid_thw=grid)
        embeddings = torch.cat(list(seen.pooler_output)).to(model.dtype)
        session.image_embeddings = ImageEmbeddings(prompt_ids, image, embeddings, rope[:, 0])


def see_whole(model: PreTrainedModel, ids: Tensor, pixels: Pixels) -> None:
    """Run one pass of the model's own code over whole texts [rows, length] with their images."""
    seeing: Any = model
    seeing.model(
        input_ids=ids,
        pixel_values=pixels.patches.to(model.device, model.dtype),
        image_grid_thw=pixels.grid.to(model.device),
        mm_token_type_ids=(ids == seeing.config.image_token_id).int(),
        use_cache=False,
    )
