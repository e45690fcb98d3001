"""Models of the Hugging Face hub: found at one commit, and downloaded into Hugging Face's cache.

Taken are safetensors or GGUF weights, tokenizers and configurations: nothing that is run when it is
read. Invariant: no file gets its place before its hash was checked; what a broken download left is
continued by the next one. The commit is recorded, and `local_models` finds the model at it.

The hub's own library discards a download that breaks off, so the requests are made here; the layout
of the cache is that library's.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self
from urllib.parse import quote

import httpx2

from tandem.backends.hub_cache import (
    ANSWER_S,
    CONNECT_S,
    PULLED_REF,
    WEIGHTS_INDEX,
    cached_repository,
    hub_cache,
    hub_endpoint,
    hub_home,
    offline,
    reason_of,
    within,
)
from tandem.backends.model_source import GGUF
from tandem.core.errors import TandemError
from tandem.core.reading import words_of
from tandem.core.version import __version__
from tandem.suite.local_models import chooses_gguf, gguf_stem

SILENT_S = 30.0
"""Longest silence of a download before it counts as broken."""
TRIES = 3
PAUSE_S = 1.0
CHUNK_BYTES = 2**20

CONFIGURATION = frozenset(
    {
        "added_tokens.json",
        "chat_template.jinja",
        "chat_template.json",
        "config.json",
        "generation_config.json",
        "merges.txt",
        WEIGHTS_INDEX,
        "preprocessor_config.json",
        "processor_config.json",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "vocab.json",
        "vocab.txt",
    }
)
"""Files that are taken beside safetensors weights. Code is not, nor is any pickle."""
_WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")
_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_FILE_NAME = re.compile(r"\w[\w.-]*")
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")

OnBytes = Callable[[int], None]


class CannotPull(TandemError):
    """A model that the hub does not have or does not give, or that is not as it says."""


class HubUnreachable(CannotPull):
    """The hub does not answer."""


@dataclass(frozen=True, slots=True)
class ModelName:
    """What `tandem pull` is given: NAME, NAME:FILE of a GGUF repository, either with @REVISION."""

    name: str
    gguf: str = ""
    revision: str = "main"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a name. Raises CannotPull for a text that is no name."""
        named, at, revision = text.partition("@")
        name, _, gguf = named.partition(":")
        if not _NAME.fullmatch(name) or (at and not revision):
            raise CannotPull(f"{text!r} is not NAME, NAME:QUANTISATION or NAME@REVISION of the hub")
        return cls(name, gguf, revision or "main")


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository. `sha256` of large files; of all others `git_hash`, which is git's
    SHA-1 of a blob."""

    name: str
    size: int
    git_hash: str
    sha256: str | None = None

    @property
    def place(self) -> str:
        """The file's name among the cache's blobs."""
        return self.sha256 or self.git_hash

    def hasher(self) -> Any:
        """Return a hash whose digest of the whole content is `place`."""
        if self.sha256 is not None:
            return hashlib.sha256()
        return hashlib.sha1(f"blob {self.size}\0".encode(), usedforsecurity=False)


@dataclass(frozen=True, slots=True)
class HubModel:
    """A repository at one commit."""

    name: str
    commit: str
    files: tuple[HubFile, ...]


def chosen_files(model: HubModel, gguf: str = "") -> tuple[HubFile, ...]:
    """Return the files to download: safetensors weights with what belongs to them, or the GGUF file
    that `gguf` names, or the only one. Raises CannotPull, with a list where there is a choice."""
    weights = [file for file in model.files if _WEIGHTS.fullmatch(file.name)]
    if any(file.name == "model.safetensors" for file in weights):
        weights = [file for file in weights if file.name == "model.safetensors"]
    files: dict[str, list[HubFile]] = {}
    for file in model.files:
        name = file.name.lower()
        if name.endswith(GGUF) and not name.startswith("mmproj"):
            files.setdefault(gguf_stem(file.name), []).append(file)
    if weights and not gguf:
        beside = [file for file in model.files if file.name in CONFIGURATION]
        return (*beside, *weights)
    if not files:
        raise CannotPull(f"{model.name} {_has_no_weights(model, gguf)}")
    chosen = [stem for stem in files if chooses_gguf(gguf, stem)] if gguf else [*files]
    if len(chosen) == 1:
        return tuple(files[chosen[0]])
    listed = ", ".join(f"{stem} ({shown_size(_size(files[stem]))})" for stem in sorted(files))
    what = f"no file that {gguf!r} alone means" if gguf else "several GGUF files"
    raise CannotPull(f"{model.name} has {what}; give one as {model.name}:FILE: {listed}")


def shown_size(count: int) -> str:
    """Return a number of bytes in MB or GB, as `tandem models` shows it."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{max(1, round(count / 1e6))} MB"


def _size(files: list[HubFile]) -> int:
    return sum(file.size for file in files)


