"""Hugging Face's cache of models on this machine, and whether the hub can be reached.

Where nothing answers, libraries of the hub try again for half a minute. So the cache is looked at
first, and where it lacks something the hub is asked once, for a few seconds.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

Outcome = TypeVar("Outcome")

DEFAULT_ENDPOINT = "https://huggingface.co"
PULLED_REF = "tandem-pull"
"""The file among a repository's refs that holds the commit of the last `tandem pull`."""
WEIGHTS_INDEX = "model.safetensors.index.json"
"""The file that says which others hold a large model's weights."""
CONNECT_S = 4.0
ANSWER_S = 6.0
"""Longest wait for the hub's first answer, its name's lookup included."""
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def hub_endpoint(environment: Mapping[str, str] = os.environ) -> str:
    """Return the address of the hub: `HF_ENDPOINT`, or Hugging Face's own."""
    return (environment.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")


def hub_home(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of Hugging Face's libraries: `HF_HOME`, or the one in the home folder."""
    home = Path(environment.get("HOME") or Path.home())
    caches = Path(environment.get("XDG_CACHE_HOME") or home / ".cache")
    return Path(environment.get("HF_HOME") or caches / "huggingface")


def hub_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of cached repositories: `HF_HUB_CACHE`, or the one below `hub_home`."""
    return Path(environment.get("HF_HUB_CACHE") or hub_home(environment) / "hub")


def cached_repository(cache: Path, name: str) -> Path:
    """Return the folder of a model's repository, which may not exist."""
    return cache / f"models--{name.replace('/', '--')}"


def offline(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the environment forbids asking the hub."""
    return any(environment.get(name, "").lower() in ("1", "true", "yes", "on") for name in _OFFLINE)


def cached_snapshot(name: str, commit: str) -> Path | None:
    """Return the folder of a model at a commit, if it is in the cache."""
    folder = cached_repository(hub_cache(), name) / "snapshots" / commit
    return folder if folder.is_dir() else None


def holds_weights(folder: Path) -> bool:
    """Return whether a folder has a configuration and all files of its safetensors weights."""
    if not (folder / "config.json").exists():
        return False
    index = folder / WEIGHTS_INDEX
    try:
        parts = set(json.loads(index.read_bytes())["weight_map"].values())
        return all((folder / part).exists() for part in parts)
    except FileNotFoundError:
        return (folder / "model.safetensors").exists()
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return False


def why_unreachable() -> str:
    """Return why the hub cannot be asked; empty if it answers, with whatever status."""
    if offline():
        return "HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set"
    import httpx2

    def ask() -> str:
        try:
            httpx2.head(hub_endpoint(), timeout=httpx2.Timeout(ANSWER_S, connect=CONNECT_S))
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            return reason_of(error)
        return ""

    return within(ANSWER_S, ask, f"no answer within {ANSWER_S:g} s")


def within(seconds: float, call: Callable[[], Outcome], late: Outcome) -> Outcome:
    """Return what `call` returns, or `late` if that takes longer: looking a name up has no time
    limit, so it is left to a thread. Raises what `call` raises."""
    outcome: list[Outcome] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    return outcome[0] if outcome else late


def reason_of(error: Exception) -> str:
    """Return the first line of an error, or its name."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__
