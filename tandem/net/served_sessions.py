"""The handling of sessions, which are streams, in every service: admit, open, converse, end.
Invariant: what is reserved is given back exactly once; the frame that is being written when a
session ends leaves whole."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

from tandem.core.errors import ResourceExhausted
from tandem.net.quotas import FairShares, HolderRefused, Quota, Room
from tandem.net.scopes import Caller, current_caller
from tandem.net.tenant import Tenant
from tandem.settings import ServiceSettings
from tandem.telemetry.metrics import HolderSeries

LAST_WRITE_S = 1.0

Message = TypeVar("Message")


class Reservation:
    """Capacity reserved for a session, nothing after it was given back; `tokens` is set to the
    session's usage when it ends."""

    def __init__(self, admission: "Admission", caller: Caller, kv_bytes: int) -> None:
        self.kv_bytes = kv_bytes
        self.tokens = 0
        self._admission = admission
        self._caller = caller

    def take_more(self, kv_bytes: int) -> None:
        """Take `kv_bytes` bytes more, once the length of the session's text is known. Raises
        ResourceExhausted."""
        self._admission.take_more(self._caller, kv_bytes)
        self.kv_bytes += kv_bytes

    def take_spare(self, kv_bytes: int, leaving: float) -> bool:
        """Take `kv_bytes` bytes more for what the session can do without, if there is room for them
        and a share of all memory, `leaving`, stays free; return whether it was so."""
        taken = self._admission.take_spare(self._caller, kv_bytes, leaving)
        self.kv_bytes += kv_bytes if taken else 0
        return taken


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
        """Start with no sessions. `what` is what refusals call a place."""
        self.kv_budget_bytes = kv_budget_bytes
        self._shares = FairShares(Room(max_sessions, kv_budget_bytes, what), quota or Quota())
        self._series = series
        self.on_change: Callable[[], None] = lambda: None
        """Called when a session has taken its room, or given it back."""

    @property
    def sessions(self) -> int:
        return self._shares.sessions

    def claim(self, holder: str) -> float:
        """See `FairShares.claim`."""
        return self._shares.claim(holder)

    @property
    def kv_bytes(self) -> int:
        return self._shares.kv_bytes

    def kv_tokens(self, bytes_per_token: int) -> int:
        """Return how many tokens the budget holds, for all sessions together; 0 where they need no
        memory."""
        return min(self.kv_budget_bytes // bytes_per_token, 2**32 - 1) if bytes_per_token else 0

    @property
    def kv_free_bytes(self) -> int:
        return self.kv_budget_bytes - self.kv_bytes

    @contextmanager
    def reserve(self, kv_bytes: int = 0, grammar_of: Tenant | None = None) -> Iterator[Reservation]:
        """Reserve room for one session of the current caller while the context is open. Raises
        ResourceExhausted saying which limit was met. `grammar_of` is the tenant whose grammar the
        session follows, if it follows one."""
        caller = current_caller()
        now = time.monotonic()
        with self._refusals_counted(caller):
            if grammar_of is not None:
                self._shares.check_grammar(grammar_of.caller, grammar_of.id, now, caller.quota)
            self._shares.take(caller.holder, kv_bytes, now, caller.quota)
        reservation = Reservation(self, caller, kv_bytes)
        self.on_change()
        self._show(caller.holder)
        try:
            yield reservation
        finally:
            now = time.monotonic()
            held_bytes, reservation.kv_bytes = reservation.kv_bytes, 0
            self._shares.give_back(caller.holder, held_bytes, reservation.tokens, now)
            self.on_change()
            self._show(caller.holder)

    def take_more(self, caller: Caller, kv_bytes: int) -> None:
        """Enlarge a reservation of that caller."""
        with self._refusals_counted(caller):
            self._shares.take_more(caller.holder, kv_bytes, time.monotonic(), caller.quota)
        self.on_change()

    def take_spare(self, caller: Caller, kv_bytes: int, leaving: float) -> bool:
        """See `Reservation.take_spare`. No refusal is counted: nobody is refused anything."""
        if self.kv_free_bytes - kv_bytes < leaving * self.kv_budget_bytes:
            return False
        try:
            self._shares.take_more(caller.holder, kv_bytes, time.monotonic(), caller.quota)
        except ResourceExhausted:
            return False
        self.on_change()
        return True

    def spend_grammar(self, tenant: Tenant, seconds: float) -> None:
        """Count the time for computing a grammar of the tenant, useful or not."""
        self._shares.spend_grammar(tenant.caller, tenant.id, seconds, time.monotonic())

    @contextmanager
    def _refusals_counted(self, caller: Caller) -> Iterator[None]:
        try:
            yield
        except HolderRefused as error:
            if self._series is not None:
                self._series.refused(caller.holder, error.kind)
            raise

    def _show(self, holder: str) -> None:
        if self._series is not None:
            self._series.holds(holder, self._shares.held_by(holder))


def quota_of(settings: ServiceSettings) -> Quota:
    """Return the default quota of a holder from the service's settings."""
    return Quota(
        sessions=settings.quota_sessions,
        kv_bytes=settings.quota_kv_bytes,
        requests_per_minute=settings.quota_requests_per_minute,
        tokens_per_minute=settings.quota_tokens_per_minute,
        grammar_s_per_minute=settings.quota_grammar_s_per_minute,
    )


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
