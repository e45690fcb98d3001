"""The adapters of one tenant on disk: their versions, which of them is in use, and what is in
training.

One JSON file says what is in use; adapters and the state of training are safetensors beside it.
Another process may roll back or reset meanwhile: every change reads the file first, under a lock,
and `changed` tells a reader to read it again. Invariants: files are private, and replaced as a
whole; what is in use was complete on disk before it was; the adapters of another model are never
read.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.backends.adaptation import Weights
from tandem.runtime.private_files import make_private_folder, replace_privately
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

STATE = "learning.json"
TEXTS = "texts.bin"
TRAINING = "training.safetensors"
MOST_VERSIONS = 5
_TENSOR = "adapter"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Version:
    """One adapter. `before` and `after` are the acceptance on held-back texts, without any adapter
    and with this one; the seconds are those of its training, from the version before it on."""

    number: int
    frozen: float
    before: float
    after: float
    held_back_tokens: int
    trained_tokens: int
    seconds: float
    cpu_seconds: float
    made_at: str


@dataclass(frozen=True, slots=True)
class LearningState:
    """What is in use: `used` is the number of a version, 0 for none. `generation` changes when
    everything is forgotten."""

    model: str
    generation: str
    used: int = 0
    newest: int = 0
    versions: tuple[Version, ...] = ()

    @property
    def version(self) -> Version | None:
        """The version in use."""
        return next((each for each in self.versions if each.number == self.used), None)


class AdapterVersions:
    """Versions in `folder`, for a `model` (a hash of its weights and the layout of its adapters).
    Not for two threads at once. What it writes may raise OSError."""

    def __init__(self, folder: Path, model: str) -> None:
        self.folder = folder
        self._model = model
        self._seen: tuple[int, int] | None = None

    @property
    def changed(self) -> bool:
        """True if the state was written since it was last read here; one call of the system."""
        return self._stamp() != self._seen

    def read(self) -> LearningState:
        """Return the state; an empty one where there is none for this model, with one warning where
        there is one that cannot be read."""
        self._seen = self._stamp()
        state = read_state(self.folder)
        if state is None or state.model != self._model:
            return LearningState(self._model, secrets.token_hex(8))
        return state

    def weights(self, number: int) -> Weights | None:
        """Return the weights of a version; None, with one warning, where they cannot be read."""
        tensors = _read_tensors(self._path(number))
        weights = tensors.get(_TENSOR)
        if weights is None or weights.dtype != np.float32 or weights.ndim != 1:
            return None
        return weights

    def add(self, state: LearningState, weights: Weights, version: Version) -> LearningState | None:
        """Keep an adapter as the next version, and use it. Returns the new state; None, with
        nothing changed, where somebody rolled back or reset meanwhile."""
        with self._changing() as current:
            same_model = current is not None and current.model == self._model
            if current is not None and same_model and _begins(current) != _begins(state):
                return None
            number = state.newest + 1
            replace_privately(self._path(number), _packed({_TENSOR: weights}))
            versions = (*state.versions, replace(version, number=number))[-MOST_VERSIONS:]
            after = replace(state, used=number, newest=number, versions=versions)
            self._write(after)
            for path in self.folder.glob("adapter-*.safetensors"):
                if path.name not in {self._path(each.number).name for each in versions}:
                    path.unlink(missing_ok=True)
        return after

    def roll_back(self) -> LearningState | None:
        """Use the version before the one in use, or none; returns the new state, None where none
        was in use."""
        with self._changing() as state:
            if state is None or not state.used:
                return None
            before = [each.number for each in state.versions if each.number < state.used]
            after = replace(state, used=max(before, default=0))
            self._write(after)
            (self.folder / TRAINING).unlink(missing_ok=True)
        return after

    def reset(self) -> None:
        """Forget everything: texts, adapters, and what is in training."""
        with self._changing() as state:
            model = self._model if state is None else state.model
            self._write(LearningState(model, secrets.token_hex(8)))
            (self.folder / TEXTS).unlink(missing_ok=True)
            (self.folder / TRAINING).unlink(missing_ok=True)
            for path in self.folder.glob("adapter-*.safetensors"):
                path.unlink(missing_ok=True)

    def keep_training(self, state: LearningState, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Keep the state of training, unless somebody reset meanwhile."""
        with self._changing() as current:
            if current is None or current.model != self._model:
                self._write(state)
            elif current.generation != state.generation:
                return
            content = _packed(tensors, {"begins": _begins(state)})
            replace_privately(self.folder / TRAINING, content, durable=False)

    def training(self, state: LearningState) -> dict[str, NDArray[Any]]:
        """Return the state of training that began with what is in use; empty where there is
        none."""
        path = self.folder / TRAINING
        tensors = _read_tensors(path)
        if not tensors or _metadata(path).get("begins") != _begins(state):
            return {}
        return tensors

    def _path(self, number: int) -> Path:
        return self.folder / f"adapter-{number}.safetensors"

    def _write(self, state: LearningState) -> None:
        content = {"format": _FORMAT, **asdict(state)}
        replace_privately(self.folder / STATE, json.dumps(content, indent=1).encode())
        self._seen = self._stamp()

    def _stamp(self) -> tuple[int, int] | None:
        try:
            status = (self.folder / STATE).stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino

    @contextmanager
    def _changing(self) -> Iterator[LearningState | None]:
        """Yield the state as it is on disk, for one process at a time. The lock is on the folder,
        since the file itself is replaced. Not every file system has locks."""
        make_private_folder(self.folder)
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            with suppress(OSError):
                fcntl.flock(folder, fcntl.LOCK_EX)
            yield read_state(self.folder)
        finally:
            os.close(folder)


