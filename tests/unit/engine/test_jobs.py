"""The engine thread: who shares a pass, whose error is whose, what a cancellation stops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from tandem.core.errors import InvalidArgument, Unavailable
from tandem.engine.base import ForwardCancelled, Logits, Segment, Session, never
from tandem.engine.jobs import Done, EngineThread
from tandem.engine.scripted import ScriptedEngine, scripted_law

VOCABULARY = 8
DEADLINE_S = 60.0


class Watched:
    """A scripted engine that says when a pass begins, and may hold it there."""

    def __init__(self) -> None:
        self.engine = ScriptedEngine(VOCABULARY, scripted_law(1, VOCABULARY), context_length=64)
        self.began = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()
        self.batches: list[int] = []
        self.threads: set[int] = set()
        self.fails: Callable[[Sequence[Segment]], Exception | None] = lambda batch: None

    def open(self, capacity: int, spare: int = 0) -> Session:
        self.threads.add(threading.get_ident())
        return self.engine.open(capacity, spare)

    def forward(
        self, batch: Sequence[Segment], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        self.threads.add(threading.get_ident())
        self.batches.append(len(batch))
        self.began.release()
        while not self.gate.wait(1e-3):  # as a layer's end does
            if cancelled():
                raise ForwardCancelled("between two layers")
        if error := self.fails(batch):
            raise error
        return self.engine.forward(batch, cancelled)

    async def pass_begun(self) -> None:
        begun = await asyncio.to_thread(self.began.acquire, timeout=DEADLINE_S)
        assert begun, "no pass began"


class Steps:
    """A job of `count` passes of one token each; its result is the rows it was given."""

    def __init__(self, session: Session, count: int = 1, fails_at: int | None = None) -> None:
        self.session = session
        self.rows: list[Logits] = []
        self._count = count
        self._fails_at = fails_at

    def segment(self) -> Segment:
        return Segment(self.session, (len(self.rows),), 1)

    def take(self, logits: Logits) -> bool:
        if len(self.rows) == self._fails_at:
            raise ValueError("this job's own fault")
        self.rows.append(logits)
        return len(self.rows) == self._count

    def result(self) -> list[Logits]:
        return self.rows


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.fixture
def thread(watched: Watched) -> Iterator[EngineThread]:
    engine: Any = watched
    running = EngineThread(engine, "test-engine")
    yield running
    watched.gate.set()
    running.stop()


@asynccontextmanager
async def held(watched: Watched, thread: EngineThread) -> AsyncIterator[None]:
    """Inside, one pass is under way and does not end."""
    async with thread.session(8) as session:
        watched.gate.clear()
        ticket = thread.submit(Steps(session))
        await watched.pass_begun()
        yield
        watched.gate.set()
        await ticket.future


async def test_jobs_that_wait_share_the_next_pass(watched: Watched, thread: EngineThread) -> None:
    async with thread.session(8) as one, thread.session(8) as other:
        async with held(watched, thread):
            tickets = [thread.submit(Steps(session)) for session in (one, other)]
        done: list[Done[list[Logits]]] = [await ticket.future for ticket in tickets]
    assert watched.batches == [1, 2]
    assert [finished.cost.batch_size for finished in done] == [2, 2]
    for finished in done:
        assert finished.cost.queue_s > 0
        assert finished.cost.model_s > 0


async def test_jobs_join_and_leave_between_passes(watched: Watched, thread: EngineThread) -> None:
    """Continuous batching: a long job's passes are shared by what comes and goes meanwhile."""
    async with thread.session(8) as long_one, thread.session(8) as short_one:
        watched.gate.clear()
        long_job = thread.submit(Steps(long_one, 3))
        await watched.pass_begun()
        short_job = thread.submit(Steps(short_one, 1))
        watched.gate.set()
        await short_job.future
        done = await long_job.future
    assert watched.batches == [1, 2, 1]
    assert len(done.value) == 3
    assert done.cost.batch_size == 2


