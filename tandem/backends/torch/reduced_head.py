"""A draft's head over frequent tokens alone (Zhao et al. 2025, FR-Spec).

A folder may name them in `head_tokens.json`, a list of token ids. The head is most of a small
draft's step where the vocabulary is large. All other tokens get no probability, which is a
truncation of the draft's distribution like any other: verification stays exact. A target always
has its whole head.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from tandem.backends.model_files import read_json
from tandem.backends.model_source import HEAD_TOKENS
from tandem.backends.torch.linear import Linear
from tandem.core.errors import InvalidArgument

MakeLinear = Callable[[Tensor, Tensor | None], Linear]


def read_head_tokens(folder: Path, vocabulary_size: int) -> Tensor | None:
    """Return the token ids of a reduced head, int64 and ascending; None where the folder names
    none. Raises InvalidArgument("model")."""
    path = folder / HEAD_TOKENS
    if not path.exists():
        return None
    try:
        named = read_json(path)
    except (OSError, ValueError) as error:
        raise InvalidArgument("model", f"{path} cannot be read: {error}") from error
    numbers = isinstance(named, list) and all(type(token) is int for token in named)
    if not named or not numbers or not all(0 <= token < vocabulary_size for token in named):
        raise InvalidArgument("model", f"{path} is not a list of token ids below {vocabulary_size}")
    return torch.tensor(sorted(set(named)))


class ReducedHead:
    """Implements `linear.Linear`: the product with rows `tokens` of `weight` [vocabulary, size],
    laid out by `make`; -inf for all other tokens."""

    def __init__(self, weight: Tensor, tokens: Tensor, make: MakeLinear) -> None:
        self._tokens = tokens.to(weight.device)
        self._size = weight.shape[0]
        self.inside = make(weight[self._tokens], None)
        """The product with the rows of those tokens alone."""

    def __call__(self, rows: Tensor, few: bool) -> Tensor:
        return self.spread(self.inside(rows, few))

    def spread(self, logits: Tensor) -> Tensor:
        """Put the logits [rows, head tokens] in their places -> [rows, vocabulary], with -inf for
        all other tokens."""
        whole = logits.new_full((logits.shape[0], self._size), float("-inf"))
        return whole.index_copy_(1, self._tokens, logits)

    def add_to(self, residual: Tensor, rows: Tensor, few: bool) -> Tensor:
        return residual + self(rows, few)
