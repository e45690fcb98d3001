"""The matrix products of a decoding step and nothing else: what no step of such weights can beat.

Random weights of the model's shapes, multiplied with one row by the product that the engine takes
for them, each once a step. Attention, norms and the rest of a step come on top.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from lab.bench.harness.weights import weight_shapes
from lab.bench.speculation.draft_step import steps_of
from tandem.backends.torch.linear import Linear, make_linear
from tandem.backends.torch.quantised import WEIGHT_BITS

EMBEDDING = "embed_tokens.weight"
HEAD = "lm_head.weight"


class BareProducts:
    """The products of a folder with safetensors, in float32, int8 or int4."""

    def __init__(self, folder: str, dtype: str) -> None:
        shapes = matrix_shapes(Path(folder))
        bits = WEIGHT_BITS.get(dtype)
        self._products: list[tuple[Linear, torch.Tensor]] = [
            (
                make_linear(torch.randn(outputs, inputs), None, single_rows=True, bits=bits),
                torch.randn(1, inputs),
            )
            for outputs, inputs in shapes
        ]

    def steps(self, token_ids: list[int]) -> list[float]:
        """Return the processor seconds of each step of a burst, as `engine_steps` does."""
        return steps_of(self._step, token_ids)

    def _step(self, token_id: int) -> None:
        for multiply, row in self._products:
            multiply(row, True)


def matrix_shapes(folder: Path) -> list[tuple[int, int]]:
    """Return [out, in] of all matrices that a token is multiplied with. An embedding is one of them
    only where the model has no separate head."""
    matrices = {name: shape for name, shape in weight_shapes(folder).items() if len(shape) == 2}
    has_head = any(name.endswith(HEAD) for name in matrices)
    return [
        (outputs, inputs)
        for name, (outputs, inputs) in matrices.items()
        if not (has_head and name.endswith(EMBEDDING))
    ]


def bare_steps(folder: str, dtype: str) -> Callable[[list[int]], list[float]]:
    """Return a function that measures the steps of a burst."""
    return BareProducts(folder, dtype).steps
