"""Files of several tenants, read by a few processes, of which no tenant takes more than its share.

    pool = ExtractionPool(extractors, PoolLimits(cpu_s_per_minute=60))
    group = await pool.run("edge-1", read)      # read(extractor) is called in a thread

Invariants: an extractor reads for one tenant at a time, and is free again exactly once, when the
thread that used it is done, whoever still waits for it; while tenants wait, turns go round among
them; one tenant's turns never take all extractors where there are several; what a tenant's files
took of a processor is counted, and who had its seconds waits. Used on the event loop only.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from tandem.core.errors import Unavailable
from tandem.index.extractor import Extractor
from tandem.net.quotas import BUSY_RETRY_S, KEPT_SHARE, Bucket, HolderRefused
from tandem.telemetry.metrics import HolderSeries

LONGEST_WAIT_S = 60.0
"""A tenant that would wait longer for seconds of a processor is refused instead."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Limits of files, all of them and those of one tenant."""

    processes: int = 2
    waiting_per_tenant: int = 8
    """Streams of one tenant whose next file waits for a process."""
    cpu_s_per_minute: int = 60
    """Of one tenant; 0: no limit."""


class ExtractionPool:
    """Turns of tenants with extractors; `close` it."""

    def __init__(
        self, extractors: Sequence[Extractor], limits: PoolLimits, series: HolderSeries
    ) -> None:
        self._series = series
        self._extractors = tuple(extractors)
        self._limits = limits
        self._free = list(extractors)
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[Extractor]]] = {}
        self._served: dict[str, int] = {}
        """The number of the turn that each tenant had last."""
        self._turns = 0
        self._cpu_s: dict[str, Bucket] = {}
        self._later: asyncio.TimerHandle | None = None
        self._threads = ThreadPoolExecutor(len(extractors), "retriever-extract")

    async def run(self, tenant: str, work: Callable[[Extractor], tuple[Answer, float]]) -> Answer:
        """Return what `work` answers, once it is this tenant's turn; it blocks a thread, and tells
        the seconds of a processor that it took. Raises ResourceExhausted naming the limit that the
        tenant met."""
        extractor = await self._turn(tenant)
        loop = asyncio.get_running_loop()
        try:
            reading = self._threads.submit(work, extractor)
        except RuntimeError as error:  # closed meanwhile
            self._end_turn(tenant, extractor, 0.0)
            raise Unavailable("the retriever is stopping") from error
        # Not when the caller stops waiting: the thread still uses the extractor then.
        reading.add_done_callback(
            lambda done: loop.call_soon_threadsafe(self._end_turn, tenant, extractor, _cost(done))
        )
        answer, _ = await asyncio.wrap_future(reading)
        return answer

    def close(self) -> None:
        """Block until the threads are done; files that are being read are not waited for."""
        for extractor in self._extractors:
            extractor.close()
        self._threads.shutdown()

    async def _turn(self, tenant: str) -> Extractor:
        waiting = self._waiting.setdefault(tenant, deque())
        bucket = self._bucket(tenant)
        most = self._limits.waiting_per_tenant
        now = time.monotonic()
        if (wait_s := bucket.wait_s(now)) > LONGEST_WAIT_S:
            why = f"extraction: {_name(tenant)} has used its {self._limits.cpu_s_per_minute} s of"
            raise self._refused(tenant, f"{why} CPU time per minute", wait_s)
        if len(waiting) >= most:
            why = f"extraction: {most} files of {_name(tenant)} are already waiting"
            raise self._refused(tenant, why, BUSY_RETRY_S)
        turn: asyncio.Future[Extractor] = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        self._give_turns()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was given, and nobody will use it
                self._end_turn(tenant, turn.result(), 0.0)
            elif turn in waiting:
                waiting.remove(turn)
            raise

    def _refused(self, tenant: str, why: str, retry_after_s: float) -> HolderRefused:
        self._series.refused(tenant, "extraction")
        return HolderRefused("extraction", why, retry_after_s)

    def _end_turn(self, tenant: str, extractor: Extractor, cpu_s: float) -> None:
        self._running[tenant] -= 1
        self._free.append(extractor)
        self._bucket(tenant).spend(cpu_s, time.monotonic())
        self._give_turns()

    def _give_turns(self) -> None:
        """Give turns to the tenants whose last turn is the longest ago; once more when a tenant has
        seconds to spend again."""
        now = time.monotonic()
        while self._free:
            able = [tenant for tenant in self._waiting if self._may_run(tenant, now)]
            if not able:
                break
            tenant = min(able, key=lambda waiting: self._served.get(waiting, 0))
            turn = self._waiting[tenant].popleft()
            if turn.done():  # cancelled in this very moment
                continue
            self._turns += 1
            self._served[tenant] = self._turns
            self._running[tenant] += 1
            turn.set_result(self._free.pop())
        self._wake_later(now)

    def _may_run(self, tenant: str, now: float) -> bool:
        if not self._waiting[tenant] or self._bucket(tenant).wait_s(now) > 0:
            return False
        if not tenant:  # all callers of a port without keys, among whom nothing is shared out
            return True
        processes = len(self._extractors)
        return self._running[tenant] < max(1, processes - max(1, processes // KEPT_SHARE))

    def _wake_later(self, now: float) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        waits_s = [
            self._bucket(tenant).wait_s(now) for tenant, turns in self._waiting.items() if turns
        ]
        if waits_s := [wait_s for wait_s in waits_s if wait_s > 0]:
            loop = asyncio.get_running_loop()
            self._later = loop.call_later(min(waits_s), self._give_turns)

    def _bucket(self, tenant: str) -> Bucket:
        now = time.monotonic()
        bucket = self._cpu_s.setdefault(tenant, Bucket(now))
        bucket.set_rate(self._limits.cpu_s_per_minute, now)
        return bucket


def _cost(reading: Future[tuple[Answer, float]]) -> float:
    """Return the processor time in seconds that a reading took; 0 for one that did not come to its
    end."""
    if reading.cancelled() or reading.exception() is not None:
        return 0.0
    return reading.result()[1]


def _name(tenant: str) -> str:
    return f"'{tenant}'" if tenant else "everybody together"
