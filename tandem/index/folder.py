"""A folder of private files that one process owns at a time. POSIX only."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from tandem.index.records import FolderInUse
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

LOCK = "lock"


class FolderLock:
    """The right to use a folder; the system takes it back when the process ends in any way."""

    def __init__(self, folder: Path) -> None:
        """Lock the folder. Raises FolderInUse, naming the process that holds it."""
        path = folder / LOCK
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            with suppress(OSError):
                owner = os.read(self._file, 32).decode(errors="replace").strip()
            os.close(self._file)
            why = f"is open in process {owner or '?'}; one at a time (a running retriever is asked"
            raise FolderInUse(f"{folder}: {why} with --endpoint)") from error
        with suppress(OSError):  # a full disk; the lock holds, its owner is not named
            os.ftruncate(self._file, 0)
            os.write(self._file, f"{os.getpid()}\n".encode())

    def close(self) -> None:
        """Release the lock. Calling it again does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def make_private(path: Path, mode: int) -> None:
    """Set the mode of a path, so that nobody but its owner may read it. A volume that another user
    owns keeps its mode."""
    if path.stat().st_mode & 0o777 == mode:
        return
    try:
        path.chmod(mode)
    except PermissionError:
        log.warning("belongs to another user, its mode stays", path=str(path))


def new_private_file(path: Path) -> None:
    """Create an empty file, in the place of any other, that only its owner can read from its first
    moment on."""
    path.unlink(missing_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def sync_folder(folder: Path) -> None:
    """Make the names in it durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