def read_state(folder: Path) -> LearningState | None:
    """Return what a folder says; None where it says nothing, with one warning where it cannot be
    read."""
    path = folder / STATE
    try:
        content = json.loads(path.read_text("utf-8"))
        if content.pop("format") != _FORMAT:
            raise ValueError("another format")
        versions = tuple(Version(**each) for each in content.pop("versions"))
        state = LearningState(**content, versions=versions)
        _check_types(state)
        for version in versions:
            _check_types(version)
        return state
    except FileNotFoundError:
        return None
    except Exception as error:  # such as RecursionError: whatever a file has, answers go on
        log.warning("what was learned is left out", file=str(path), reason=repr(error))
        return None


_KINDS: dict[object, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (int, float)}


def _check_types(record: LearningState | Version) -> None:
    """Raise TypeError for a text or a number that is something else, or a number below 0."""
    for field in fields(record):
        value = getattr(record, field.name)
        if (kinds := _KINDS.get(field.type)) is None:
            continue
        fits = type(value) in kinds  # True is no number here
        if not fits or (kinds != (str,) and not value >= 0):
            raise TypeError(f"{field.name} is {value!r:.40}")


def _begins(state: LearningState) -> str:
    return f"{state.generation} {state.used}"


# safetensors is imported where it is used: a drafter that learns nothing may lack it.


def _packed(tensors: Mapping[str, NDArray[Any]], metadata: dict[str, str] | None = None) -> bytes:
    from safetensors.numpy import save

    return save(dict(tensors), metadata)


def _read_tensors(path: Path) -> dict[str, NDArray[Any]]:
    from safetensors.numpy import load

    try:
        return load(path.read_bytes())
    except FileNotFoundError:
        return {}
    except Exception as error:  # as above
        log.warning("an adapter is left out", file=str(path), reason=repr(error))
        return {}


def _metadata(path: Path) -> dict[str, str]:
    """Read the metadata of a safetensors file, which begins with the length of its JSON header."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header: dict[str, Any] = json.loads(file.read(length))
    metadata: dict[str, str] = header.get("__metadata__", {})
    return metadata
