"""What is learned, on disk: a private folder for each tenant, named by a hash, with the versions of
its adapter, which of them is in use, and what is in training.

One JSON file says what is in use; adapters and the state of training are safetensors beside it.
Another process may roll back or reset meanwhile: every change reads the file first, under a lock,
and `changed` tells a reader to read it again. Invariants: a tenant's folder is used for that tenant
alone; a caller with many tenants displaces its own and nobody else's, and no more folders are made
than the limit; files are private, and replaced as a whole; what is in use was complete on disk
before it was; the adapters of another model are never read.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeFloat, NonNegativeInt, TypeAdapter

from tandem.learning.adaptation import Weights
from tandem.net.tenant import Tenant
from tandem.runtime.private_files import (
    make_private_folder,
    replace_privately,
    user_state_folder,
)
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

STATE = "learning.json"
TEXTS = "texts.bin"
TRAINING = "training.safetensors"
MAX_VERSIONS = 5
MAX_TENANTS = 64
_CALLER_DIGITS = 12
_TENANT_DIGITS = 20
_ADAPTER = "adapter"
_BEGAN_WITH = "began_with"


@dataclass(frozen=True, slots=True)
class Version:
    """One adapter. Acceptance is that on validation texts, of `held_back_tokens` together: without
    any adapter, with the version before this one, and with this one. The seconds are those of its
    training, from that version on. `tandem learning show --json` prints these names."""

    number: NonNegativeInt
    acceptance_without: NonNegativeFloat
    acceptance_before: NonNegativeFloat
    acceptance_after: NonNegativeFloat
    held_back_tokens: NonNegativeInt
    trained_tokens: NonNegativeInt
    seconds: NonNegativeFloat
    cpu_seconds: NonNegativeFloat
    made_at: str


@dataclass(frozen=True, slots=True)
class LearningState:
    """What is in use: `used` is the number of a version, 0 for none. `generation` changes when
    everything is forgotten."""

    model: str
    generation: str
    used: NonNegativeInt = 0
    newest: NonNegativeInt = 0
    versions: tuple[Version, ...] = ()
    format: Literal[2] = 2

    @property
    def began_with(self) -> str:
        """What a training that begins now starts from."""
        return f"{self.generation} {self.used}"


_STATE = TypeAdapter(LearningState)


class AdapterStore:
    """Adapters in `folder`, for a `model` (a hash of its weights and the layout of its adapters).
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
        path = self._path(number)
        try:
            weights = _tensors(path)[_ADAPTER]
            if weights.dtype != np.float32 or weights.ndim != 1:
                raise ValueError(f"{weights.ndim} dimensions of {weights.dtype}")
        except Exception as error:  # whatever a file has, answers go on
            _leave_out(path, error)
            return None
        return weights

    def add(self, state: LearningState, weights: Weights, version: Version) -> LearningState | None:
        """Keep an adapter as the next version, and use it. Returns the new state; None, with
        nothing changed, where somebody rolled back or reset meanwhile."""
        with self._changing() as current:
            same_model = current is not None and current.model == self._model
            if current is not None and same_model and current.began_with != state.began_with:
                return None
            number = state.newest + 1
            replace_privately(self._path(number), _packed({_ADAPTER: weights}))
            versions = (*state.versions, replace(version, number=number))[-MAX_VERSIONS:]
            after = replace(state, used=number, newest=number, versions=versions)
            self._write(after)
            self._delete_adapters(but={self._path(each.number) for each in versions})
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
            self._delete_adapters()

    def keep_training(self, state: LearningState, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Keep the state of training, unless somebody reset meanwhile."""
        with self._changing() as current:
            if current is None or current.model != self._model:
                self._write(state)
            elif current.generation != state.generation:
                return
            content = _packed({**tensors, _BEGAN_WITH: _bytes(state.began_with)})
            replace_privately(self.folder / TRAINING, content, durable=False)

    def training(self, state: LearningState) -> dict[str, NDArray[Any]]:
        """Return the state of training that began with what is in use; empty where there is
        none, with one warning where it cannot be read."""
        path = self.folder / TRAINING
        try:
            tensors = _tensors(path)
            began_with = tensors.pop(_BEGAN_WITH)
        except FileNotFoundError:
            return {}
        except Exception as error:  # likewise
            _leave_out(path, error)
            return {}
        return tensors if np.array_equal(began_with, _bytes(state.began_with)) else {}

    def _path(self, number: int) -> Path:
        return self.folder / f"adapter-{number}.safetensors"

    def _delete_adapters(self, but: Collection[Path] = ()) -> None:
        for path in self.folder.glob("adapter-*.safetensors"):
            if path not in but:
                path.unlink(missing_ok=True)

    def _write(self, state: LearningState) -> None:
        replace_privately(self.folder / STATE, _STATE.dump_json(state, indent=1))
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
        return _STATE.validate_json(path.read_bytes(), strict=True)
    except FileNotFoundError:
        return None
    except Exception as error:  # likewise
        _leave_out(path, error)
        return None


def default_folder() -> Path:
    """Return the user's own folder: in $XDG_STATE_HOME, or ~/.local/state."""
    return user_state_folder("learning")


def tenant_folders(root: Path) -> list[Path]:
    """Return the folders of all tenants, by name."""
    if not root.is_dir():
        return []
    return sorted(each for each in root.iterdir() if each.is_dir())


def open_folder(root: Path, tenant: Tenant) -> Path | None:
    """Return the tenant's folder in `root`, made if it is not there; None where there is no room
    for another one. Raises OSError."""
    make_private_folder(root)
    caller = _hex_digest(tenant.caller.encode())[:_CALLER_DIGITS]
    folder = root / f"{caller}-{_hex_digest(tenant.key)[:_TENANT_DIGITS]}"
    if not folder.is_dir():
        folders = tenant_folders(root)
        if len(folders) >= MAX_TENANTS:
            same = [each for each in folders if each.name.startswith(f"{caller}-")]
            if not same:
                return None
            shutil.rmtree(min(same, key=_last_use))
        make_private_folder(folder)
    return folder


def _last_use(folder: Path) -> float:
    times = [path.stat().st_mtime for name in (STATE, TEXTS) if (path := folder / name).exists()]
    return max(times, default=0.0)


def _hex_digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _leave_out(path: Path, error: Exception) -> None:
    # One line: pydantic spells out what it was given.
    log.warning("what was learned is left out", file=str(path), reason=f"{error!r:.200}")


def _bytes(text: str) -> NDArray[np.uint8]:
    return np.frombuffer(text.encode(), np.uint8)


# safetensors is imported where it is used: `tandem learning` need not wait for it.


def _packed(tensors: Mapping[str, NDArray[Any]]) -> bytes:
    from safetensors.numpy import save

    return save(dict(tensors))


def _tensors(path: Path) -> dict[str, NDArray[Any]]:
    from safetensors.numpy import load

    return load(path.read_bytes())
