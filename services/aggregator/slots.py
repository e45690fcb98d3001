"""Slots for requests, with a bounded first-come queue before them.

Invariant: at most `running` hold a slot and at most `waiting` wait; one more is refused at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager

from tandem.core.errors import ResourceExhausted


class Slots:
    """Used on the event loop only."""

    def __init__(self, running: int, waiting: int) -> None:
        self._limit = running
        self._max_waiting = waiting
        self._free = asyncio.Semaphore(running)
        self.running = 0
        self.waiting = 0

    @asynccontextmanager
    async def slot(
        self, waits: AbstractContextManager[object], timeout_s: float
    ) -> AsyncIterator[None]:
        """Wait for a slot, inside `waits`, and hold it. ResourceExhausted when all is taken,
        TimeoutError when none comes free in time."""
        if self._free.locked() and self.waiting >= self._max_waiting:
            raise ResourceExhausted(
                f"queue: {self._limit} requests are running and {self._max_waiting} wait; try again"
            )
        self.waiting += 1
        try:
            with waits:
                async with asyncio.timeout(timeout_s):
                    await self._free.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._free.release()
