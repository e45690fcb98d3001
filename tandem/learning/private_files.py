"""Files that nobody but their owner may read, replaced as a whole. Invariant: a reader sees the old
content or the new, also after this process was killed in the middle."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

FILE_MODE, FOLDER_MODE = 0o600, 0o700


def make_private_folder(folder: Path) -> None:
    """Make a folder, and those above it, unless it is there. Raises OSError."""
    folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)


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


def append_privately(path: Path, content: bytes) -> None:
    """Add to the end of a file that is there. Raises OSError, with nothing added: what a full disk
    took of `content` is cut off again."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        end = os.lseek(handle, 0, os.SEEK_END)
        try:
            written = os.write(handle, content)
            if written != len(content):
                raise OSError(f"{path}: only {written} of {len(content)} bytes could be written")
        except OSError:
            os.ftruncate(handle, end)
            raise
    finally:
        os.close(handle)


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
