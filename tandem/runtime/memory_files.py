"""What is remembered of texts, as files: one for each tenant and vocabulary, private to the user
who runs the drafter.

A file is a list of records, each with its length and a checksum; the first one names the
vocabulary. Texts are only appended, each with one `write`, so that a process that is killed loses
no more than the text under way: an incomplete record at the end is passed over, and cut off before
the next one. What was put out of the memory goes when the file is written anew beside the old one,
which it then replaces.

Invariants: files are readable by their owner alone from their first moment on, and their names tell
no tenant's; one process writes in a folder; a file that was deleted is gone, in a running drafter
too (`MemoryFile.deleted`)."""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tandem.runtime.private_files import (
    FILE_MODE,
    append_privately,
    framed,
    framed_records,
    make_private_folder,
    replace_privately,
    unfinished,
    user_state_folder,
)
from tandem.specdec.text_memory import Text
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

SUFFIX = ".memory"
_MAGIC = b"tandem memory 1\0"
_TEXT = struct.Struct("<QII")
"""`before`, `position` and `prompt_tokens`; then token ids as 32-bit integers, little endian."""
_LOCK = "lock"


def default_memory_folder() -> Path:
    """Return the folder in the user's state folder."""
    return user_state_folder("memory")


class MemoryFile:
    """The texts of one tenant in one vocabulary."""

    def __init__(self, folder: Path, tenant: bytes, fingerprint: str) -> None:
        """Name the file. `tenant` identifies whose memory it is, in any form; `fingerprint` is of
        the vocabulary that the token ids belong to."""
        names = (_digest(tenant), _digest(fingerprint.encode())[:16])
        self.path = folder / f"{'-'.join(names)}{SUFFIX}"
        self._header = _MAGIC + fingerprint.encode()
        self._there = False

    @property
    def deleted(self) -> bool:
        """True if the file was there, and somebody has deleted it."""
        return self._there and not self.path.exists()

    def read(self, most_bytes: int, *, repair: bool = True) -> list[Text]:
        """Return the texts, in the order in which they were added; none of a file that is larger
        than `most_bytes`, of another vocabulary, or not ours. With `repair` an incomplete end is
        cut off: not in a folder that another process writes in."""
        try:
            if self.path.stat().st_size > most_bytes:
                log.warning("a file of remembered texts is too large, and is not read")
                return []
            content = self.path.read_bytes()
        except FileNotFoundError:
            return []
        if repair:
            with suppress(OSError):  # another user's
                self.path.chmod(FILE_MODE)
        records = list(framed_records(content))
        if not records or records[0][1] != self._header:
            return []
        self._there = True
        end = records[-1][0]
        if repair and end < len(content):
            log.warning("the end of a file of remembered texts is incomplete, and was cut off")
            os.truncate(self.path, end)
        return [text for _, payload in records[1:] if (text := _text_of(payload)) is not None]

    def append(self, text: Text) -> None:
        """Add a text. Raises OSError."""
        if not self._there:
            self.write([text])
            return
        append_privately(self.path, framed(_payload_of(text)))

    def write(self, texts: Iterable[Text]) -> None:
        """Put these texts in the place of all that is there. Raises OSError, with the old file
        kept."""
        make_private_folder(self.path.parent)
        payloads = (self._header, *map(_payload_of, texts))
        # Not durable: what a power failure loses of a memory is worth no wait for the disk.
        replace_privately(self.path, b"".join(map(framed, payloads)), durable=False)
        self._there = True


class MemoryFolder:
    """The right to write in a folder, until it is closed or the process ends in any way."""

    def __init__(self, folder: Path) -> None:
        """Open the folder, which is created if there is none, and take the right to write to it if
        no other process has it. Raises OSError where the folder cannot be made."""
        make_private_folder(folder)
        self.folder = folder
        self._lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, FILE_MODE)
        self.writable = True
        """False where another process has the right; what it wrote so far may be read."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.writable = False
        else:
            _remove_unfinished(folder)

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def remove_oldest(self, most_bytes: int) -> None:
        """Remove the files that were longest not written, until the others have no more bytes."""
        files = sorted(
            ((each.stat().st_mtime, each.stat().st_size, each) for each in files_in(self.folder)),
            reverse=True,
        )
        for _, size, path in files:
            most_bytes -= size
            if most_bytes < 0:
                path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class MemoryFileFigures:
    """What one file has. `written_s`: when it was last written, in seconds since the epoch."""

    texts: int
    tokens: int
    size_bytes: int
    written_s: float


def files_in(folder: Path) -> list[Path]:
    """Return the files of a folder, by name; none where there is no folder."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def figures_of(path: Path) -> MemoryFileFigures:
    """Return what a file has. Raises OSError."""
    content = path.read_bytes()
    texts = [_text_of(payload) for _, payload in list(framed_records(content))[1:]]
    known = [text for text in texts if text is not None]
    tokens = sum(map(len, known))
    return MemoryFileFigures(len(known), tokens, len(content), path.stat().st_mtime)


def clear(folder: Path) -> int:
    """Delete all that is remembered in a folder; returns how many files that were. Running drafters
    forget it with their next request. Raises OSError."""
    files = files_in(folder)
    for path in files:
        path.unlink(missing_ok=True)
    _remove_unfinished(folder)
    return len(files)


def _remove_unfinished(folder: Path) -> None:
    for path in unfinished(folder / f"*{SUFFIX}"):
        path.unlink(missing_ok=True)


def _digest(word: bytes) -> str:
    return hashlib.sha256(word).hexdigest()[:32]


def _payload_of(text: Text) -> bytes:
    head = _TEXT.pack(text.before, text.position, text.prompt_tokens)
    return head + _little_endian(text.token_ids).tobytes()


def _text_of(payload: bytes) -> Text | None:
    rest = payload[_TEXT.size :]
    if len(payload) < _TEXT.size or len(rest) % 4:
        return None
    before, position, prompt_tokens = _TEXT.unpack_from(payload)
    token_ids = _little_endian(array("i", rest))
    return Text(token_ids, prompt_tokens, position, before)


def _little_endian(token_ids: Sequence[int]) -> array[int]:
    """Return the ids in the byte order of files, or back from it."""
    ids = array("i", token_ids)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids
