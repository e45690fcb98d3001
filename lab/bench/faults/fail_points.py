"""`python -m lab.bench.faults.fail_points SWITCHES FOLDER MODULE FLAGS`: a service whose disk fails
when told.

The service's code and its libraries are as they are. The kernel asks a watcher, a child process,
about each call that opens, syncs or renames a file (seccomp's user notification), and the call
returns EIO where the watcher says so. SWITCHES is a file of one byte for each of `KINDS`, mapped by
the watcher and by whoever breaks the disk: a byte that is not 0 makes such calls fail for paths
below FOLDER until it is 0 again. Linux on x86-64 or arm64.

Invariant: the watcher ends with the service, however that ends; whoever kills the service kills it
alone.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import importlib
import mmap
import os
import platform
import select
import socket
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tandem.suite.supervised import run_module

KINDS = ("open", "fsync", "rename")

_PR_SET_PTRACER = 0x59616D61
_PR_SET_NO_NEW_PRIVS = 38
_SET_FILTER = 1
_GET_SIZES = 3
_FLAGS = 1 | 8 | 16
"""For all threads or not at all, and with a descriptor."""
_RECEIVE = 0xC0502100
_SEND = 0xC0182101
_SET_IOCTL_FLAGS = 0x40082104
_QUESTION = struct.Struct("=QIIiIQ6Q")
_ANSWER = struct.Struct("=QqiI")
_GO_ON = 1
_WAKE_HERE = 1
_LOAD = 0x20
_EQUAL = 0x15
_RETURN = 0x06
_AT_AUDIT = 4
_ALLOW = 0x7FFF0000
_ASK = 0x7FC00000
_PATH_BYTES = 4096
"""The kernel's words: linux/prctl.h, seccomp.h and filter.h."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A system call; `path` is the argument that has a path's address, or None where the first one
    is a descriptor."""

    kind: str
    path: int | None = None


@dataclass(frozen=True, slots=True)
class _Machine:
    """The kernel's numbers on one kind of machine."""

    audit: int
    seccomp: int
    calls: dict[int, _Call]


_OPEN = _Call("open", 0)
_SYNC = _Call("fsync")
_OPEN_AT = _Call("open", 1)
_RENAME = _Call("rename", 0)
_RENAME_AT = _Call("rename", 1)
_MACHINES = {
    "x86_64": _Machine(
        0xC000003E, 317,
        {2: _OPEN, 257: _OPEN_AT, 74: _SYNC, 75: _SYNC,
         82: _RENAME, 264: _RENAME_AT, 316: _RENAME_AT},
    ),
    "aarch64": _Machine(
        0xC00000B7, 277,
        {56: _OPEN_AT, 82: _SYNC, 83: _SYNC, 38: _RENAME_AT, 276: _RENAME_AT},
    ),
}  # fmt: skip