async def test_what_follows_from_a_pass_joins_the_next_one(
    watched: Watched, thread: EngineThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.engine.jobs.PATIENCE", 1e9)  # until the loop has reacted
    async with thread.session(8) as long_one, thread.session(8) as short_one:
        watched.gate.clear()
        long_job = thread.submit(Steps(long_one, 4))
        await watched.pass_begun()
        short_job = thread.submit(Steps(short_one, 1))
        watched.gate.set()
        await short_job.future
        await thread.submit(Steps(short_one, 1)).future
        await long_job.future
    assert watched.batches == [1, 2, 2, 1]


async def test_jobs_aside_take_their_rows_after_the_others_are_told(
    watched: Watched, thread: EngineThread
) -> None:
    told = threading.Event()
    in_time: list[bool] = []

    class Telling(Steps):
        def take(self, logits: Logits) -> bool:
            thread.report(loop, told.set)
            return super().take(logits)

    class Waiting(Steps):
        def take(self, logits: Logits) -> bool:
            in_time.append(told.wait(DEADLINE_S))
            return super().take(logits)

    loop = asyncio.get_running_loop()
    async with thread.session(8) as one, thread.session(8) as other:
        async with held(watched, thread):
            aside = thread.submit(Waiting(one), aside=True)
            first = thread.submit(Telling(other))
        await first.future
        await aside.future
    assert watched.batches == [1, 2]
    assert in_time == [True]


async def test_a_shared_pass_gives_each_job_its_own_rows(
    watched: Watched, thread: EngineThread
) -> None:
    async with thread.session(8) as one, thread.session(8) as other:
        alone = (await thread.submit(Steps(one, 2)).future).value
        await thread.call(lambda: one.rollback(0))
        tickets = [thread.submit(Steps(one, 2)), thread.submit(Steps(other, 2))]
        for ticket in tickets:
            np.testing.assert_array_equal((await ticket.future).value, alone)


async def test_the_engine_is_touched_by_its_thread_alone(
    watched: Watched, thread: EngineThread
) -> None:
    async with thread.session(8) as session:
        await thread.submit(Steps(session)).future
    assert len(watched.threads) == 1
    assert threading.get_ident() not in watched.threads


@pytest.mark.parametrize("jobs", [1, 2, 5])
async def test_a_failing_pass_fails_its_jobs_and_no_others(
    jobs: int, watched: Watched, thread: EngineThread
) -> None:
    """The whole pass fails, then each job alone shows whose fault it was."""
    async with thread.session(8) as bad:
        sessions = [await thread.call(lambda: watched.open(8)) for _ in range(jobs - 1)]
        watched.fails = lambda batch: (
            MemoryError("too large") if any(part.session is bad for part in batch) else None
        )
        async with held(watched, thread):
            failing = thread.submit(Steps(bad))
            tickets = [thread.submit(Steps(session, 2)) for session in sessions]
        with pytest.raises(MemoryError):
            await failing.future
        for ticket in tickets:
            assert len((await ticket.future).value) == 2
        watched.fails = lambda batch: None
        assert (await thread.submit(Steps(bad)).future).value
        for session in sessions:
            await thread.call(session.close)


async def test_every_job_of_a_broken_engine_fails_and_the_thread_lives(
    watched: Watched, thread: EngineThread
) -> None:
    async with thread.session(8) as one, thread.session(8) as other:
        watched.fails = lambda batch: RuntimeError("broken")
        tickets = [thread.submit(Steps(session)) for session in (one, other)]
        for ticket in tickets:
            with pytest.raises(RuntimeError, match="broken"):
                await ticket.future
        watched.fails = lambda batch: None
        assert (await thread.submit(Steps(one)).future).value


async def test_a_job_that_chokes_on_its_rows_fails_alone(
    watched: Watched, thread: EngineThread
) -> None:
    async with thread.session(8) as one, thread.session(8) as other:
        async with held(watched, thread):
            choking = thread.submit(Steps(one, 3, fails_at=1))
            healthy = thread.submit(Steps(other, 3))
        with pytest.raises(ValueError, match="own fault"):
            await choking.future
        assert len((await healthy.future).value) == 3


async def test_a_segment_the_engine_refuses_fails_its_job_alone(
    watched: Watched, thread: EngineThread
) -> None:
    async with thread.session(1) as small, thread.session(8) as other:
        async with held(watched, thread):
            refused = thread.submit(Steps(small, 2))
            healthy = thread.submit(Steps(other, 3))
        with pytest.raises(InvalidArgument, match="capacity"):
            await refused.future
        assert len((await healthy.future).value) == 3


async def test_cancelling_the_only_job_ends_its_pass(
    watched: Watched, thread: EngineThread
) -> None:
    async with thread.session(8) as session, thread.session(8) as other:
        watched.gate.clear()
        ticket = thread.submit(Steps(session))
        await watched.pass_begun()
        ticket.cancel()
        assert ticket.future.cancelled()
        # The thread is free again although the pass was never let through.
        assert await asyncio.wait_for(thread.call(lambda: session.length), DEADLINE_S) == 0
        watched.gate.set()
        assert (await thread.submit(Steps(other)).future).value


async def test_cancelling_one_of_two_leaves_the_other(
    watched: Watched, thread: EngineThread
) -> None:
    async with thread.session(8) as one, thread.session(8) as other:
        async with held(watched, thread):
            tickets = [thread.submit(Steps(session, 2)) for session in (one, other)]
            tickets[0].cancel()
        assert len((await tickets[1].future).value) == 2
        assert tickets[0].future.cancelled()
    assert watched.batches == [1, 1, 1]


async def test_calls_run_in_order_even_if_nobody_waits(
    watched: Watched, thread: EngineThread
) -> None:
    ran: list[int] = []
    async with held(watched, thread):
        futures = [thread.call(lambda n=n: ran.append(n)) for n in range(5)]  # type: ignore[misc]
        futures[1].cancel()
        assert not ran
    await futures[-1]
    assert ran == [0, 1, 2, 3, 4]


async def test_a_call_s_error_is_its_caller_s(watched: Watched, thread: EngineThread) -> None:
    def fail() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await thread.call(fail)
    assert await thread.call(lambda: 5) == 5


@pytest.mark.parametrize("moment", ["opening", "using"])
async def test_a_cancelled_session_is_freed(
    moment: str, watched: Watched, thread: EngineThread
) -> None:
    """Also when the cancellation comes while the session is still waiting to be opened."""
    entered = asyncio.Event()

    async def use() -> None:
        async with thread.session(16):
            entered.set()
            await asyncio.Event().wait()

    if moment == "opening":
        async with held(watched, thread):
            task = asyncio.create_task(use())
            await asyncio.sleep(0)
            task.cancel()
    else:
        task = asyncio.create_task(use())
        await entered.wait()
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await thread.call(lambda: watched.engine.sessions_open) == 0
    assert watched.engine.kv_bytes_in_use == 0
    assert entered.is_set() == (moment == "using")


async def test_a_session_closes_after_the_job_that_was_using_it(
    watched: Watched, thread: EngineThread
) -> None:
    async with thread.session(8) as session:
        watched.gate.clear()
        ticket = thread.submit(Steps(session))
        await watched.pass_begun()
        ticket.cancel()
    assert watched.engine.sessions_open == 0


async def test_a_session_that_cannot_be_opened_leaves_nothing(
    watched: Watched, thread: EngineThread
) -> None:
    with pytest.raises(InvalidArgument, match="capacity"):
        async with thread.session(65):
            pytest.fail("it was opened")
    assert watched.engine.sessions_open == 0


async def test_stopping_fails_what_is_under_way_and_refuses_more(
    watched: Watched, thread: EngineThread
) -> None:
    session = await thread.call(lambda: watched.open(8))
    watched.gate.clear()
    endless = thread.submit(Steps(session, 10**9))
    await watched.pass_begun()
    last = thread.call(session.close)
    stopping = asyncio.create_task(asyncio.to_thread(thread.stop))
    while thread.waiting < 2:  # the call, and the end
        await asyncio.sleep(0)
    watched.gate.set()
    await stopping
    with pytest.raises(Unavailable):
        await endless.future
    await last  # what was handed over before the stop is still done
    for refused in (lambda: thread.submit(Steps(session)), lambda: thread.call(lambda: None)):
        with pytest.raises(Unavailable):
            refused()
    thread.stop()


async def test_what_waits_is_counted(watched: Watched, thread: EngineThread) -> None:
    async with thread.session(8) as session:
        async with held(watched, thread):
            ticket = thread.submit(Steps(session))
            assert thread.waiting == 1
        await ticket.future
        assert thread.waiting == 0