def _has_no_weights(model: HubModel, gguf: str) -> str:
    if gguf:
        return "has no GGUF files"
    if any(file.name.endswith(_PICKLES) for file in model.files):
        return (
            "has weights in pickle files alone, which can run code when they are read; look for a"
            " repository with safetensors or GGUF"
        )
    return "has neither safetensors nor GGUF weights"


class Hub:
    """Connections to the hub; a context manager."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        """Prepare connections. `environment` has `HF_ENDPOINT`, `HF_TOKEN`, and where the cache
        is."""
        self.endpoint = hub_endpoint(environment)
        self._cache = hub_cache(environment)
        self._offline = offline(environment)
        self._token = _token(environment)
        headers = {"user-agent": f"tandem/{__version__}"}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        self._client = httpx2.Client(
            headers=headers,
            follow_redirects=True,  # without the token, where they lead to another host
            timeout=httpx2.Timeout(SILENT_S, connect=CONNECT_S),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def find(self, name: str, revision: str = "main") -> HubModel:
        """Return a model at the commit that a branch, tag or commit means now. Raises
        HubUnreachable within a few seconds, and CannotPull."""
        if self._offline:
            raise HubUnreachable(
                f"{name} cannot be downloaded: HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set"
            )
        url = f"{self.endpoint}/api/models/{name}/revision/{quote(revision, safe='')}?blobs=true"

        def ask() -> httpx2.Response | None:
            return self._client.get(url, timeout=httpx2.Timeout(ANSWER_S, connect=CONNECT_S))

        try:
            answer = within(ANSWER_S, ask, None)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise self._unreachable(reason_of(error)) from error
        if answer is None:
            raise self._unreachable(f"no answer within {ANSWER_S:g} s")
        self._check(answer, name, revision)
        try:
            model = _model_of(answer.json())
        except Exception as error:  # such as RecursionError: an endpoint may answer anything
            why = f"{self.endpoint} does not answer as a Hugging Face hub does"
            raise CannotPull(f"{why} ({words_of(error)}); see HF_ENDPOINT") from error
        if model.name != name:  # kept under that name, it would take that model's place
            now = f"{self.endpoint} calls it {model.name}"
            raise CannotPull(f"{name}: {now}; if that is what you want: tandem pull {model.name}")
        if _COMMIT.fullmatch(revision) and model.commit != revision:
            raise CannotPull(f"{name}: {self.endpoint} has commit {model.commit}, not {revision}")
        return model

    def download(
        self, model: HubModel, files: tuple[HubFile, ...], on_bytes: OnBytes = lambda count: None
    ) -> Path:
        """Download files that are not in the cache yet, record the commit, and return the folder of
        the model. `on_bytes` is told how many more bytes are there, also of what was there before.
        Raises HubUnreachable, and CannotPull for what is refused or damaged."""
        repository = cached_repository(self._cache, model.name)
        snapshot = repository / "snapshots" / model.commit
        blobs = repository / "blobs"
        for folder in (snapshot, blobs, repository / "refs"):
            folder.mkdir(parents=True, exist_ok=True)
        self._check_room(blobs, files)
        for file in files:
            place = snapshot / file.name
            blob = blobs / file.place
            if place.exists():
                on_bytes(file.size)
                continue
            if blob.exists():
                on_bytes(file.size)
            else:
                with _alone(blobs / f"{file.place}.incomplete") as partial:
                    self._fetch(model, file, partial, on_bytes)
                (blobs / f"{file.place}.incomplete").replace(blob)
            _link(place, blob)
        _write(repository / "refs" / PULLED_REF, model.commit)
        return snapshot

    def _check_room(self, blobs: Path, files: tuple[HubFile, ...]) -> None:
        missing = 0
        for file in files:
            if not (blobs / file.place).exists():
                with suppress(FileNotFoundError):
                    missing -= (blobs / f"{file.place}.incomplete").stat().st_size
                missing += file.size
        if missing > (free := shutil.disk_usage(blobs).free):
            why = f"needs {shown_size(missing)}, of which {shown_size(free)} are free"
            raise CannotPull(f"{blobs} {why}; HF_HOME moves it")

    def _fetch(self, model: HubModel, file: HubFile, partial: BinaryIO, on_bytes: OnBytes) -> None:
        """Complete a partial file and check it; one that is damaged is emptied."""
        hasher = file.hasher()
        there = 0
        while chunk := partial.read(CHUNK_BYTES):
            hasher.update(chunk)
            there += len(chunk)
        on_bytes(there)
        tries = 0
        while there < file.size:
            before = there
            try:
                for chunk, begins in self._stream(model, file, there):
                    if begins and there:  # the server begins anew
                        on_bytes(-there)
                        hasher = file.hasher()
                        there = 0
                        partial.seek(0)
                        partial.truncate()
                    partial.write(chunk)
                    hasher.update(chunk)
                    there += len(chunk)
                    on_bytes(len(chunk))
                partial.flush()
                if there < file.size:
                    raise httpx2.ReadError("the connection was closed")
            except httpx2.HTTPError as error:
                partial.flush()
                tries = 1 if there > before else tries + 1
                if tries >= TRIES:
                    done = f"{shown_size(there)} of {shown_size(file.size)}"
                    why = f"{file.name}: broken off after {done} ({reason_of(error)})"
                    raise HubUnreachable(f"{why}; the same command goes on from there") from error
                time.sleep(PAUSE_S)
        if there != file.size or hasher.hexdigest() != file.place:
            partial.truncate(0)
            why = f"what was downloaded does not have the hash {file.place[:16]}… that the hub says"
            raise CannotPull(f"{file.name}: {why}; it was deleted")

    def _stream(self, model: HubModel, file: HubFile, there: int) -> Iterator[tuple[bytes, bool]]:
        """Yield the content after the first `there` bytes in chunks, and with the first of them
        whether it is the file's beginning instead."""
        url = f"{self.endpoint}/{model.name}/resolve/{model.commit}/{quote(file.name)}"
        headers = {"accept-encoding": "identity"}
        if there:
            headers["range"] = f"bytes={there}-"
        with self._client.stream("GET", url, headers=headers) as answer:
            if answer.status_code in (429, 500, 502, 503, 504):
                raise httpx2.ReadError(f"status {answer.status_code}")
            self._check(answer, model.name, model.commit)
            begins = answer.status_code != 206
            for chunk in answer.iter_bytes():  # as they come: one of a size would be lost
                yield chunk, begins
                begins = False

    def _check(self, answer: httpx2.Response, name: str, revision: str) -> None:
        """Raise CannotPull for a status that is a refusal."""
        if answer.is_success:
            return
        match answer.headers.get("x-error-code", ""), answer.status_code:
            case "GatedRepo", _:
                page = f"{self.endpoint}/{name}"
                why = f"is gated: ask for access at {page}, then set HF_TOKEN to a token of yours"
                if self._token:
                    why = f"is gated, and HF_TOKEN has no access yet: ask for it at {page}"
                raise CannotPull(f"{name} {why}")
            case "RevisionNotFound", _:
                raise CannotPull(f"{name} has no branch, tag or commit {revision!r}")
            case _, 401 | 403 | 404:
                why = "is private: set HF_TOKEN to a token that may read it"
                if self._token:
                    why = "HF_TOKEN may not read it"
                raise CannotPull(f"{name} is not at {self.endpoint}, or {why}")
        raise CannotPull(f"{self.endpoint} answers with status {answer.status_code} for {name}")

    def _unreachable(self, why: str) -> HubUnreachable:
        return HubUnreachable(
            f"{self.endpoint} cannot be reached ({why}); 'tandem models' lists what is here"
        )


