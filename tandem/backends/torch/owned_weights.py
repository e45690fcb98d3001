"""Weights that keep nothing else in memory.

safetensors maps a file into memory, and every tensor is a view of the mapping. As long as one is
left, all pages of the file that were ever read count as this process's memory. A tensor does not
tell that it is such a view. So who lays weights out anew, and keeps a few as they are, copies those
few.
"""

from torch import Tensor, nn


def owned(weight: Tensor) -> Tensor:
    """Return the values of `weight`, detached, with memory for them alone. On a GPU they have it
    already."""
    values = weight.detach()
    return values.clone() if values.device.type == "cpu" else values


def own_parameters(model: nn.Module) -> None:
    """Give each parameter of `model` memory of its own; those that are tied stay so."""
    for parameter in model.parameters():
        parameter.data = owned(parameter)
