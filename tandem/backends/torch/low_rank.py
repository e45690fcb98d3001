"""Low-rank adapters of a Llama-family draft (LoRA: Hu et al. 2021), over the products that the lean
forward fuses: of each layer queries, keys and values, their output, both halves of the gate, the
way down, and the head.

Invariants: an adapter whose `up` matrices are zero changes nothing; products with an adapter keep
the promise of `linear`, that a row's product does not depend on the rows beside it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from tandem.backends.torch.linear import Linear, make_linear, merged_linear

RANK = 8


class ProductShape(NamedTuple):
    """Inputs and outputs of one product."""

    inputs: int
    outputs: int


class LowRank(Protocol):
    """Adds what an adapter makes of the inputs of a product to that product."""

    def add_to(self, product: Tensor, rows: Tensor, few: bool) -> Tensor:
        """Add to `product` [rows, out] what the adapter makes of `rows` [rows, in] -> [rows, out].
        `few` is as in `Linear`."""


class LayerAdapter(NamedTuple):
    """The adapter of one layer's products."""

    qkv: LowRank
    out: LowRank
    gate_up: LowRank
    down: LowRank


class DraftAdapter(NamedTuple):
    """The adapter of a whole model."""

    layers: tuple[LayerAdapter, ...]
    head: LowRank


class LayerProducts(NamedTuple):
    """The products of one layer: the model's own, or with an adapter in their weights."""

    qkv: Linear
    out: Linear
    gate_up: Linear
    down: Linear


class MergedModel(NamedTuple):
    """The products of a whole model with an adapter in their weights; `head` is over the tokens
    that the draft can propose."""

    layers: tuple[LayerProducts, ...]
    head: Linear


class PlacedAdapter:
    """An adapter laid out for passes. `merged`: the same in the weights of a copy of the model's
    products, where there is one."""

    def __init__(self, low_rank: DraftAdapter, weights: Tensor) -> None:
        self.low_rank = low_rank
        self.weights = weights
        self.merged: MergedModel | None = None


class TrainedProduct(NamedTuple):
    """A `LowRank` of matrices that gradients go through: down [in, rank] and up [rank, out]."""

    down: Tensor
    up: Tensor

    def add_to(self, product: Tensor, rows: Tensor, few: bool) -> Tensor:
        return torch.addmm(product, rows @ self.down, self.up)


class PlacedProduct:
    """A `LowRank` laid out for passes."""

    def __init__(self, trained: TrainedProduct) -> None:
        self._down = make_linear(trained.down.t(), None, single_rows=True)
        self._up = make_linear(trained.up.t(), None, single_rows=True)

    def add_to(self, product: Tensor, rows: Tensor, few: bool) -> Tensor:
        return self._up.add_to(product, self._down(rows, few), few)


def weight_count(shapes: Sequence[ProductShape]) -> int:
    """Return the number of weights of an adapter over these products."""
    return sum(RANK * (shape.inputs + shape.outputs) for shape in shapes)


def fresh_weights(shapes: Sequence[ProductShape], seed: int) -> Tensor:
    """Return the weights [n] of an adapter that changes nothing yet: each `up` is zero."""
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for shape in shapes:
        down = torch.randn(shape.inputs * RANK, generator=generator)
        parts += [down * shape.inputs**-0.5, torch.zeros(RANK * shape.outputs)]
    return torch.cat(parts)


def trained_adapter(weights: Tensor, shapes: Sequence[ProductShape]) -> DraftAdapter:
    """Return an adapter of views of `weights` [n]; gradients arrive there."""
    return _adapter(list(_products(weights, shapes)))


def placed_adapter(weights: Tensor, shapes: Sequence[ProductShape]) -> PlacedAdapter:
    """Return an adapter for passes: copies of `weights` [n], laid out."""
    with torch.inference_mode(False), torch.no_grad():
        products = [PlacedProduct(product) for product in _products(weights, shapes)]
        return PlacedAdapter(_adapter(products), weights)


def merged_model(
    products: Sequence[Linear], weights: Tensor, shapes: Sequence[ProductShape]
) -> MergedModel | None:
    """Return a copy of the model's `products` with an adapter of `weights` [n] in theirs; None
    where their layout does not allow it."""
    with torch.inference_mode(False), torch.no_grad():
        merged = []
        for product, low_rank in zip(products, _products(weights, shapes), strict=True):
            one = merged_linear(product, low_rank.down, low_rank.up)
            if one is None:
                return None
            merged.append(one)
    size = len(LayerProducts._fields)
    layers = [
        LayerProducts(*merged[first : first + size]) for first in range(0, len(merged) - 1, size)
    ]
    return MergedModel(tuple(layers), merged[-1])


def _products(weights: Tensor, shapes: Sequence[ProductShape]) -> Iterator[TrainedProduct]:
    sizes = [RANK * side for shape in shapes for side in shape]
    # One split, whose gradient is one concatenation.
    parts = iter(weights.split(sizes))
    for shape in shapes:
        down, up = next(parts), next(parts)
        yield TrainedProduct(down.view(shape.inputs, RANK), up.view(RANK, shape.outputs))


def _adapter(products: Sequence[LowRank]) -> DraftAdapter:
    size = len(LayerAdapter._fields)
    layers = [
        LayerAdapter(*products[first : first + size]) for first in range(0, len(products) - 1, size)
    ]
    return DraftAdapter(tuple(layers), products[-1])
