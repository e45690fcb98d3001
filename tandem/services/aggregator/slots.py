"""Slots for requests, with a bounded queue before them. Invariants: at most `running` hold a slot
and at most `waiting` wait; one more is refused at once; a free slot goes to the holder with the
fewest, among equals to the one who got its last slot the longest ago, then to the smallest
priority, then to who came first; one holder never has them all, and leaves one to each other holder
who asked of late and has none. Where all places are taken, who is below its share gets that of the
last request of the holder with the most, if that still waits."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, field

from grpc import StatusCode

from tandem.core.errors import ResourceExhausted
from tandem.net.quotas import BUSY_RETRY_S, KEPT_SHARE, HolderRefused, Quota
from tandem.net.scopes import current_caller
from tandem.net.served_sessions import Admission, Reservation
from tandem.net.status import Rejected
from tandem.telemetry.metrics import HolderSeries

ACTIVE_S = 5.0
"""Who asked within this time may ask again at any moment."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A request in the queue."""

    holder: str
    priority: int
    turn: asyncio.Future[None] = field(default_factory=asyncio.Future)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it has given its place back."""


class Slots:
    """Used on the event loop only."""

    def __init__(
        self,
        running: int,
        waiting: int,
        quota: Quota | None = None,
        series: HolderSeries | None = None,
    ) -> None:
        self._limit = running
        self._max_waiting = waiting
        self._admission = Admission(running + waiting, quota=quota, series=series)
        self._series = series
        self._running: Counter[str] = Counter()
        self._given: list[str] = []
        self._asked_s: dict[str, float] = {}
        self._queue: list[_Waiting] = []

    @property
    def running(self) -> int:
        return self._running.total()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @asynccontextmanager
    async def slot(
        self, waits: AbstractContextManager[object], timeout_s: float, priority: int = 0
    ) -> AsyncIterator[Reservation]:
        """Wait for a slot, inside `waits`, and hold it. ResourceExhausted when all is taken or the
        caller has its share, Rejected when none comes free in time."""
        waiting = _Waiting(current_caller().holder, priority)
        try:
            with ExitStack() as place:
                reservation = await self._reserved(waiting.holder, place)
                with waits:
                    await self._turn_within(timeout_s, waiting)
                try:
                    yield reservation
                finally:
                    self._leave(waiting.holder)
        finally:
            waiting.left.set()

    async def _reserved(self, holder: str, place: ExitStack) -> Reservation:
        """Reserve a place, which is held until `place` closes. Raises ResourceExhausted."""
        while True:
            try:
                return place.enter_context(self._admission.reserve())
            except HolderRefused:
                raise
            except ResourceExhausted:
                last = self._last_of_most(holder)
                if last is None:
                    full = f"{self._limit} requests are running and {self._max_waiting} are waiting"
                    raise ResourceExhausted(f"queue: {full}; try again") from None
            self._send_away(last)
            await last.left.wait()

    def _last_of_most(self, holder: str) -> _Waiting | None:
        """Return the last in turn among the waiting requests of the holder that has the most
        places, if `holder` would have fewer even with one place more; otherwise None."""
        held = self._running + Counter(each.holder for each in self._queue)
        able = [each for each in self._queue if each.holder and not each.turn.done()]
        last = max(
            reversed(able), key=lambda each: (held[each.holder], each.priority), default=None
        )
        return last if last and holder and held[holder] + 1 < held[last.holder] else None

    def _send_away(self, waiting: _Waiting) -> None:
        if self._series is not None:
            self._series.refused(waiting.holder, "sessions")
        why = f"sessions: '{waiting.holder}' has most of the slots, and others are waiting"
        waiting.turn.set_exception(HolderRefused("sessions", why, BUSY_RETRY_S))
        self._queue.remove(waiting)

    async def _turn_within(self, timeout_s: float, waiting: _Waiting) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._turn(waiting)
        except TimeoutError:
            why = "no slot was free before the request's deadline"
            raise Rejected(StatusCode.DEADLINE_EXCEEDED, why) from None

    async def _turn(self, waiting: _Waiting) -> None:
        """Wait until the holder of `waiting` has one slot more."""
        holder = waiting.holder
        self._asked_s[holder] = asyncio.get_running_loop().time()
        if self.running < self._limit and self._may_run(holder):
            self._give(holder)
            return
        self._queue.append(waiting)
        try:
            await waiting.turn
        except asyncio.CancelledError:
            if waiting in self._queue:
                self._queue.remove(waiting)
            elif not waiting.turn.cancelled() and waiting.turn.exception() is None:
                # It was given, and nobody will use it.
                self._leave(holder)
            raise

    def _leave(self, holder: str) -> None:
        """Take a slot from `holder`, and give all free slots that may be given to the next in the
        queue."""
        self._running[holder] -= 1
        # Who waited may have been cancelled in this very moment, and not have left the queue yet.
        self._queue = [each for each in self._queue if not each.turn.done()]
        while self.running < self._limit:
            able = [each for each in self._queue if self._may_run(each.holder)]
            if not able:
                return
            following = min(able, key=self._before)
            self._queue.remove(following)
            self._give(following.holder)
            following.turn.set_result(None)

    def _may_run(self, holder: str) -> bool:
        """Return whether `holder` may have one more slot. A holder without any always may. The long
        or unread answers of one holder leave a quarter of the slots to others, and a slot to each
        other holder who is active and has none."""
        if not holder or not self._running[holder]:
            return True
        since_s = asyncio.get_running_loop().time() - ACTIVE_S
        expected = sum(
            other not in ("", holder) and asked_s > since_s and not self._running[other]
            for other, asked_s in self._asked_s.items()
        )
        most = self._limit - self._limit // KEPT_SHARE
        return self._running[holder] < most and self.running + expected < self._limit

    def _give(self, holder: str) -> None:
        self._running[holder] += 1
        self._given = [*(each for each in self._given if each != holder), holder]

    def _before(self, waiting: _Waiting) -> tuple[int, int, int]:
        """Return the sort key of a waiting request: holders with fewer slots come first, then those
        whose last slot was the longest ago, then the smallest priority."""
        holder = waiting.holder
        latest = self._given.index(holder) + 1 if holder in self._given else 0
        return self._running[holder], latest, waiting.priority
