"""Which back end reads GGUF files here: llama.cpp where it is installed, else PyTorch's reader."""

from importlib.util import find_spec

from tandem.backends.llamacpp.library import find_library

_READER = ("gguf", "torch")
"""Packages that the engine torch needs for GGUF files."""


def gguf_engine() -> str:
    """Return the name of the back end that reads GGUF files unless another is asked for. Where none
    is installed it is llama.cpp's, whose loader says what to install."""
    try:
        find_library()
    except ImportError:
        return "torch" if all(find_spec(name) for name in _READER) else "llamacpp"
    return "llamacpp"
