"""The models that this machine has already, wherever other programs keep them.

Models are read in place; nothing is copied, moved or changed. Looked at are the cache of Hugging
Face's libraries, the stores of Ollama and LM Studio, and the folder `models/`, here and in the
checkout that this package lies in. The demo pair is none of them: it is a toy. Only what is needed
to name a model is read: file names and small JSON files, never weights.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tandem.backends.hub_cache import PULLED_REF, WEIGHTS_INDEX, holds_weights, hub_cache
from tandem.backends.model_files import open_file, read_json
from tandem.backends.model_source import GGUF
from tandem.core.errors import TandemError
from tandem.demo import checkout, is_demo

GGUF_MODEL_LAYER = "application/vnd.ollama.image.model"
"""The layer of an Ollama manifest that holds the weights."""
_GGUF_PART = re.compile(r"-(\d{5})-of-\d{5}$")
"""How the names of files end that one model is split into; the first of them names the model."""

_DIGEST = re.compile(r"sha256[:-][0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_LONGEST_COMMIT = 64
"""Bytes of a file that holds one."""
_OF_HUB = re.compile(r"\w[\w.-]*/\w[\w.-]*(:[\w.-]+)?")
"""What a name of the hub looks like."""

_TEXT_MODELS = ("ForCausalLM", "ForConditionalGeneration")


class NoSuchModel(TandemError):
    """A name that means no model of this machine, or several."""


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model that lies on this machine.

    `name`: what people call it ("Qwen/Qwen2.5-0.5B-Instruct", "llama3.2:1b"). `source`: what
    `--draft` and `--target` take: a folder or a GGUF file. `place`: who keeps it. `size_bytes`: of
    the weights on disk. `family`, `context_length`: the architecture and the longest text in
    tokens, where a folder's configuration tells them.
    """

    name: str
    source: Path
    place: str
    size_bytes: int
    family: str | None = None
    context_length: int | None = None

    @property
    def kind(self) -> str:
        """How the weights are stored: "safetensors" or "gguf"."""
        return "safetensors" if self.source.is_dir() else "gguf"


def local_models(
    environment: Mapping[str, str] = os.environ, here: Path | None = None
) -> list[LocalModel]:
    """Return all models that are found, by place and name.

    Args:
        environment: says where the stores are if they are not at their usual places: `HF_HUB_CACHE`
            or `HF_HOME`, `OLLAMA_MODELS`, and `HOME`.
        here: the folder whose `models/` is looked into; by default the working directory and the
            checkout.
    """
    home = Path(environment.get("HOME") or Path.home())
    ollama = Path(environment.get("OLLAMA_MODELS") or home / ".ollama" / "models")
    roots = [here] if here else {Path.cwd(), checkout() or Path.cwd()}
    models = [
        *(model for root in roots for model in _of_folder(root / "models", "models/")),
        *_of_hub_cache(hub_cache(environment)),
        *_of_ollama(ollama),
        *_of_folder(home / ".lmstudio" / "models", "LM Studio"),
        *_of_folder(home / ".cache" / "lm-studio" / "models", "LM Studio"),
    ]
    listed = (model for model in models if _can_be_shown(model) and not is_demo(model.source))
    return sorted(listed, key=lambda model: (model.place, model.name.lower(), model.source))


def model_at(path: Path) -> LocalModel:
    """Return the model of a folder or a GGUF file. Raises NoSuchModel."""
    if path.is_file():
        return LocalModel(str(path), path, str(path.parent), path.stat().st_size)
    model = _transformers_model(path, str(path), str(path.parent))
    if model is None:
        raise NoSuchModel(f"{path}: no folder of a model that writes text, with its weights")
    return model


def models_in(folder: Path) -> list[LocalModel]:
    """Return the models in a folder of one's own, called by their paths."""
    found = _of_folder(folder, str(folder))
    listed = (
        replace(model, name=str(model.source))
        for model in found
        if _can_be_shown(model) and not is_demo(model.source)
    )
    return sorted(listed, key=lambda model: model.name)


