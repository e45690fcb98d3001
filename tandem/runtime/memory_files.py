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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from tandem.specdec.text_memory import Text
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

SUFFIX = ".memory"
_MAGIC = b"tandem memory 1\0"
_RECORD = struct.Struct("<II")
"""Length and checksum of what follows."""
_TEXT = struct.Struct("<QII")
"""`before`, `position` and `prompt_tokens`; then token ids as 32-bit integers, little endian."""
_LOCK = "lock"


def default_memory_folder() -> Path:
    """Return the folder in the user's state folder."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "tandem" / "memory"


class MemoryFile:
    """The texts of one tenant in one vocabulary."""

    def __init__(self, folder: Path, tenant: bytes, fingerprint: str) -> None:
        """`tenant`: whose, in any form; `fingerprint`: of the vocabulary that token ids are of."""
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
                self.path.chmod(0o600)
        records = list(_records(content))
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
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
        try:
            size = os.fstat(handle).st_size
            try:
                _write_all(handle, _record(_payload_of(text)))
            except OSError:  # a full disk: what follows must not stand behind half a record
                os.ftruncate(handle, size)
                raise
        finally:
            os.close(handle)

    def write(self, texts: Iterable[Text]) -> None:
        """Put these texts in the place of all that is there. Raises OSError, with the old file
        kept."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = self.path.with_suffix(".new")
        beside.unlink(missing_ok=True)
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            payloads = (self._header, *map(_payload_of, texts))
            _write_all(handle, b"".join(map(_record, payloads)))
        finally:
            os.close(handle)
        beside.replace(self.path)
        self._there = True


class MemoryFolder:
    """The right to write in a folder, until it is closed or the process ends in any way."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError where the folder cannot be made."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder
        self._lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        self.writable = True
        """False where another process has the right; what it wrote so far may be read."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.writable = False

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
    texts = [_text_of(payload) for _, payload in list(_records(content))[1:]]
    known = [text for text in texts if text is not None]
    tokens = sum(map(len, known))
    return MemoryFileFigures(len(known), tokens, len(content), path.stat().st_mtime)


def clear(folder: Path) -> int:
    """Delete all that is remembered in a folder; returns how many files that were. Running drafters
    forget it with their next request. Raises OSError."""
    found = [*files_in(folder), *folder.glob("*.new")]
    for path in found:
        path.unlink(missing_ok=True)
    return len(found)


def _digest(word: bytes) -> str:
    return hashlib.sha256(word).hexdigest()[:32]


def _record(payload: bytes) -> bytes:
    return _RECORD.pack(len(payload), crc32(payload)) + payload


def _records(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield where each record ends, and what it has, up to the first that is not whole."""
    place = 0
    while place + _RECORD.size <= len(content):
        length, checksum = _RECORD.unpack_from(content, place)
        begin = place + _RECORD.size
        place = begin + length
        payload = content[begin:place]
        if len(payload) < length or crc32(payload) != checksum:
            return
        yield place, payload


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


def _write_all(handle: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(handle, view) :]