class Switches:
    """The mapped file, of a service whose disk is `folder`. The breaking side makes it; see
    `create`."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path = path
        self.folder = folder
        with path.open("r+b") as file:
            self._bytes = mmap.mmap(file.fileno(), len(KINDS))

    @classmethod
    def create(cls, path: Path, folder: Path) -> Switches:
        path.write_bytes(bytes(len(KINDS)))
        return cls(path, folder.resolve())

    def set(self, kind: str, broken: bool) -> None:
        self._bytes[KINDS.index(kind)] = int(broken)

    def broken(self, kind: str) -> bool:
        return self._bytes[KINDS.index(kind)] != 0


def can_fail() -> bool:
    """Return whether the kernel of this system can ask a watcher about system calls."""
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        return False
    number, sizes = _MACHINES[platform.machine()].seccomp, ctypes.create_string_buffer(6)
    return bool(ctypes.CDLL(None).syscall(number, _GET_SIZES, 0, sizes) == 0)


def main() -> None:
    path, folder, module, *arguments = sys.argv[1:]
    # First: the libraries that are loaded next do not stand a fork. But those come before the
    # filter: thousands of files are opened for them, none of which is on the disk that fails.
    watcher = _forked_watcher(Switches(Path(path), Path(folder)))
    importlib.import_module(f"{module}.__main__")
    with watcher:
        descriptor = _filter_calls()
        socket.send_fds(watcher, [b"f"], [descriptor])
        os.close(descriptor)
    run_module(module, arguments)


def _filter_calls() -> int:
    """Make the kernel ask about the calls of all threads of this process; return the descriptor at
    which its questions arrive. Raises OSError if it refuses."""
    machine = _MACHINES[platform.machine()]
    last = len(machine.calls)
    steps = [(_LOAD, 0, 0, _AT_AUDIT), (_EQUAL, 0, last + 1, machine.audit), (_LOAD, 0, 0, 0)]
    steps += [(_EQUAL, last - at, 0, number) for at, number in enumerate(machine.calls)]
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ASK)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = struct.pack("@HP", len(steps), ctypes.addressof(code))
    system = ctypes.CDLL(None, use_errno=True)
    system.prctl(_PR_SET_PTRACER, ctypes.c_ulong(2**64 - 1), 0, 0, 0)  # the watcher reads paths
    system.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    result = system.syscall(machine.seccomp, _SET_FILTER, _FLAGS, program)
    if result < 0:
        raise OSError(ctypes.get_errno(), "seccomp takes no filter that asks")
    return int(result)


def _forked_watcher(switches: Switches) -> socket.socket:
    """Fork the watcher, and return the socket over which it waits for the descriptor at which the
    kernel's questions arrive."""
    ours, its = socket.socketpair()
    watched = os.getpid()
    if os.fork():
        its.close()
        return ours
    try:
        ours.close()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):  # whoever reads the service's output waits for its end
            os.dup2(nowhere, standard)
        _, descriptors, _, _ = socket.recv_fds(its, 1, 1)
        for descriptor in descriptors:
            _Watcher(descriptor, switches, watched).answer_all()
    finally:
        os._exit(0)


class _Watcher:
    """Answers for one service."""

    def __init__(self, descriptor: int, switches: Switches, watched: int) -> None:
        self._descriptor = descriptor
        self._switches = switches
        self._folder = os.fsencode(switches.folder)
        self._files = f"/proc/{watched}/fd"
        self._memory = os.open(f"/proc/{watched}/mem", os.O_RDONLY)
        self._calls = _MACHINES[platform.machine()].calls
        with suppress(OSError):  # of Linux 6.6 on: the service waits no longer than it must
            fcntl.ioctl(descriptor, _SET_IOCTL_FLAGS, struct.pack("=Q", _WAKE_HERE))

    def answer_all(self) -> None:
        """Answer all calls until the service has ended."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        while True:
            ((_, events),) = poll.poll()
            if events & select.POLLIN:
                with suppress(FileNotFoundError):  # the thread was killed while it waited
                    self._answer()
            elif events:
                return

    def _answer(self) -> None:
        question = bytearray(_QUESTION.size)
        fcntl.ioctl(self._descriptor, _RECEIVE, question)
        number, _, _, called, _, _, *arguments = _QUESTION.unpack(question)
        error = -errno.EIO if self._fails(self._calls[called], arguments) else 0
        answer = _ANSWER.pack(number, 0, error, 0 if error else _GO_ON)
        fcntl.ioctl(self._descriptor, _SEND, answer)

    def _fails(self, call: _Call, arguments: Sequence[int]) -> bool:
        if not self._switches.broken(call.kind):
            return False
        try:
            if call.path is None:
                path = os.fsencode(os.readlink(f"{self._files}/{arguments[0]}"))
            else:
                path = os.pread(self._memory, _PATH_BYTES, arguments[call.path]).split(b"\0")[0]
        except OSError:  # an address or a descriptor that is none: the kernel says so
            return False
        return path.startswith(self._folder)


if __name__ == "__main__":
    main()
