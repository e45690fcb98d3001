"""Which back end reads GGUF files here: llama.cpp where it is installed, else PyTorch's reader."""

from importlib.util import find_spec

from tandem.demo import checkout

_READER = ("gguf", "torch")
"""Packages that the engine torch needs for GGUF files."""


def gguf_engine() -> str:
    """Return the name of the back end that reads GGUF files unless another is asked for. Where none
    is installed it is llama.cpp's, whose loader says what to install."""
    if find_spec("xllamacpp") is None and all(find_spec(name) for name in _READER):
        return "torch"
    return "llamacpp"


def llamacpp_install_words() -> str:
    """Return how to install llama.cpp, and what reads GGUF files without it."""
    make = "" if checkout() is None else "'make llamacpp', or "
    return (
        f"{make}pip install 'tandem-edge[llamacpp]'; without a compiler PyTorch reads such files:"
        " pip install 'tandem-edge[engine,gguf]'"
    )
