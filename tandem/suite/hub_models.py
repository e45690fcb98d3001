"""Models of the Hugging Face hub: found at one commit, and downloaded by the hub's own library into
its cache.

Taken are safetensors or GGUF weights, tokenizers and configurations: nothing that is run when it is
read. Invariant: the commit is recorded, so that `local_models` finds the model at it, only once
every file is there with its hash.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

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
from tandem.suite.local_models import chooses_gguf, gguf_stem

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
    def expected(self) -> str:
        """The hash that its content must have."""
        return self.sha256 or self.git_hash

    def is_at(self, path: Path) -> bool:
        """Return whether the file at `path` has this content."""
        with path.open("rb") as file:
            if self.sha256 is not None:
                return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256
            hasher = hashlib.sha1(f"blob {self.size}\0".encode(), usedforsecurity=False)
            return hashlib.file_digest(file, lambda: hasher).hexdigest() == self.git_hash


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
    """The hub, asked through its own library."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        """Prepare questions. `environment` has `HF_ENDPOINT`, `HF_TOKEN`, and where the cache
        is."""
        self.endpoint = hub_endpoint(environment)
        self._cache = hub_cache(environment)
        self._offline = offline(environment)
        self._token = _token(environment)

    def find(self, name: str, revision: str = "main") -> HubModel:
        """Return a model at the commit that a branch, tag or commit means now. Raises
        HubUnreachable within a few seconds, and CannotPull."""
        if self._offline:
            raise HubUnreachable(
                f"{name} cannot be downloaded: HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set"
            )
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read when it is imported
        from huggingface_hub import HfApi

        api = HfApi(self.endpoint, token=self._token or False)

        def ask() -> Any:
            return api.model_info(name, revision=revision, files_metadata=True, timeout=CONNECT_S)

        try:
            answer = within(ANSWER_S, ask, None)
            model = None if answer is None else _model_of(answer)
        except Exception as error:  # such as RecursionError: an endpoint may answer anything
            raise self._refusal(error, name, revision) from error
        if model is None:
            raise self._unreachable(f"no answer within {ANSWER_S:g} s")
        if model.name != name:  # kept under that name, it would take that model's place
            now = f"{self.endpoint} calls it {model.name}"
            raise CannotPull(f"{name}: {now}; if that is what you want: tandem pull {model.name}")
        if _COMMIT.fullmatch(revision) and model.commit != revision:
            raise CannotPull(f"{name}: {self.endpoint} has commit {model.commit}, not {revision}")
        return model

    def download(self, model: HubModel, files: tuple[HubFile, ...], *, silent: bool = True) -> Path:
        """Download files that are not in the cache yet, record the commit, and return the folder of
        the model. Unless `silent`, bars on standard error show how far it is. Raises
        HubUnreachable, and CannotPull for what is refused or damaged."""
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

        repository = cached_repository(self._cache, model.name)
        folder = repository / "snapshots" / model.commit
        missing = [file for file in files if not (folder / file.name).exists()]
        if missing:
            self._check_room(missing)
            (disable_progress_bars if silent else enable_progress_bars)()
            try:
                snapshot_download(
                    model.name,
                    revision=model.commit,
                    allow_patterns=[file.name for file in missing],
                    cache_dir=self._cache,
                    endpoint=self.endpoint,
                    token=self._token or False,
                )
            except Exception as error:
                raise self._refusal(error, model.name, model.commit) from error
        for file in missing:
            self._check(file, folder / file.name)
        (repository / "refs").mkdir(exist_ok=True)
        _write(repository / "refs" / PULLED_REF, model.commit)
        return folder

    def _check_room(self, files: list[HubFile]) -> None:
        self._cache.mkdir(parents=True, exist_ok=True)
        needed = sum(file.size for file in files)
        if needed > (free := shutil.disk_usage(self._cache).free):
            why = f"needs {shown_size(needed)}, of which {shown_size(free)} are free"
            raise CannotPull(f"{self._cache} {why}; HF_HOME moves it")

    def _check(self, file: HubFile, place: Path) -> None:
        """Raise for a file that is missing, or is not as the hub says; that one is deleted."""
        if not place.exists():  # the library is content with what a cache has
            raise self._unreachable(f"{file.name} was not downloaded")
        if not file.is_at(place):
            place.resolve().unlink()
            place.unlink(missing_ok=True)
            why = f"what was downloaded does not have the hash {file.expected[:16]}…"
            raise CannotPull(f"{file.name}: {why} that the hub says; it was deleted")

    def _refusal(self, error: Exception, name: str, revision: str) -> CannotPull:
        """Return what an error of the library means."""
        import httpx2
        from huggingface_hub import errors

        match error:
            case errors.GatedRepoError():
                page = f"{self.endpoint}/{name}"
                why = f"is gated: ask for access at {page}, then set HF_TOKEN to a token of yours"
                if self._token:
                    why = f"is gated, and HF_TOKEN has no access yet: ask for it at {page}"
                return CannotPull(f"{name} {why}")
            case errors.RevisionNotFoundError():
                return CannotPull(f"{name} has no branch, tag or commit {revision!r}")
            case errors.RepositoryNotFoundError():
                why = "is private: set HF_TOKEN to a token that may read it"
                if self._token:
                    why = "HF_TOKEN may not read it"
                return CannotPull(f"{name} is not at {self.endpoint}, or {why}")
            case errors.LocalEntryNotFoundError() | httpx2.HTTPError() | httpx2.InvalidURL():
                return self._unreachable(reason_of(error))
            case OSError():
                return self._unreachable(reason_of(error))
        why = f"{self.endpoint} does not answer as a Hugging Face hub does"
        return CannotPull(f"{why} ({words_of(error)}); see HF_ENDPOINT")

    def _unreachable(self, why: str) -> HubUnreachable:
        return HubUnreachable(
            f"{self.endpoint} cannot be reached ({why}); 'tandem models' lists what is here"
        )


def _model_of(answer: Any) -> HubModel:
    """Read the library's answer about a model. Raises some exception for anything else."""
    name = answer.id
    commit = answer.sha
    if not _NAME.fullmatch(name) or not _COMMIT.fullmatch(commit):
        raise ValueError(f"{name!r} at {commit!r}")
    files = tuple(
        _file_of(sibling)
        for sibling in answer.siblings
        # One in a folder, or with an odd name, is not taken.
        if _FILE_NAME.fullmatch(sibling.rfilename)
    )
    return HubModel(name, commit, files)


def _file_of(sibling: Any) -> HubFile:
    sha256 = None if sibling.lfs is None else str(sibling.lfs.sha256)
    file = HubFile(sibling.rfilename, int(sibling.size), str(sibling.blob_id), sha256)
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", file.expected):
        raise ValueError(f"the hash of {file.name}")
    return file


def _token(environment: Mapping[str, str]) -> str:
    """Return the token that the hub's library would send; empty without one."""
    if given := environment.get("HF_TOKEN"):
        return given.strip()
    place = environment.get("HF_TOKEN_PATH") or hub_home(environment) / "token"
    try:
        return Path(place).read_text("ascii").strip()
    except (OSError, ValueError):
        return ""


def _write(path: Path, text: str) -> None:
    """Replace a small file at once."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_text(text, "ascii")
    fresh.replace(path)
