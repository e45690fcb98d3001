"""The conversation of a session, which is a stream, in every service. Invariant: the frame that is
being written when a session ends leaves whole."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

LAST_WRITE_S = 1.0

Message = TypeVar("Message")


async def converse(
    work: Sequence[Coroutine[Any, Any, None]], end_writing: Callable[[], Awaitable[None]]
) -> None:
    """Run all of `work` until one part ends, and raise what it raised; cancel the others.
    `end_writing` lets the present frame leave: cancelled in the middle, it would take the place of
    the call's status, which then never reaches the caller."""
    tasks = [asyncio.create_task(part) for part in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        try:
            await end_writing()
        finally:  # a call may be cancelled a second time
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class FrameWriter(Generic[Message]):
    """Messages queued for a stream and written one after the other by `run`."""

    def __init__(self, write: Callable[[Message], Awaitable[None]], limit: int) -> None:
        """Start with nothing to write. `write` may drop a message; above `limit` waiting messages
        there is no `room`."""
        self._write = write
        self._limit = limit
        self._waiting: deque[Message] = deque()
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._ending = False
        self._ended = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, messages: Sequence[Message]) -> None:
        self._waiting.extend(messages)
        self._changed.set()
        if len(self._waiting) > self._limit:
            self._room.clear()

    async def room(self) -> None:
        """Wait until the peer has read what is waiting, where that was too much."""
        await self._room.wait()

    async def run(self) -> None:
        try:
            while not self._ending:
                while self._waiting and not self._ending:
                    await self._write(self._waiting.popleft())
                self._changed.clear()
                self._room.set()
                if not self._ending:
                    await self._changed.wait()
        finally:
            self._ended.set()

    async def end(self) -> None:
        """Write no further frame once the present one has left, which may take a moment."""
        self._ending = True
        self._changed.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), LAST_WRITE_S)
