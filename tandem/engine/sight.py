"""What a session sees: its images' embeddings, and rotary positions that follow their shape.

In Qwen2-VL's multimodal rotary embedding (M-RoPE) every token has three positions: time, height and
width. Text has one number three times; an image's tokens share the time, and its width and height
advance what follows. Invariant: both are functions of a token's index in its session, so rolling
back changes nothing here. Must not import grpc.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tandem.engine.pack import Part


class Sight:
    """Of one prompt of n tokens with m image tokens.

    `embeddings` [m, hidden] in the prompt's order, `rope` [3, n].
    """

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
        """[3, len(indices)]: rotary positions of the tokens at these indices of the session."""
        at = torch.tensor(indices, device=self._rope.device)
        inside = self._rope[:, at.clamp(max=self._rope.shape[1] - 1)]
        return torch.where(at < self._rope.shape[1], inside, at + self._after)

    def paint(self, hidden: Tensor, indices: Sequence[int], token_ids: Sequence[int]) -> None:
        """Put the images into `hidden` [tokens, size], in place, where their tokens are."""
        found = [
            (row, self._rows[index])
            for row, (index, token) in enumerate(zip(indices, token_ids, strict=True))
            if token == self._image_token_id and index in self._rows
        ]
        if found:
            rows, images = zip(*found, strict=True)
            hidden[list(rows)] = self._embeddings[list(images)]


def seen_inputs(model: PreTrainedModel, ids: Tensor, parts: Sequence[Part]) -> dict[str, Tensor]:
    """What a model with M-RoPE is called with for a pack of token ids [tokens]."""
    hidden = model.get_input_embeddings()(ids)
    token_ids = ids.tolist() if any(part.session.sight for part in parts) else ()
    columns = []
    for part in parts:
        sight = part.session.sight
        if sight is None:
            columns.append(torch.tensor(part.positions, device=hidden.device).expand(3, -1))
            continue
        rows = slice(part.offset, part.offset + part.count)
        sight.paint(hidden[rows], part.positions, token_ids[rows])
        columns.append(sight.rope_at(part.positions))
    return {"inputs_embeds": hidden[None], "position_ids": torch.cat(columns, dim=1)[:, None]}
