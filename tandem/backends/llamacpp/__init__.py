"""GGUF models on llama.cpp: packed passes over one pool of cells, sessions and trees as sequences.

Needs the extra 'llamacpp' and no torch. `load` reads nothing but the file."""

import os
from importlib import import_module
from pathlib import Path
from typing import Any

from tandem.backends.gguf_check import check_gguf
from tandem.backends.llamacpp.library import LIBRARY_VARIABLE
from tandem.backends.llamacpp.library import library as loaded_library
from tandem.backends.model_source import LoadedModel, ModelChoice
from tandem.core.errors import InvalidArgument
from tandem.core.extras import install_command
from tandem.core.reading import reading
from tandem.text import ComparableTokenizer


def load(choice: ModelChoice) -> LoadedModel:
    """Load a model for the factory. A wrong file is refused without waiting for the library."""
    check_gguf(Path(choice.source))
    if choice.exits not in ("none", "auto"):
        raise InvalidArgument("exits", "llama.cpp's models have no early exits; use 'none'")
    module = _library_module("gguf_model")
    with reading(choice.source, "model"):
        loaded: LoadedModel = module.load_chosen(choice)
    return loaded


def load_tokenizer(source: str) -> ComparableTokenizer:
    """Return the tokenizer of a GGUF file; its weights are not read. Raises
    InvalidArgument("model")."""
    check_gguf(Path(source))
    native, text = _library_module("native"), _library_module("gguf_tokenizer")
    with reading(source, "model"):
        model = native.LlamaModel(Path(source), vocabulary_only=True)
        tokenizer: ComparableTokenizer = text.GgufTokenizer(model)
    return tokenizer


def _library_module(name: str) -> Any:
    """Return a module that calls the library, once that is loaded."""
    try:
        loaded_library()
        return import_module(f"tandem.backends.llamacpp.{name}")
    except ImportError as error:  # missing, or of another machine
        why = f"'llamacpp' needs the extra llamacpp ({error}): {install_command('llamacpp')}"
        if LIBRARY_VARIABLE in os.environ:
            why = f"'llamacpp' cannot use what {LIBRARY_VARIABLE} names: {error}"
        elif "libgomp" in str(error):
            why = (
                f"'llamacpp' needs the system's OpenMP library ({error}): apt-get install libgomp1"
            )
        raise InvalidArgument("engine", why) from error
