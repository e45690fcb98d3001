"""`python -m bench.faults.fail_points SWITCHES MODULE FLAGS`: a service whose disk fails when told.

The service's code is as it is; what fails are the calls to the system. SWITCHES is a file of one
byte for each of `KINDS`, mapped by this process and by whoever breaks it: a byte that is not 0
makes each such call fail with EIO until it is 0 again.

SQLite makes its calls from C, through a table of functions that it publishes for replacement (its
virtual file system). Here the entries that open a file and that sync one are replaced; they answer
what SQLite makes of the system's error. Python's own calls are replaced by name.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tandem.suite.supervised import run_module

KINDS = ("open", "fsync", "rename")

_SQLITE_CANTOPEN = 14
_SQLITE_IOERR_FSYNC = 10 | 4 << 8
_METHODS_BYTES = {1: 104, 2: 136, 3: 152}
"""Size of sqlite3_io_methods by its version: a number and 12, 16 or 18 pointers."""
_SYNC_AT = 40
"""Where xSync is in it: after the version, and the pointers to close, read, write and truncate."""

# Names stay addresses: SQLite keeps them, and what follows them in memory are parameters.
_OPEN = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p
)
_SYNC = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)


class Switches:
    """The mapped file. The breaking side makes it; see `create`."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._bytes = mmap.mmap(file.fileno(), len(KINDS))

    @classmethod
    def create(cls, path: Path) -> Switches:
        path.write_bytes(bytes(len(KINDS)))
        return cls(path)

    def set(self, kind: str, broken: bool) -> None:
        self._bytes[KINDS.index(kind)] = int(broken)

    def broken(self, kind: str) -> bool:
        return self._bytes[KINDS.index(kind)] != 0


class _Vfs(ctypes.Structure):
    """The beginning of sqlite3_vfs."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("file_bytes", ctypes.c_int),
        ("longest_path", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("own", ctypes.c_void_p),
        ("open", _OPEN),
    )


class SqliteFailPoints:
    """Replaces SQLite's ways to open and sync files in this process, for good."""

    def __init__(self, switches: Switches) -> None:
        import _sqlite3

        self._switches = switches
        library = ctypes.CDLL(_sqlite3.__file__)  # whichever SQLite it is bound to
        library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
        self._vfs = vfs = library.sqlite3_vfs_find(None).contents
        # The entry itself will change: what it points to now is kept by its address.
        self._open_file = _OPEN(ctypes.cast(vfs.open, ctypes.c_void_p).value or 0)
        self._open, self._sync = _OPEN(self._opened), _SYNC(self._synced)
        self._lock = threading.Lock()
        self._syncs: dict[int, Any] = {}
        self._tables: dict[int, Any] = {}
        vfs.open = self._open

    def _opened(self, vfs: int, path: int, file: int, flags: int, out_flags: int) -> int:
        if self._switches.broken("open"):
            ctypes.memset(file, 0, ctypes.sizeof(ctypes.c_void_p))  # nothing to close
            return _SQLITE_CANTOPEN
        code = int(self._open_file(vfs, path, file, flags, out_flags))
        methods = ctypes.c_void_p.from_address(file)
        if code == 0 and methods.value is not None:
            methods.value = ctypes.addressof(self._table(methods.value))
        return code

    def _table(self, original: int) -> Any:
        """A copy of a table of methods whose xSync is ours. One for all files: they hold its bare
        address."""
        with self._lock:
            return self._copied(original)

    def _copied(self, original: int) -> Any:
        if original not in self._tables:
            version = ctypes.c_int.from_address(original).value
            size = _METHODS_BYTES[min(version, 3)]
            table = ctypes.create_string_buffer(ctypes.string_at(original, size), size)
            sync = ctypes.c_void_p.from_buffer(table, _SYNC_AT)
            self._syncs[ctypes.addressof(table)] = _SYNC(sync.value or 0)
            sync.value = ctypes.cast(self._sync, ctypes.c_void_p).value
            self._tables[original] = table
        return self._tables[original]

    def _synced(self, file: int, flags: int) -> int:
        if self._switches.broken("fsync"):
            return _SQLITE_IOERR_FSYNC
        methods = ctypes.c_void_p.from_address(file).value
        assert methods is not None
        return int(self._syncs[methods](file, flags))


def fail_python_calls(switches: Switches) -> None:
    """`os.open`, `os.fsync`, `os.rename` and `os.replace` of this process, for good."""

    def failing(call: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            if switches.broken(kind):
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(arguments[0]))
            return call(*arguments, **named)

        return called

    for name, kind in (("open", "open"), ("fsync", "fsync"), ("rename", "rename")):
        setattr(os, name, failing(getattr(os, name), kind))
    os.replace = failing(os.replace, "rename")


_KEPT: list[SqliteFailPoints] = []
"""SQLite holds bare addresses of their functions."""


def main() -> None:
    path, module, *arguments = sys.argv[1:]
    switches = Switches(Path(path))
    _KEPT.append(SqliteFailPoints(switches))
    fail_python_calls(switches)
    run_module(module, arguments)


if __name__ == "__main__":
    main()
