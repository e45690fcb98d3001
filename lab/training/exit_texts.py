"""What early exits are trained on: stretches of a text.

Invariant: what a step reads is a function of (seed, step) and the text; its end is kept for
measuring and never trained on."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from tandem.core.errors import InvalidArgument

HELD_OUT = 0.05
"""Share of the text, its end, that is measured on and never trained on."""
MEASURED_ROWS = 16
"""Stretches of text that are measured on at most."""


class ExitTexts:
    """A text in the sizes that a step reads: `rows` stretches of `length` tokens."""

    def __init__(self, stream: Tensor, rows: int, length: int, held_out: float = HELD_OUT) -> None:
        """Split the text into what is learnt from and what is measured on. `held_out`: the share
        of it, its end, that is measured on. Raises InvalidArgument("text")."""
        self._rows = rows
        self._length = length
        if len(stream) < 4 * length:
            raise InvalidArgument("text", f"{len(stream)} tokens; at least {4 * length} are needed")
        end = max(0, len(stream) - max(2 * length, int(held_out * len(stream))))
        self._text = stream[:end]
        self._held_out = stream[end:]

    def __len__(self) -> int:
        """Return how many tokens are learnt from."""
        return len(self._text)

    def step(self, source: np.random.Generator, positions: int) -> tuple[Tensor, Tensor]:
        """Return the token ids [rows, length] that a step reads, and the places in them that it
        learns from, of all rows one after another."""
        starts = source.integers(len(self._text) - self._length + 1, size=self._rows)
        read = torch.stack([self._text[start : start + self._length] for start in starts])
        places = source.permutation(read.numel())[:positions]
        return read, torch.from_numpy(np.sort(places))

    def held_out(self) -> Iterator[Tensor]:
        """Yield token ids [1, length], of all parts of what is measured on."""
        length = self._length
        rows = self._held_out[: len(self._held_out) // length * length].view(-1, length)
        yield from (row[None] for row in rows[:: -(-len(rows) // MEASURED_ROWS) or 1])
