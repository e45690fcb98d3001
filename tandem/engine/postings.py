"""What a pass has to tell event loops, told when it is over.

Invariant: calls run on their loop in the order they were added. A loop that is woken competes for
the interpreter with the thread that woke it, so a pass wakes it once. Must not import grpc
or torch.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable

Call = Callable[[], object]


class Postings:
    """Collected and sent by one thread."""

    def __init__(self) -> None:
        self._calls: dict[AbstractEventLoop, list[Call]] = {}

    def add(self, loop: AbstractEventLoop, call: Call) -> None:
        """Have `call` run on `loop` with all else that is collected."""
        self._calls.setdefault(loop, []).append(call)

    def add_after(self, loop: AbstractEventLoop, call: Call) -> None:
        """Have `call` run on `loop` once it has handled all that is collected, and what that made
        due at once (the callbacks of futures)."""
        self.add(loop, lambda: loop.call_soon(call))

    def send(self) -> None:
        """Wake the loops."""
        calls, self._calls = self._calls, {}
        for loop, some in calls.items():
            loop.call_soon_threadsafe(_run, loop, some)


def _run(loop: AbstractEventLoop, calls: list[Call]) -> None:
    for call in calls:
        try:
            call()
        except Exception as error:  # the caller's; those after it are told all the same
            loop.call_exception_handler({"message": "telling failed", "exception": error})
