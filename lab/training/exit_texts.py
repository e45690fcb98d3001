"""What early exits are trained on: stretches of a text, and texts with pictures.

Invariant: what a step reads is a function of (seed, step) and the texts; their ends are kept for
measuring and never trained on. Placeholders of pictures are read, and never learnt from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tandem.backends.torch.qwen_vision import Pixels, QwenVision
from tandem.core.errors import InvalidArgument
from tandem.core.prompt import place_images

HELD_OUT = 0.05
"""Share of the texts, their end, that is measured on and never trained on."""
MEASURED_ROWS = 16
"""Stretches of text, and texts with pictures, that are measured on at most."""
FEWEST_PICTURED = 2
"""One to learn from, one to measure on."""


@dataclass(frozen=True, slots=True)
class PicturedText:
    """A text's tokens, and the pictures that go with it: files as they are. Their placeholders may
    be among the tokens; otherwise the pictures go first."""

    token_ids: tuple[int, ...]
    images: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """Token ids [rows, length] that are read in one pass, and the pixels of their pictures."""

    token_ids: Tensor
    pixels: Pixels | None = None


class ExitTexts:
    """Texts in the sizes that a step reads: `rows` of them, stretches of `length` tokens."""

    def __init__(
        self,
        stream: Tensor,
        pictured: Sequence[PicturedText],
        vision: QwenVision | None,
        rows: int,
        length: int,
        held_out: float = HELD_OUT,
    ) -> None:
        """Split the texts into those to learn from and those to measure on. `held_out`: the share
        of the stream, its end, that is measured on. Raises InvalidArgument("text") or
        InvalidArgument("pictures")."""
        self._rows = rows
        self._length = length
        self._vision = vision
        if len(stream) < 4 * length and not (pictured and not len(stream)):
            raise InvalidArgument("text", f"{len(stream)} tokens; at least {4 * length} are needed")
        end = max(0, len(stream) - max(2 * length, int(held_out * len(stream))))
        self._text = stream[:end]
        self._text_held_out = stream[end:]
        placed = [self._placed(one) for one in pictured]
        if placed and len(placed) < FEWEST_PICTURED:
            raise InvalidArgument("pictures", f"{len(placed)}; {FEWEST_PICTURED} at least")
        last = len(placed) - max(1, int(HELD_OUT * len(placed)))
        self._pictured = placed[:last]
        self._pictured_held_out = placed[last:]
        self._seen = sum(len(one.token_ids) for one in self._pictured)

    def __len__(self) -> int:
        """Return how many tokens are learnt from."""
        return len(self._text) + self._seen

    def step(self, source: np.random.Generator, positions: int) -> tuple[list[Rows], Tensor]:
        """Return what a step reads, and the places in it that it learns from, of all rows one after
        another. Texts and pictured texts take turns by their tokens."""
        if self._seen and source.random() * len(self) < self._seen:
            chosen = source.integers(len(self._pictured), size=self._rows)
            read = [self._rows_of(self._pictured[number]) for number in chosen]
        else:
            starts = source.integers(len(self._text) - self._length + 1, size=self._rows)
            stretches = [self._text[start : start + self._length] for start in starts]
            read = [Rows(torch.stack(stretches))]
        words = self.words(read).numpy()
        places = words[source.permutation(len(words))[:positions]]
        return read, torch.from_numpy(np.sort(places))

    def held_out(self) -> Iterator[Rows]:
        """Yield one text at a time."""
        length = self._length
        rows = self._text_held_out[: len(self._text_held_out) // length * length].view(-1, length)
        yield from (Rows(row[None]) for row in _spread(rows))
        yield from (self._rows_of(one) for one in _spread(self._pictured_held_out))

    def words(self, read: Sequence[Rows]) -> Tensor:
        """Return the places that are no placeholders, of all rows one after another."""
        ids = torch.cat([rows.token_ids.flatten() for rows in read])
        image = -1 if self._vision is None else self._vision.image_token_id
        return torch.nonzero(ids != image).flatten()

    def _placed(self, text: PicturedText) -> PicturedText:
        if self._vision is None:
            raise InvalidArgument("pictures", "this model reads text only")
        counts = self._vision.tokens_per_image(text.images)
        token_ids = text.token_ids
        image = self._vision.image_token_id
        return PicturedText(
            place_images(token_ids, image, self._vision.around, counts), text.images
        )

    def _rows_of(self, text: PicturedText) -> Rows:
        assert self._vision is not None
        return Rows(torch.tensor([text.token_ids]), self._vision.prepare(text.images))


def _spread(found: Any) -> Any:
    """Return at most MEASURED_ROWS of the rows, from all parts."""
    return found[:: -(-len(found) // MEASURED_ROWS) or 1]
