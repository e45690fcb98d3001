"""Files that nobody but their owner may read: what a service keeps of its users' texts and keys.

Invariants: a file is readable by its owner alone from its first moment on; a reader sees the old
content of a replaced file or the new, also after this process was killed in the middle."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

_FILE_MODE = 0o600
_FOLDER_MODE = 0o700


def user_state_folder(name: str) -> Path:
    """Return the folder of that name in the user's state folder."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "tandem" / name


def make_private_folder(folder: Path) -> None:
    """Make a folder, and those above it, unless it is there. Raises OSError."""
    folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)


def replace_privately(path: Path, content: bytes, durable: bool = True) -> None:
    """Replace the file; `durable`: also after a power cut. Raises OSError, with the old file
    kept."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(_create(new), "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        with suppress(OSError):
            new.unlink()
        raise


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _FILE_MODE)
