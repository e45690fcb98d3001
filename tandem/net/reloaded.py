"""A value read from files, read again when they change. Invariant: `current` always gives a value
that was read whole and found good: a change that cannot be used is logged once, and what was read
before stays."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from tandem.core.errors import TandemError
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

Value = TypeVar("Value")
_Stamp = tuple[tuple[int, int, int] | None, ...]


class BadFile(TandemError):
    """A file that cannot be used; the message is one line that names it and shows nothing of it."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path


class Reloaded(Generic[Value]):
    """What `read` makes of the files at `paths`; may be used on any thread. `read` raises BadFile,
    at first through the constructor. Looking for changes takes one `stat` a file, so `current` may
    be asked for every connection and every call."""

    def __init__(self, paths: Sequence[Path], read: Callable[[], Value]) -> None:
        self._paths = tuple(paths)
        self._read = read
        self._lock = threading.Lock()
        # Before reading: what changes meanwhile is read again.
        self._stamp = _stamp(self._paths)
        self._value = read()

    def current(self) -> Value:
        with self._lock:
            stamp = _stamp(self._paths)
            if stamp != self._stamp:
                self._stamp = stamp
                self._take_over()
            return self._value

    def _take_over(self) -> None:
        try:
            self._value = self._read()
        except BadFile as error:
            # Files are replaced one after the other: the next one may make it whole.
            log.warning("changed files not taken over", reason=str(error))
        else:
            log.info("changed files taken over", files=[str(path) for path in self._paths])


def read_file(path: Path, longest: int = 2**20) -> bytes:
    """The bytes of a small file. Raises BadFile."""
    try:
        with path.open("rb") as file:
            content = file.read(longest + 1)
    except OSError as error:
        raise BadFile(path, f"cannot be read: {error.strerror}") from error
    if len(content) > longest:
        raise BadFile(path, f"is larger than {longest} bytes")
    return content


def _stamp(paths: Sequence[Path]) -> _Stamp:
    return tuple(map(_stamp_of, paths))


def _stamp_of(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
