"""Hugging Face decoder models on PyTorch: packed passes over preallocated KV buffers."""

import os

from tandem.backends.model_source import LoadedModel, ModelChoice, find_source, is_gguf
from tandem.core.errors import InvalidArgument
from tandem.core.extras import missing_package

KEPT_KERNELS = 128
"""Compiled kernels that oneDNN keeps, one for each shape of a product. Packed passes have ever new
shapes, and the 1,024 that it keeps of its own accord take most of a gigabyte."""
_CAPACITIES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""Of oneDNN, and of the layer between torch and it, which holds on to kernels too."""


def bound_kernels() -> None:
    """Bound the number of kernels that are kept, before the first product; a variable that is set
    stays."""
    for variable in _CAPACITIES:
        os.environ.setdefault(variable, str(KEPT_KERNELS))


def load(choice: ModelChoice) -> LoadedModel:
    """Load a model for the factory. A wrong folder is refused without waiting for torch."""
    if is_gguf(choice.source):
        raise InvalidArgument("engine", "'torch' runs no GGUF files; 'llamacpp' does")
    find_source(choice.source, choice.revision)
    bound_kernels()
    try:
        from tandem.backends.torch.loading import load_chosen
    except ModuleNotFoundError as error:  # callers of the Python API see the words alone
        raise ModuleNotFoundError(missing_package(error), name=error.name) from error

    return load_chosen(choice)