def _model_of(answer: Any) -> HubModel:
    """Read the hub's answer about a model. Raises some exception for anything else."""
    files = [_file_of(sibling) for sibling in answer["siblings"]]
    name = answer["id"]
    commit = answer["sha"]
    if not _NAME.fullmatch(name) or not _COMMIT.fullmatch(commit):
        raise ValueError(f"{name!r} at {commit!r}")
    return HubModel(name, commit, tuple(file for file in files if file is not None))


def _file_of(sibling: Any) -> HubFile | None:
    """Return a file of the repository; None for one in a folder, or with an odd name, which is not
    taken."""
    name = str(sibling["rfilename"])
    if not _FILE_NAME.fullmatch(name):
        return None
    large = sibling.get("lfs")
    sha256 = None if not large else str(large["sha256"])
    file = HubFile(name, int(sibling["size"]), str(sibling["blobId"]), sha256)
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", file.place):
        raise ValueError(f"the hash of {name}")
    return file


def _token(environment: Mapping[str, str]) -> str:
    """Return the token that the hub's library would send; empty without one."""
    if given := environment.get("HF_TOKEN"):
        return given.strip()
    place = environment.get("HF_TOKEN_PATH") or hub_home(environment) / "token"
    with suppress(OSError, ValueError):
        return Path(place).read_text("ascii").strip()
    return ""


@contextmanager
def _alone(path: Path) -> Iterator[BinaryIO]:
    """Open a partial file, for one process at a time. Raises CannotPull."""
    with path.open("a+b") as file:
        with suppress(ImportError):  # Windows has no such locks
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise CannotPull(f"{path} is being downloaded by another process") from error
        file.seek(0)
        yield file


def _link(place: Path, blob: Path) -> None:
    """Give a blob its name in the snapshot: a link, or the file itself where there are none."""
    try:
        place.symlink_to(Path("..", "..", "blobs", blob.name))
    except FileExistsError:
        return
    except OSError:
        blob.replace(place)


def _write(path: Path, text: str) -> None:
    """Replace a small file at once."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_text(text, "ascii")
    fresh.replace(path)