def models_beside(model: LocalModel) -> list[LocalModel]:
    """Return what lies in the same folder as a model, but itself."""
    folder = model.source.parent
    return [
        other
        for other in models_in(folder)
        if other.source.parent == folder and other.source != model.source
    ]


def find_model(name: str, models: Sequence[LocalModel]) -> LocalModel:
    """Return the model that a name means, in any case: its whole name, the part after the last
    slash, or REPOSITORY:QUANTISATION of a GGUF file (without the latter if there is one file).
    Raises NoSuchModel with the names that are similar, or that it may mean."""
    wanted = name.lower()
    whole = [model for model in models if model.name.lower() == wanted]
    matching = whole or [m for m in models if m.name.lower().rpartition("/")[2] == wanted]
    matching = matching or [model for model in models if _is_gguf_of(model, name)]
    sources = {model.source.resolve() for model in matching}
    if len(sources) == 1:
        return matching[0]
    if matching:
        choices = ", ".join(f"{model.name} ({model.source})" for model in matching)
        raise NoSuchModel(f"{name} may mean {choices}; give the folder or file")
    similar = [
        model.name
        for model in models
        if get_close_matches(wanted, [model.name.lower(), model.name.lower().rpartition("/")[2]])
    ]
    meant = "'tandem models' lists them"
    if similar:
        meant = f"did you mean {' or '.join(similar[:3])}?"
    if _OF_HUB.fullmatch(name):
        meant += f"; 'tandem pull {name}' downloads it"
    raise NoSuchModel(f"{name}: no such folder, file or model on this machine ({meant})")


def gguf_stem(file_name: str) -> str:
    """Return the name of a GGUF file without its ending and, of a split model, its part."""
    stem = file_name.rpartition("/")[2]
    stem = stem[: -len(GGUF)] if stem.lower().endswith(GGUF) else stem
    return _GGUF_PART.sub("", stem)


def chooses_gguf(choice: str, stem: str) -> bool:
    """Return whether the part of NAME:CHOICE means a file: by its name or the end of it, as Q4_K_M
    does."""
    choice = gguf_stem(choice).lower()
    stem = stem.lower()
    return stem == choice or stem.endswith(tuple(f"{mark}{choice}" for mark in "-_."))


def _is_gguf_of(model: LocalModel, name: str) -> bool:
    repository, _, choice = name.partition(":")
    of, _, stem = model.name.rpartition("/")
    if model.kind != "gguf" or of.lower() != repository.lower():
        return False
    return not choice or chooses_gguf(choice, gguf_stem(stem))


def _of_hub_cache(cache: Path) -> Iterator[LocalModel]:
    """Yield the models of Hugging Face's cache, each from the snapshot that was pulled last, else
    the one that `main` points to, else the newest."""
    for repository in _folders(cache):
        if not repository.name.startswith("models--"):
            continue
        name = repository.name.removeprefix("models--").replace("--", "/")
        snapshot = _snapshot(repository)
        if snapshot is None:
            continue
        model = _transformers_model(snapshot, name, "Hugging Face cache")
        if model is not None:
            yield model
        yield from _gguf_files(snapshot, f"{name}/", "Hugging Face cache")


def _snapshot(repository: Path) -> Path | None:
    snapshots = repository / "snapshots"
    for ref in (PULLED_REF, "main"):
        try:
            with open_file(repository / "refs" / ref) as file:
                commit = file.read(_LONGEST_COMMIT).decode("ascii").strip()
        except (OSError, ValueError):
            continue
        if _COMMIT.fullmatch(commit) and (snapshots / commit).is_dir():
            return snapshots / commit
    return max(_folders(snapshots), key=lambda folder: folder.stat().st_mtime, default=None)


