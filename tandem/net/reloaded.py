"""A value read from files, read again when they change. Invariant: `current` always gives a value
that was read whole and found good: a change that cannot be used is logged once, what was read
before stays, and `current_and_failure` says so until the files can be used again."""

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from tandem.core.errors import TandemError
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

Value = TypeVar("Value")
_Stamp = tuple[tuple[int, int, int, int] | None, ...]

COMPARE_EVERY_S = 2.0
"""How often contents are compared though nothing that `stat` says has changed: a file system may
keep times in whole seconds, have none of changes, or show those of a while ago."""
RECENT_S = 2.0
"""How long after a change contents are compared each time: FAT keeps times to two seconds, and what
is written within the same tick as before leaves the same times anywhere."""


MOST_BYTES = 2**20
"""Of a file that is read whole."""


class BadFile(TandemError):
    """A file that cannot be used; the message is one line that names it and shows nothing of it."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path


@dataclass(frozen=True, slots=True)
class ReloadFailure:
    """Reason why the files cannot be used now, and for how long."""

    why: str
    for_s: float


class Reloaded(Generic[Value]):
    """The result of `read` for the files at `paths`, read again when they change; may be used on
    any thread. `read` raises BadFile, at first through the constructor. Looking for changes takes
    one `stat` a file, and now and then reading it, so `current` may be asked for every connection
    and every call; files are small."""

    def __init__(
        self,
        paths: Sequence[Path],
        read: Callable[[], Value],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the files for the first time. `clock` gives seconds that never decrease."""
        self._paths = tuple(paths)
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._failed: tuple[str, float] | None = None
        # Before reading: what changes meanwhile is read again.
        self._stamp = _stamp(self._paths)
        self._contents = _contents(self._paths)
        self._compared_s = clock()
        self._value = read()

    def current(self) -> Value:
        with self._lock:
            self._look()
            return self._value

    def current_and_failure(self) -> tuple[Value, ReloadFailure | None]:
        """Return the value, and what keeps the files from being used as they are now; None if
        nothing does."""
        with self._lock:
            self._look()
            if self._failed is None:
                return self._value, None
            why, since_s = self._failed
            return self._value, ReloadFailure(why, self._clock() - since_s)

    def _look(self) -> None:
        stamp = _stamp(self._paths)
        now = self._clock()
        same = stamp == self._stamp and not _is_recent(stamp)
        if same and now - self._compared_s < COMPARE_EVERY_S:
            return
        before = self._contents
        self._contents = _contents(self._paths)
        self._stamp = stamp
        self._compared_s = now
        if self._contents != before:
            self._take_over(now)

    def _take_over(self, now: float) -> None:
        try:
            self._value = self._read()
        except BadFile as error:
            # Files are replaced one after the other: the next one may make it whole.
            log.warning("changed files not taken over", reason=str(error))
            since_s = now if self._failed is None else self._failed[1]
            self._failed = (str(error), since_s)
        else:
            self._failed = None
            log.info("changed files taken over", files=[str(path) for path in self._paths])


def read_file(path: Path, longest: int = MOST_BYTES) -> bytes:
    """Return the bytes of a small file. Raises BadFile."""
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


def _stamp_of(path: Path) -> tuple[int, int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino


def _is_recent(stamp: _Stamp) -> bool:
    """Return whether one of the files changed so recently that its times may not show the next
    change. Times of a clock that is far ahead are none of those: they would stay recent for
    ever."""
    now = time.time()
    changed_s = (max(times[:2]) / 1e9 for times in stamp if times is not None)
    return any(abs(now - time_s) < RECENT_S for time_s in changed_s)


def _contents(paths: Sequence[Path]) -> tuple[bytes | None, ...]:
    return tuple(map(_hash_of, paths))


def _hash_of(path: Path) -> bytes | None:
    """Return a file's hash; None for a file that cannot be read, or is too large to be used."""
    try:
        return hashlib.sha256(read_file(path)).digest()
    except BadFile:
        return None
