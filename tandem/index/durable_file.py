"""Files that survive: atomic replacement, appending with undo, one owner of a folder.

Invariants: `append` either leaves the record durable, or the file as it was; a file made by
`write_atomically` is complete or absent. A full disk (or quota, or file size limit) is
ResourceExhausted. POSIX only. Must not import grpc.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tandem.core.errors import ResourceExhausted
from tandem.index.errors import FolderInUse, FolderReadOnly

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class AppendFile:
    """A file that records are appended to."""

    def __init__(self, path: Path, size: int) -> None:
        """Cuts what lies behind `size`; the file is made where there is none."""
        self.path = path
        self.size = size
        self._broken = False
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        if os.fstat(self._file).st_size != size:
            os.ftruncate(self._file, size)
        os.fsync(self._file)
        sync_folder(path.parent)

    def append(self, record: bytes) -> None:
        """Returns when the record is on the disk. ResourceExhausted or OSError if it is not."""
        if self._broken:
            why = "an earlier write failed and could not be undone; open the folder anew"
            raise FolderReadOnly(f"{self.path}: {why}")
        try:
            with full_disk_as_exhausted(self.path):
                _write_all(self._file, record)
                os.fsync(self._file)
        except BaseException:
            self._undo()
            raise
        self.size += len(record)

    def close(self) -> None:
        """Calling it again does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _undo(self) -> None:
        """Back to the last record. Should that fail too, nothing may follow: it would be torn in
        the middle."""
        try:
            os.ftruncate(self._file, self.size)
            os.fsync(self._file)
        except OSError:
            self._broken = True


def write_atomically(path: Path, parts: Iterable[bytes]) -> int:
    """The file's size. On failure there is what was there before."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with full_disk_as_exhausted(path):
            size = 0
            with temporary.open("wb") as file:
                for part in parts:
                    size += file.write(part)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    return size


@contextmanager
def full_disk_as_exhausted(path: Path) -> Iterator[None]:
    """Names the file that found no room."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            why = f"{path}: no room: {error.strerror}; nothing was changed"
            raise ResourceExhausted(why) from error
        raise


def sync_folder(folder: Path) -> None:
    """Make the names in it durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class FolderLock:
    """The right to use a folder; the system takes it back when the process ends in any way."""

    def __init__(self, folder: Path) -> None:
        """Raises FolderInUse, naming the process that has it."""
        path = folder / "lock"
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            with suppress(OSError):
                owner = os.read(self._file, 32).decode(errors="replace").strip()
            os.close(self._file)
            why = f"is open in process {owner or '?'}; one at a time (a running retriever is asked"
            raise FolderInUse(f"{folder}: {why} with --endpoint)") from error
        os.ftruncate(self._file, 0)
        os.write(self._file, f"{os.getpid()}\n".encode())

    def close(self) -> None:
        """Give it back. Calling it again does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _write_all(handle: int, record: bytes) -> None:
    rest = memoryview(record)
    while rest:
        rest = rest[os.write(handle, rest) :]
