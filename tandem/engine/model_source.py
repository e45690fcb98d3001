"""Which model is meant, a folder or a pinned name, and whether it can be one at all.

What is found wrong here is said before torch is waited for. Must not import torch or transformers.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.core.errors import InvalidArgument

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What every `from_pretrained` of transformers is given."""

    name: str
    local: bool
    options: dict[str, Any]


def find_source(folder_or_name: str | Path, revision: str | None = None) -> ModelSource:
    """The model in a folder, or of that name and commit. Raises InvalidArgument for what is
    neither, and for a folder without a model's configuration."""
    folder = Path(folder_or_name)
    if folder.exists():
        _check_config(folder)
    elif revision is None:
        raise InvalidArgument(
            "model", f"{folder_or_name} is not a folder; to load it by name, give its revision"
        )
    elif not _COMMIT.fullmatch(revision):
        raise InvalidArgument("revision", f"{revision!r} is not a commit hash of 40 hex digits")
    local = folder.exists()
    options = {"revision": revision, "local_files_only": local, "trust_remote_code": False}
    return ModelSource(str(folder_or_name), local, options)


def _check_config(folder: Path) -> None:
    if not folder.is_dir():
        raise InvalidArgument("model", f"{folder} is a file; give the folder of a model")
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidArgument("model", f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict) or "model_type" not in config:
        raise InvalidArgument("model", f"{path} does not name a model_type")
