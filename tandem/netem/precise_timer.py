"""A timer on the event loop that is late by tens of microseconds. asyncio and uvloop round
`call_at` up to whole milliseconds, which would add up to two of them to every emulated round trip.
A Linux timerfd does not, and needs no busy waiting. Elsewhere the loop's own timer is used."""

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable

_CLOCK_MONOTONIC = 1  # the clock of time.monotonic() on Linux
_TFD_TIMER_ABSTIME = 1
_NEVER = 0
_HAS_TIMERFD = sys.platform == "linux"


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSetting(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("first", _Timespec))


class PreciseTimer:
    """Calls `callback` on the running loop once `time.monotonic()` has reached the armed time.
    Holds a file descriptor from the first `arm` to `close`."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._descriptor = -1

    def arm(self, when_s: float) -> None:
        """Fire once at `when_s` (of time.monotonic), instead of any time armed before."""
        if self._loop is None:
            self._open(asyncio.get_running_loop())
        if self._descriptor >= 0:
            self._set(max(1, int(when_s * 1e9)))
            return
        self.disarm()
        delay_s = max(0.0, when_s - time.monotonic())
        self._handle = asyncio.get_running_loop().call_later(delay_s, self._callback)

    def disarm(self) -> None:
        """Do not fire."""
        if self._descriptor >= 0:
            self._set(_NEVER)
        if self._handle is not None:
            self._handle.cancel()

    def close(self) -> None:
        """Disarm and free the descriptor. Idempotent."""
        self.disarm()
        if self._descriptor >= 0 and self._loop is not None:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
        self._descriptor = -1
        self._loop = None

    def _open(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        if not _HAS_TIMERFD:
            return
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        loop.add_reader(self._descriptor, self._fired)

    def _set(self, nanoseconds: int) -> None:
        setting = _TimerSetting(_Timespec(0, 0), _Timespec(*divmod(nanoseconds, 10**9)))
        flags = _TFD_TIMER_ABSTIME
        if self._libc.timerfd_settime(self._descriptor, flags, ctypes.byref(setting), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def _fired(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:  # armed anew since it became readable
            return
        self._callback()
