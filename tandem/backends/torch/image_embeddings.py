"""The embeddings of a session's images, and rotary positions that follow their shape.

In Qwen2-VL's multimodal rotary embedding (M-RoPE) every token has three positions: time, height and
width. Text has one number three times; an image's tokens share the time, and its width and height
advance what follows. Invariant: both are functions of a token's index in its session, so rolling
back changes nothing here.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tandem.backends.torch.packed_batch import PackedSequence


class ImageEmbeddings:
    """Of one prompt of n tokens with m image tokens. `embeddings` [m, hidden] in the prompt's
    order, `rope` [3, n]."""

    def __init__(
        self, prompt_ids: Sequence[int], image_token_id: int, embeddings: Tensor, rope: Tensor
    ) -> None:
        self._image_token_id, self._embeddings, self._rope = image_token_id, embeddings, rope
        self._after = int(rope.max()) + 1 - rope.shape[1]  # what to add behind the prompt
        images = (i for i, token in enumerate(prompt_ids) if token == image_token_id)
        self._rows = {index: row for row, index in enumerate(images)}

    def rope_at(self, indices: Sequence[int]) -> Tensor:
        """[3, len(indices)]: rotary positions of the tokens at these indices of the session."""
        at = torch.tensor(indices, device=self._rope.device)
        inside = self._rope[:, at.clamp(max=self._rope.shape[1] - 1)]
        return torch.where(at < self._rope.shape[1], inside, at + self._after)

    def insert(self, hidden: Tensor, indices: Sequence[int], token_ids: Sequence[int]) -> None:
        """Put the images into `hidden` [tokens, size], in place, where their tokens are."""
        found = [
            (row, self._rows[index])
            for row, (index, token) in enumerate(zip(indices, token_ids, strict=True))
            if token == self._image_token_id and index in self._rows
        ]
        if found:
            rows, images = zip(*found, strict=True)
            hidden[list(rows)] = self._embeddings[list(images)]


def embed_inputs(
    model: PreTrainedModel, ids: Tensor, sequences: Sequence[PackedSequence]
) -> dict[str, Tensor]:
    """What a model with M-RoPE is called with for a packed batch of token ids [tokens]."""
    hidden = model.get_input_embeddings()(ids)
    has_images = any(sequence.session.image_embeddings for sequence in sequences)
    token_ids = ids.tolist() if has_images else ()
    columns = []
    for sequence in sequences:
        image_embeddings = sequence.session.image_embeddings
        if image_embeddings is None:
            columns.append(torch.tensor(sequence.positions, device=hidden.device).expand(3, -1))
            continue
        rows = sequence.rows
        image_embeddings.insert(hidden[rows], sequence.positions, token_ids[rows])
        columns.append(image_embeddings.rope_at(sequence.positions))
    return {"inputs_embeds": hidden[None], "position_ids": torch.cat(columns, dim=1)[:, None]}
