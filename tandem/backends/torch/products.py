"""The products of a model of the Llama family, as one value: the model's own, or those that a
session runs with in their place.

Whatever makes such products (an adapter, say) keeps the promise of `linear`, that a row's product
does not depend on the rows beside it.
"""

from typing import NamedTuple

from tandem.backends.torch.linear import Linear


class ProductShape(NamedTuple):
    """Inputs and outputs of one product."""

    inputs: int
    outputs: int


class LayerProducts(NamedTuple):
    """The products of one layer: queries, keys and values, their output, both halves of the gate,
    and the way down."""

    qkv: Linear
    out: Linear
    gate_up: Linear
    down: Linear


class ModelProducts(NamedTuple):
    """The products of a whole model; `head` is over the tokens that it can propose."""

    layers: tuple[LayerProducts, ...]
    head: Linear
