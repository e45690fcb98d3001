"""The model that a setting names, and what a back end makes of it."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tandem.backends.hub_cache import (
    cached_snapshot,
    holds_weights,
    hub_endpoint,
    why_unreachable,
)
from tandem.backends.interface import Engine
from tandem.backends.model_files import CONFIG, check_model_folder
from tandem.core.default_sampling import NO_DEFAULTS, DefaultSampling
from tandem.core.errors import InvalidArgument
from tandem.text import Tokenizer

AUTO = "auto"
"""The engine that the model's source suggests: llama.cpp for a GGUF file, else torch."""
GGUF = ".gguf"
"""How the names of llama.cpp's files end."""
GGUF_MAGIC = b"GGUF"
"""And how they begin."""
HEAD_TOKENS = "head_tokens.json"
"""In the folder of a model that was trained to draft: the only tokens that it proposes."""
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class ServerChoice:
    """A server that computes the model, of the engine remote. `key`: sent as a bearer's token.
    `certificates`: a file of the authorities to trust. `silent_s`: how long it may say nothing
    within a request."""

    url: str
    key: str = ""
    certificates: str | None = None
    silent_s: float = 300.0


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """One model and how to compute it.

    `source` is a folder, or the name of a hub model with its `revision`, unless the back end says
    otherwise. `exits`, of a target: a folder of early exits, "none", or "auto" for those that lie
    beside it. `engine` names the back end, or is AUTO. `threads`: of a
    pass; 0: as the engine sees fit. `drafts`: mostly one token will be fed at a time.
    `gpu_layers` and `kv_cells` are llama.cpp's: layers on the device (None: all), and tokens that
    there is room for (0: a default). `first_layers`: only so many run, and answer
    their hidden states (0: all); of torch's Llama family alone. `batch_invariant`: an engine that
    can must compute each row to the same bits in every pass, which takes longer. `server`: where
    the model is computed, for the engine remote; `source` then gives its tokenizer. `note`: what
    to say of the choice to a person who did not make it.
    """

    source: str
    revision: str | None = None
    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 0
    exits: str = "none"
    engine: str = AUTO
    drafts: bool = False
    gpu_layers: int | None = None
    kv_cells: int = 0
    first_layers: int = 0
    batch_invariant: bool = False
    server: ServerChoice | None = None
    note: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that a back end has loaded. Without a tokenizer prompts are token ids. `content_hash`
    covers all that decides the model's keys and values; it may be slow. `default_sampling`: what
    its makers recommend for requests that name nothing."""

    engine: Engine
    tokenizer: Tokenizer | None
    content_hash: Callable[[], str]
    default_sampling: DefaultSampling = NO_DEFAULTS


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Arguments of every `from_pretrained` of transformers."""

    name: str
    local: bool
    options: dict[str, Any]


def only_drafts(source: str) -> bool:
    """Return whether the model in this folder was trained to draft for another one, and writes
    nothing sensible by itself."""
    return (Path(source) / HEAD_TOKENS).is_file()


def is_gguf(source: str) -> bool:
    """Return whether a source is a GGUF file: by its name, or by how it begins, since Ollama keeps
    such files under names without an ending."""
    if source.lower().endswith(GGUF):
        return True
    path = Path(source)
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(GGUF_MAGIC)) == GGUF_MAGIC
    except OSError:
        return False


def find_source(folder_or_name: str | Path, revision: str | None = None) -> ModelSource:
    """Return the model in a folder, or of that name and commit. Raises InvalidArgument for what is
    neither, and for a folder without a model's configuration."""
    folder = Path(folder_or_name)
    local = folder.exists()
    if local:
        check_model_folder(folder)
    elif revision is None:
        why = f"{folder_or_name}: no such folder; use NAME@COMMIT for a hub model"
        raise InvalidArgument("model", why)
    elif not _COMMIT.fullmatch(revision):
        raise InvalidArgument("revision", f"{revision!r} is not a commit hash of 40 hex digits")
    cached = local or _is_cached(str(folder_or_name), revision or "")
    options = {"revision": revision, "local_files_only": cached, "trust_remote_code": False}
    return ModelSource(str(folder_or_name), local, options)


def _is_cached(name: str, commit: str) -> bool:
    """Return whether a hub model is to be read from the cache alone: it is whole there, or nothing
    else can be had. Raises InvalidArgument("model") where it is neither there nor to be had."""
    snapshot = cached_snapshot(name, commit)
    if snapshot is not None and (snapshot / CONFIG).exists():
        check_model_folder(snapshot)
    if snapshot is not None and holds_weights(snapshot):
        return True
    unreachable = why_unreachable()
    if unreachable and snapshot is None:
        why = f"is not on this machine, and {hub_endpoint()} cannot be reached ({unreachable})"
        raise InvalidArgument("model", f"{name}@{commit} {why}")
    return bool(unreachable)
