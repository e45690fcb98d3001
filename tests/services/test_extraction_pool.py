"""Turns of tenants with the extractors: shares, the order, seconds of a processor, refusals."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from tandem.core.errors import ResourceExhausted
from tandem.index.extraction import Format
from tandem.index.extractor import ExtractionLimits, Extractor
from tandem.net.quotas import HolderRefused
from tandem.net.retriever_client import Upload
from tandem.net.status import Rejected
from tandem.net.tenant import Tenant
from tandem.services.retriever import extraction_pool
from tandem.services.retriever.extraction_pool import ExtractionPool, PoolLimits
from tandem.services.retriever.servicer import RetrieverLimits
from tests.services.scripted_suite import sample
from tests.services.two_sided_suite import retriever
from tests.unit.index.hostile_pdfs import many_operations

Work = Callable[[Extractor], tuple[str, float]]


@asynccontextmanager
async def pool_of(
    processes: int, limits: PoolLimits | None = None
) -> AsyncIterator[ExtractionPool]:
    extractors = [Extractor() for _ in range(processes)]
    pool = ExtractionPool(extractors, limits or PoolLimits())
    try:
        yield pool
    finally:
        await asyncio.to_thread(pool.close)


class Files:
    """Work that ends when it is told, and notes when it begins."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.begun: list[str] = []
        self.changed = asyncio.Event()
        self._ends: dict[str, threading.Event] = {}

    def named(self, name: str, cpu_s: float = 0.0) -> Work:
        end = self._ends[name] = threading.Event()

        def work(extractor: Extractor) -> tuple[str, float]:
            self._loop.call_soon_threadsafe(self._note, name)
            assert end.wait(60)
            return name, cpu_s

        return work

    def end(self, name: str) -> None:
        self._ends[name].set()

    def _note(self, name: str) -> None:
        self.begun.append(name)
        self.changed.set()

    async def begun_are(self, *names: str) -> None:
        async with asyncio.timeout(30):
            while len(self.begun) < len(names):
                self.changed.clear()
                await self.changed.wait()
        assert sorted(self.begun) == sorted(names)


async def test_seconds_of_a_processor_are_counted_and_who_had_its_own_waits_or_is_refused() -> None:
    async with pool_of(1, PoolLimits(cpu_s_per_minute=600)) as pool:
        took = asyncio.get_running_loop().time
        assert await pool.run(Tenant("a"), lambda extractor: ("first", 604.0)) == "first"
        began_s = took()
        assert await pool.run(Tenant("b"), lambda extractor: ("other", 0.0)) == "other"
        assert took() - began_s < 0.4, "it does not wait for what another tenant took"
        assert await pool.run(Tenant("a"), lambda extractor: ("second", 1300.0)) == "second"
        assert took() - began_s > 0.3, "until 1 s of 10 a second is there again"
        why = "'a' has used its 600 s of CPU time for extraction per minute; try again in"
        with pytest.raises(HolderRefused, match=why) as refused:
            await pool.run(Tenant("a"), lambda extractor: ("third", 0.0))
        assert 60 < refused.value.retry_after_s < 140
        assert await pool.run(Tenant("b"), lambda extractor: ("other", 0.0)) == "other"


async def test_an_extractor_is_not_free_before_the_thread_that_uses_it_is_done() -> None:
    async with pool_of(1) as pool, asyncio.TaskGroup() as group:
        files = Files(asyncio.get_running_loop())
        left = group.create_task(pool.run(Tenant("a"), files.named("left")))
        await files.begun_are("left")
        waiting = group.create_task(pool.run(Tenant("a"), files.named("gives up")))
        await asyncio.sleep(0)
        for task in (left, waiting):
            task.cancel()
        following = group.create_task(pool.run(Tenant("b"), files.named("next")))
        await asyncio.wait((left, waiting))
        assert files.begun == ["left"]
        files.end("left")
        await files.begun_are("left", "next")
        files.end("next")
        assert await following == "next"


async def test_work_that_fails_gives_its_extractor_back() -> None:
    def fails(extractor: Extractor) -> tuple[str, float]:
        raise ResourceExhausted("the disk is full")

    async with pool_of(1) as pool:
        with pytest.raises(ResourceExhausted, match="the disk is full"):
            await pool.run(Tenant("a"), fails)
        assert await pool.run(Tenant("a"), lambda extractor: ("next", 0.0)) == "next"


async def test_hostile_files_of_one_caller_meet_its_limit_and_what_came_before_is_stored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each takes 2 s of a processor, which are all that a minute has."""
    monkeypatch.setattr(extraction_pool, "LONGEST_WAIT_S", 15.0)
    limits = RetrieverLimits(extraction=PoolLimits(cpu_s_per_minute=2))
    extractor = Extractor(ExtractionLimits(base_s=2))
    async with retriever(tmp_path, limits=limits, extractor=extractor) as service:
        slow = many_operations()
        uploads = [Upload(f"slow-{number}", slow, Format.PDF.value) for number in range(3)]
        with pytest.raises(Rejected, match="everybody together has used its 2 s") as refused:
            await service.ingest(Upload("before", b"words"), *uploads)
        assert "1 documents of this stream are stored" in str(refused.value)
        assert service.index.texts().keys() >= {"before"}
        refusals = partial(sample, service.metrics, "tandem_holder_refusals_total")
        assert refusals(holder="anyone", limit="extraction") == 1
