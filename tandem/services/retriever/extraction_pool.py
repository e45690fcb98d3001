"""Files of several tenants, read by a few processes that tenants take turns with.

    pool = ExtractionPool(extractors, PoolLimits(cpu_s_per_minute=60))
    group = await pool.run(Tenant("edge-1"), read)      # read(extractor) is called in a thread

Invariants: an extractor reads for one tenant at a time, until the thread that uses it is done,
whoever still waits for it; what a tenant's files took of a processor is counted, and who had its
seconds waits. Used on the event loop only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tandem.index.extractor import Extractor
from tandem.net.fair_shares import Rates
from tandem.net.quotas import HolderRefused
from tandem.net.tenant import Tenant
from tandem.net.turns import FairExecutor

LONGEST_WAIT_S = 60.0
"""A tenant that would wait longer for seconds of a processor is refused instead."""

MOST_WAITING = 1024
"""Files that wait for a process: more than there are ever streams of documents."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Limits of files, all of them and those of one tenant."""

    processes: int = 2
    cpu_s_per_minute: int = 60
    """Of one tenant; 0: no limit."""


class ExtractionPool:
    """Turns of tenants with extractors; `close` it."""

    def __init__(self, extractors: Sequence[Extractor], limits: PoolLimits) -> None:
        self._extractors = tuple(extractors)
        self._free = list(extractors)
        self._cpu_s_per_minute = limits.cpu_s_per_minute
        self._cpu_s = Rates()
        self._threads = FairExecutor("extraction", len(extractors), MOST_WAITING)

    async def run(
        self, tenant: Tenant, work: Callable[[Extractor], tuple[Answer, float]]
    ) -> Answer:
        """Return what `work` answers, once it is this tenant's turn; it blocks a thread, and tells
        the seconds of a processor that it took. Raises ResourceExhausted naming the limit that the
        tenant met."""
        await self._until_paid(tenant)
        loop = asyncio.get_running_loop()

        def read() -> Answer:
            extractor = self._free.pop()  # there are as many as threads
            try:
                answer, cpu_s = work(extractor)
            finally:
                self._free.append(extractor)
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._spend, tenant, cpu_s)
            return answer

        return await asyncio.wrap_future(self._threads.submit(tenant, read))

    def close(self) -> None:
        """Block until the threads are done; files that are being read are not waited for."""
        for extractor in self._extractors:
            extractor.close()
        self._threads.close()

    async def _until_paid(self, tenant: Tenant) -> None:
        per_s = self._cpu_s_per_minute / 60
        while (wait_s := self._cpu_s.wait_s(tenant, per_s, time.monotonic())) > 0:
            if wait_s > LONGEST_WAIT_S:
                used = f"{self._cpu_s_per_minute} s of CPU time for extraction per minute"
                why = f"rate limit reached: {tenant.shown} has used its {used}"
                raise HolderRefused("extraction", why, wait_s)
            await asyncio.sleep(wait_s)

    def _spend(self, tenant: Tenant, cpu_s: float) -> None:
        self._cpu_s.spend(tenant, cpu_s, self._cpu_s_per_minute / 60, time.monotonic())
