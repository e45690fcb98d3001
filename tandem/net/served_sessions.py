"""What every service does with the streams that are its sessions: admit, open, converse, end.
Invariant: what is reserved is given back exactly once; the frame that is being written when a
session ends leaves whole."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tandem.net.quotas import FairShares, HolderRefused, Quota, Room
from tandem.net.scopes import current_caller
from tandem.settings import ServiceSettings
from tandem.telemetry.metrics import HolderSeries

LAST_WRITE_S = 1.0

Message = TypeVar("Message")


@dataclass(slots=True)
class Reservation:
    """What a session may hold, which is nothing once it is given back; `tokens` is set to what it
    has cost when it ends."""

    kv_bytes: int
    tokens: int = 0


class Admission:
    """Shares a service's sessions, and the bytes of their KV caches, out to its callers; used on
    the event loop only."""

    def __init__(
        self,
        max_sessions: int,
        kv_budget_bytes: int = 2**62,
        quota: Quota | None = None,
        series: HolderSeries | None = None,
        what: str = "sessions",
    ) -> None:
        """`what` is what refusals call a place."""
        self.kv_budget_bytes = kv_budget_bytes
        self._shares = FairShares(Room(max_sessions, kv_budget_bytes, what), quota or Quota())
        self._series = series
        self.on_change: Callable[[], None] = lambda: None
        """Called when a session has taken its room, or given it back."""

    @property
    def sessions(self) -> int:
        return self._shares.sessions

    def claim(self, holder: str) -> float:
        """As `FairShares.claim`."""
        return self._shares.claim(holder)

    @property
    def kv_bytes(self) -> int:
        return self._shares.kv_bytes

    @property
    def kv_free_bytes(self) -> int:
        return self.kv_budget_bytes - self.kv_bytes

    @contextmanager
    def reserve(self, kv_bytes: int = 0) -> Iterator[Reservation]:
        """Room for one session of the present caller, or ResourceExhausted saying which limit was
        met."""
        caller = current_caller()
        try:
            self._shares.take(caller.holder, kv_bytes, time.monotonic(), caller.quota)
        except HolderRefused as error:
            if self._series is not None:
                self._series.refused(caller.holder, error.kind)
            raise
        reservation = Reservation(kv_bytes)
        self.on_change()
        self._show(caller.holder)
        try:
            yield reservation
        finally:
            now, reservation.kv_bytes = time.monotonic(), 0
            self._shares.give_back(caller.holder, kv_bytes, reservation.tokens, now)
            self.on_change()
            self._show(caller.holder)

    def _show(self, holder: str) -> None:
        if self._series is not None:
            self._series.holds(holder, self._shares.held_by(holder))


def quota_of(settings: ServiceSettings) -> Quota:
    """What a service was told that one holder may take of it."""
    return Quota(
        *(settings.quota_sessions, settings.quota_kv_bytes),
        *(settings.quota_requests_per_minute, settings.quota_tokens_per_minute),
    )


async def converse(
    work: Sequence[Coroutine[Any, Any, None]], end_writing: Callable[[], Awaitable[None]]
) -> None:
    """Run all of `work` until one part ends, and raise what it raised; cancel the others.
    `end_writing` lets the present frame leave: cancelled in the middle, it would take the place of
    the call's status, which then never reaches the caller."""
    tasks = [asyncio.create_task(each) for each in work]
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
        """`write` may drop a message; above `limit` waiting messages there is no `room`."""
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
        """No further frame is written once the present one has left, which may take a moment."""
        self._ending = True
        self._changed.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), LAST_WRITE_S)
