"""What a service keeps of its users' texts on disk: files that nobody but their owner may read, and
records in them that a killed process cannot spoil.

Invariants: a file is readable by its owner alone from its first moment on; a reader sees the old
content of a replaced file or the new, also after this process was killed in the middle; of appended
records it sees all that are whole, up to the first that is not."""

from __future__ import annotations

import os
import secrets
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from zlib import crc32

_FILE_MODE = 0o600
_FOLDER_MODE = 0o700
_RECORD = struct.Struct("<II")
"""Length and checksum of what follows."""


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


def append_privately(path: Path, content: bytes) -> None:
    """Add to the end of a file that is there. Raises OSError, with nothing added: what a full disk
    took of `content` is cut off again."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
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


def framed(payload: bytes) -> bytes:
    """Return a record: the payload with its length and checksum before it."""
    return _RECORD.pack(len(payload), crc32(payload)) + payload


def framed_records(content: bytes, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield the payload of each record from `start` on, with the place where the record ends, up to
    the first one that is not whole or has another checksum."""
    place = start
    while place + _RECORD.size <= len(content):
        length, checksum = _RECORD.unpack_from(content, place)
        begin = place + _RECORD.size
        place = begin + length
        payload = content[begin:place]
        if len(payload) < length or crc32(payload) != checksum:
            return
        yield place, payload


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _FILE_MODE)
