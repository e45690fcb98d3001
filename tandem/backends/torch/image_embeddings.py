"""The embeddings of a session's images, and rotary positions that follow their shape.

In Qwen2-VL's multimodal rotary embedding (M-RoPE) every token has three positions: time, height and
width. Text has one number three times; an image's tokens share the time, and its width and height
advance what follows. Invariant: both are functions of a token's index in its session, so rolling
back changes nothing here.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


class ImageEmbeddings:
    """The images of one prompt of n tokens with m image tokens: `embeddings` [m, hidden] in the
    prompt's order, `rope` [3, n]."""

    def __init__(
        self, prompt_ids: Sequence[int], image_token_id: int, embeddings: Tensor, rope: Tensor
    ) -> None:
        self._image_token_id = image_token_id
        self._embeddings = embeddings
        self._rope = rope
        self._after = int(rope.max()) + 1 - rope.shape[1]  # what to add behind the prompt
        images = (i for i, token in enumerate(prompt_ids) if token == image_token_id)
        self._rows = {index: row for row, index in enumerate(images)}

    def rope_at(self, indices: Sequence[int]) -> Tensor:
        """Return rotary positions [3, len(indices)] of the tokens at these indices of the
        session."""
        at = torch.tensor(indices, device=self._rope.device)
        inside = self._rope[:, at.clamp(max=self._rope.shape[1] - 1)]
        return torch.where(at < self._rope.shape[1], inside, at + self._after)

    def insert(self, hidden: Tensor, indices: Sequence[int], token_ids: Sequence[int]) -> None:
        """Put the images into `hidden` [tokens, size], in place, where their tokens are."""
        places = [
            (row, self._rows[index])
            for row, (index, token) in enumerate(zip(indices, token_ids, strict=True))
            if token == self._image_token_id and index in self._rows
        ]
        if places:
            rows, images = zip(*places, strict=True)
            hidden[list(rows)] = self._embeddings[list(images)]
