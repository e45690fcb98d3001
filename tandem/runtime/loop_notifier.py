"""Calls that a pass schedules on event loops, delivered when it is over. Invariant: calls run on
their loop in the order they were added. A loop that is woken competes for the interpreter with the
thread that woke it, so a pass wakes it once."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextlib import suppress

Call = Callable[[], object]


class LoopNotifier:
    """Collected and sent by one thread."""

    def __init__(self) -> None:
        self._calls: dict[AbstractEventLoop, list[Call]] = {}

    def add(self, loop: AbstractEventLoop, call: Call) -> None:
        """Have `call` run on `loop` with all else that is collected."""
        self._calls.setdefault(loop, []).append(call)

    def add_after(self, loop: AbstractEventLoop, call: Call) -> None:
        """Have `call` run on `loop` after all that is collected and the callbacks that it made
        due."""
        self.add(loop, lambda: loop.call_soon(call))

    def send(self) -> None:
        """Wake the loops; one that is closed needs no results any more."""
        calls, self._calls = self._calls, {}
        for loop, some in calls.items():
            with suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(_run, loop, some)


def _run(loop: AbstractEventLoop, calls: list[Call]) -> None:
    for call in calls:
        try:
            call()
        except Exception as error:  # the caller's own; the calls after it run all the same
            loop.call_exception_handler({"message": "a notified call failed", "exception": error})
