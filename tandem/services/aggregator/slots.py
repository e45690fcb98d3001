"""Slots for requests, with a bounded queue before them. Invariants: at most `running` hold a slot
and at most `waiting` wait; one more is refused at once; a free slot goes to the holder with the
fewest, among equals to the one who got its last slot the longest ago, then to the smallest
priority, then to who came first; one holder never has them all, and leaves one to each other holder
who asked of late and has none."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager

from tandem.core.errors import ResourceExhausted
from tandem.net.quotas import KEPT_SHARE, Quota
from tandem.net.scopes import current_caller
from tandem.net.served_sessions import Admission, Reservation
from tandem.telemetry.metrics import HolderSeries

ACTIVE_S = 5.0
"""Who asked within this time may ask again at any moment."""


class Slots:
    """Used on the event loop only."""

    def __init__(
        self,
        running: int,
        waiting: int,
        quota: Quota | None = None,
        series: HolderSeries | None = None,
    ) -> None:
        self._limit, self._max_waiting = running, waiting
        self._admission = Admission(running + waiting, quota=quota, series=series)
        self._running: Counter[str] = Counter()
        self._given: list[str] = []
        self._asked_s: dict[str, float] = {}
        self._queue: list[tuple[str, int, asyncio.Future[None]]] = []

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
        caller has its share, TimeoutError when none comes free in time."""
        if self.running >= self._limit and self.waiting >= self._max_waiting:
            full = f"{self._limit} requests are running and {self._max_waiting} wait"
            raise ResourceExhausted(f"queue: {full}; try again")
        holder = current_caller().holder
        with self._admission.reserve() as reservation:
            with waits:
                async with asyncio.timeout(timeout_s):
                    await self._turn(holder, priority)
            try:
                yield reservation
            finally:
                self._leave(holder)

    async def _turn(self, holder: str, priority: int) -> None:
        """Returns once `holder` has one slot more."""
        self._asked_s[holder] = asyncio.get_running_loop().time()
        if self.running < self._limit and self._may_run(holder):
            self._give(holder)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((holder, priority, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was given, and nobody will use it
                self._leave(holder)
            else:
                self._queue = [each for each in self._queue if each[2] is not turn]
            raise

    def _leave(self, holder: str) -> None:
        """One slot less for `holder`; the next of those that wait get what may be had."""
        self._running[holder] -= 1
        # Who waited may have been cancelled in this very moment, and not have left the queue yet.
        self._queue = [each for each in self._queue if not each[2].done()]
        while self.running < self._limit:
            able = [n for n, (waits, *_) in enumerate(self._queue) if self._may_run(waits)]
            if not able:
                return
            following = min(able, key=self._before)
            next_holder, _, turn = self._queue.pop(following)
            self._give(next_holder)
            turn.set_result(None)

    def _may_run(self, holder: str) -> bool:
        """Long answers, or unread ones, of one holder leave a quarter of the slots to others, and a
        slot to each of the others who is active and has none. Who has none needs no leave."""
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

    def _before(self, place: int) -> tuple[int, int, int]:
        """Holders with less come first; of one holder's, what has the smallest priority."""
        holder, priority, _ = self._queue[place]
        latest = self._given.index(holder) + 1 if holder in self._given else 0
        return self._running[holder], latest, priority