def _of_ollama(store: Path) -> Iterator[LocalModel]:
    """Yield the models of Ollama, which has a manifest for each name, and weights in files named by
    their digest."""
    manifests = store / "manifests"
    for path in _files(manifests):
        parts = path.relative_to(manifests).parts  # host, namespace, model, tag
        layers = _read_json(path).get("layers")
        if len(parts) < 3 or not isinstance(layers, list):
            continue
        for layer in layers:
            if not isinstance(layer, dict) or layer.get("mediaType") != GGUF_MODEL_LAYER:
                continue
            digest = str(layer.get("digest", ""))
            weights = store / "blobs" / digest.replace(":", "-")
            if _DIGEST.fullmatch(digest) and weights.is_file():
                names = [part for part in parts[1:-1] if part != "library"]
                name = f"{'/'.join(names)}:{parts[-1]}"
                yield LocalModel(name, weights, "Ollama", weights.stat().st_size)


def _of_folder(folder: Path, place: str) -> Iterator[LocalModel]:
    """Yield the models below a folder, at most two levels down, as LM Studio keeps them:
    publisher/model."""
    yield from _gguf_files(folder, "", place)
    for first in _folders(folder):
        model = _transformers_model(first, first.name, place)
        if model is not None:
            yield model
            continue
        yield from _gguf_files(first, f"{first.name}/", place)
        for second in _folders(first):
            name = f"{first.name}/{second.name}"
            model = _transformers_model(second, name, place)
            if model is not None:
                yield model
            yield from _gguf_files(second, f"{name}/", place)


def _transformers_model(folder: Path, name: str, place: str) -> LocalModel | None:
    """Return the model of a folder in Hugging Face's format; None if it has no weights that can be
    read, or writes no text."""
    config = _read_json(folder / "config.json")
    weights = [path for path in _children(folder) if path.name.endswith(".safetensors")]
    if "model_type" not in config or not weights:
        return None
    if (folder / WEIGHTS_INDEX).exists() and not holds_weights(folder):
        return None  # a download broke off
    architectures = config.get("architectures")
    if isinstance(architectures, list) and not any(
        str(name).endswith(_TEXT_MODELS) for name in architectures
    ):
        return None
    length = config.get("max_position_embeddings")
    family = str(config["model_type"])
    return LocalModel(
        name,
        folder,
        place,
        _size(weights),
        family=family if family.isprintable() else None,
        context_length=length if isinstance(length, int) else None,
    )


def _gguf_files(folder: Path, prefix: str, place: str) -> Iterator[LocalModel]:
    """Yield the GGUF files of a folder; of a model that is split into several, the first."""
    for path in _children(folder):
        stem, ending = path.stem, path.suffix.lower()
        if ending != GGUF or not path.is_file() or stem.lower().startswith("mmproj"):
            continue
        part = _GGUF_PART.search(stem)
        if part is not None and int(part[1]) != 1:
            continue
        parts = (
            [path] if part is None else folder.glob(f"{glob.escape(stem[: part.start()])}-*{GGUF}")
        )
        yield LocalModel(f"{prefix}{stem}", path, place, _size(parts))


def _children(folder: Path) -> list[Path]:
    """Return what lies in a folder, in order; nothing if it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _folders(folder: Path) -> list[Path]:
    return [path for path in _children(folder) if path.is_dir() and not path.name.startswith(".")]


def _files(folder: Path, depth: int = 5) -> Iterator[Path]:
    """Yield the files in a folder and `depth` levels below it. Links may lead in circles, and are
    not followed."""
    for path in _children(folder):
        if path.is_symlink():
            continue
        if path.is_dir() and depth:
            yield from _files(path, depth - 1)
        elif path.is_file():
            yield path


def _size(files: Iterable[Path]) -> int:
    """Return the bytes of those that there are: a link may lead nowhere."""
    return sum(path.stat().st_size for path in files if path.is_file())


def _can_be_shown(model: LocalModel) -> bool:
    """Return whether a terminal shows the name as it is: one that could give it commands is no
    name that anybody types."""
    return model.name.isprintable() and str(model.source).isprintable()


def _read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; an empty one if there is none."""
    try:
        value = read_json(path)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
