"""The engine thread: who shares a pass, whose error is whose, what a cancellation stops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from tandem.backends.interface import ForwardCancelled, ForwardRequest, Logits, Session, never
from tandem.core.errors import InvalidArgument, Unavailable
from tandem.core.probs import SamplingParams
from tandem.core.randomness import SeededRandom
from tandem.runtime import engine_thread
from tandem.runtime.batching_delay import BatchingDelay
from tandem.runtime.engine_jobs import Done, Job
from tandem.runtime.engine_thread import EngineThread
from tandem.runtime.pass_times import PassTimes
from tandem.runtime.session_jobs import DraftJob, DraftRequest
from tandem.specdec.events import DraftTask
from tandem.specdec.presets import PRESETS
from tandem.specdec.rules import RejectionRule
from tandem.testing.scripted import ScriptedEngine, scripted_probs

VOCABULARY = 8
DEADLINE_S = 60.0


class Watched:
    """A scripted engine that says when a pass begins, and may hold it there."""

    def __init__(self) -> None:
        self.engine = ScriptedEngine(VOCABULARY, scripted_probs(1, VOCABULARY), context_length=64)
        self.capabilities = self.engine.capabilities
        self.began = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()
        self.batches: list[int] = []
        self.threads: set[int] = set()
        self.fails: Callable[[Sequence[ForwardRequest]], Exception | None] = lambda batch: None

    def open(self, capacity: int, spare: int = 0) -> Session:
        self.threads.add(threading.get_ident())
        return self.engine.open(capacity, spare)

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
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


class Steps(Job[list[Logits]]):
    """A job of `count` passes of one token each; its result is the rows it was given."""

    def __init__(self, session: Session, count: int = 1, fails_at: int | None = None) -> None:
        self.session = session
        self.rows: list[Logits] = []
        self._count = count
        self._fails_at = fails_at

    def request(self) -> ForwardRequest:
        return ForwardRequest(self.session, (len(self.rows),), 1)

    def take(self, logits: Logits) -> bool:
        if len(self.rows) == self._fails_at:
            raise ValueError("this job's own fault")
        self.rows.append(logits)
        return len(self.rows) == self._count

    def result(self) -> list[Logits]:
        return self.rows


def until_all_reacted(delay: BatchingDelay, ended: int, waiting: int) -> float:
    """In the place of `BatchingDelay.wait_s`."""
    return DEADLINE_S


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
        handle = thread.submit(Steps(session))
        await watched.pass_begun()
        yield
        watched.gate.set()
        await handle.future


async def test_jobs_that_wait_share_the_next_pass(watched: Watched, thread: EngineThread) -> None:
    async with thread.session(8) as one, thread.session(8) as other:
        async with held(watched, thread):
            handles = [thread.submit(Steps(session)) for session in (one, other)]
        done: list[Done[list[Logits]]] = [await handle.future for handle in handles]
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
    monkeypatch.setattr(BatchingDelay, "wait_s", until_all_reacted)
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


async def test_the_pass_of_a_job_alone_begins_before_its_loop_goes_on(
    watched: Watched, thread: EngineThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_thread, "BEGIN_S", DEADLINE_S)
    async with thread.session(32) as session:
        await thread.submit(Steps(session)).future
        for _ in range(20):
            handle = thread.submit(Steps(session))
            thread.let_begin()
            assert thread._begun.is_set()
            await handle.future
        thread.let_begin()  # nothing was submitted: nothing is waited for


async def test_low_priority_jobs_take_their_rows_after_the_others(
    watched: Watched, thread: EngineThread
) -> None:
    reported = threading.Event()
    in_time: list[bool] = []

    class LogprobsRecorder(Steps):
        def take(self, logits: Logits) -> bool:
            thread.report(loop, reported.set)
            return super().take(logits)

    class Waiting(Steps):
        def take(self, logits: Logits) -> bool:
            in_time.append(reported.wait(DEADLINE_S))
            return super().take(logits)

    loop = asyncio.get_running_loop()
    async with thread.session(8) as one, thread.session(8) as other:
        async with held(watched, thread):
            low_priority = thread.submit(Waiting(one), low_priority=True)
            first = thread.submit(LogprobsRecorder(other))
        await first.future
        await low_priority.future
    assert watched.batches == [1, 2]
    assert in_time == [True]


async def test_a_shared_pass_gives_each_job_its_own_rows(
    watched: Watched, thread: EngineThread
) -> None:
    async with thread.session(8) as one, thread.session(8) as other:
        alone = (await thread.submit(Steps(one, 2)).future).value
        await thread.call(lambda: one.rollback(0))
        handles = [thread.submit(Steps(one, 2)), thread.submit(Steps(other, 2))]
        for handle in handles:
            np.testing.assert_array_equal((await handle.future).value, alone)


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
            handles = [thread.submit(Steps(session, 2)) for session in sessions]
        with pytest.raises(MemoryError):
            await failing.future
        for handle in handles:
            assert len((await handle.future).value) == 2
        watched.fails = lambda batch: None
        assert (await thread.submit(Steps(bad)).future).value
        for session in sessions:
            await thread.call(session.close)


async def test_a_draft_token_is_fed_once_though_a_pass_of_its_batch_failed(
    watched: Watched, thread: EngineThread
) -> None:
    """An engine runs a batch as several passes, and what has run stands: the second one fails."""
    work = DraftTask(keep=0, token_ids=(1, 2), position=2, count=4)
    request = DraftRequest(work, SamplingParams(), RejectionRule(SeededRandom(3)), PRESETS["dssd"])

    def fails_late(batch: Sequence[ForwardRequest]) -> Exception | None:
        if len(batch) == 1:
            return None
        watched.engine.forward([part for part in batch if part.session is not bad])
        return MemoryError("too large")

    async with thread.session(8) as bad, thread.session(8) as session:
        watched.fails = fails_late
        async with held(watched, thread):
            steps = thread.submit(Steps(bad, 5))
            handle = thread.submit(DraftJob(session, request))
        drafts, kv_length = (await handle.future).value
        await steps.future
        token_ids = tuple(drafted.token_id for drafted in drafts)
        assert kv_length == session.length == 5
        fed: Any = session
        assert tuple(fed.token_ids) == (1, 2, *token_ids[:3])


async def test_a_callback_that_fails_ends_no_thread(watched: Watched) -> None:
    def on_pass(seconds: float, jobs: int, tokens: int) -> None:
        raise ZeroDivisionError("of whoever counts passes")

    engine: Any = watched
    thread = EngineThread(engine, "test-engine", on_pass)
    try:
        async with thread.session(8) as session:
            assert len((await thread.submit(Steps(session, 2)).future).value) == 2
            assert len((await thread.submit(Steps(session, 2)).future).value) == 2
        assert thread.fault == ""
    finally:
        thread.stop()


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


async def test_cancelling_the_only_job_ends_its_pass(
    watched: Watched, thread: EngineThread
) -> None:
    async with thread.session(8) as session, thread.session(8) as other:
        watched.gate.clear()
        handle = thread.submit(Steps(session))
        await watched.pass_begun()
        handle.cancel()
        assert handle.future.cancelled()
        # The thread is free again although the pass was never let through.
        assert await asyncio.wait_for(thread.call(lambda: session.length), DEADLINE_S) == 0
        watched.gate.set()
        assert (await thread.submit(Steps(other)).future).value


async def test_cancelling_one_of_two_leaves_the_other(
    watched: Watched, thread: EngineThread
) -> None:
    async with thread.session(8) as one, thread.session(8) as other:
        async with held(watched, thread):
            handles = [thread.submit(Steps(session, 2)) for session in (one, other)]
            handles[0].cancel()
        assert len((await handles[1].future).value) == 2
        assert handles[0].future.cancelled()
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


def test_a_call_whose_loop_is_closed_harms_no_other(watched: Watched, thread: EngineThread) -> None:
    """As the loop of a test is that ends before it: the engine's thread ended with the call."""
    began, goes_on = threading.Event(), threading.Event()

    def stay() -> bool:
        began.set()
        return goes_on.wait(DEADLINE_S)

    async def leave() -> None:
        thread.call(stay)

    asyncio.run(leave())
    assert began.wait(DEADLINE_S)
    goes_on.set()

    async def ask() -> int:
        return await asyncio.wait_for(thread.call(lambda: 5), DEADLINE_S)

    assert asyncio.run(ask()) == 5


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
        handle = thread.submit(Steps(session))
        await watched.pass_begun()
        handle.cancel()
    assert watched.engine.sessions_open == 0


async def test_stopping_fails_what_is_under_way_and_rejects_more(
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


class Broken(Watched):
    """An engine whose passes block without a sign, or raise, while it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.blocked = threading.Event()
        self.let_go = threading.Event()
        self.raises = False

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        if self.raises:
            raise RuntimeError("the device is gone")
        if self.blocked.is_set():
            self.let_go.wait(DEADLINE_S)
        return self.engine.forward(batch, cancelled)


def broken_thread() -> tuple[Broken, EngineThread]:
    broken = Broken()
    engine: Any = broken
    quick = PassTimes(first_s=1e-4, further_s=0.0, longest_rows=256, longest_s=1e-4)
    return broken, EngineThread(engine, "test-engine", stuck_after_s=0.3, pass_times=quick)


async def fault_is(thread: EngineThread, faulty: bool) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while bool(thread.fault) != faulty:
            await asyncio.sleep(0.01)


async def test_nobody_waits_for_a_pass_that_never_returns() -> None:
    """What waits fails, what comes fails at once, and what was opened is freed in the end."""
    broken, thread = broken_thread()
    broken.blocked.set()
    with pytest.raises(Unavailable, match="stuck"):
        async with asyncio.timeout(DEADLINE_S), thread.session(8) as session:
            await thread.submit(Steps(session)).future
    assert "stuck" in thread.fault
    with pytest.raises(Unavailable, match="stuck"):
        async with thread.session(8):
            raise AssertionError("it was opened")
    with pytest.raises(Unavailable, match="stuck"):
        await thread.call(lambda: None)
    broken.blocked.clear()
    broken.let_go.set()
    await fault_is(thread, False)
    async with thread.session(8) as session:
        await thread.submit(Steps(session)).future
    assert broken.engine.sessions_open == 0
    thread.stop()


async def test_an_engine_that_is_stuck_can_be_stopped() -> None:
    broken, thread = broken_thread()
    broken.blocked.set()
    async with thread.session(8) as session:
        handle = thread.submit(Steps(session))
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.to_thread(thread.stop)
        with pytest.raises(Unavailable):
            await handle.future
    broken.let_go.set()


async def test_an_engine_whose_passes_fail_is_at_fault_until_they_succeed() -> None:
    broken, thread = broken_thread()
    broken.raises = True
    async with thread.session(8) as session:
        with pytest.raises(RuntimeError, match="the device is gone"):
            await thread.submit(Steps(session)).future
    await fault_is(thread, True)
    assert "RuntimeError" in thread.fault
    with pytest.raises(Unavailable, match="every pass fails"):
        async with thread.session(8):
            raise AssertionError("it was opened")
    broken.raises = False
    await fault_is(thread, False)  # without any request
    assert broken.engine.sessions_open == 0
    thread.stop()


async def test_a_job_that_fails_or_is_given_up_is_closed_by_the_thread(
    watched: Watched, thread: EngineThread
) -> None:
    closed: list[str] = []

    class Forked(Steps):
        def __init__(self, name: str, session: Session, fails_at: int | None = None) -> None:
            super().__init__(session, 1, fails_at)
            self.name = name

        def close(self) -> None:
            closed.append(self.name)

    async with thread.session(8) as session, thread.session(8) as other:
        await thread.submit(Forked("done", session)).future
        with pytest.raises(ValueError, match="own fault"):
            await thread.submit(Forked("failed", session, fails_at=0)).future
        watched.fails = lambda batch: RuntimeError("a pass")
        with pytest.raises(RuntimeError, match="a pass"):
            await thread.submit(Forked("in its pass", session)).future
        watched.fails = lambda batch: None
        async with held(watched, thread):
            thread.submit(Forked("given up", other)).cancel()
        await thread.call(lambda: None)
    while len(closed) < 4:  # the thread may run calls before it looks for what was given up
        await asyncio.sleep(0.001)
    assert closed == ["done", "failed", "in its pass", "given up"]


class Awaiting(Steps):
    """Needs more than its rows."""

    def __init__(self, session: Session, count: int = 1) -> None:
        super().__init__(session, count)
        self.awaits = self.masks = Future[None]()

    def timeout_error(self) -> Exception:
        return InvalidArgument("grammar", "its masks are late")


async def test_a_job_that_lacks_something_is_blocked_and_others_go_on(
    watched: Watched, thread: EngineThread
) -> None:
    async with thread.session(8) as slow, thread.session(8) as other:
        waiting = Awaiting(slow, 2)
        async with held(watched, thread):
            blocked = thread.submit(waiting)
            healthy = thread.submit(Steps(other, 3))
        assert len((await healthy.future).value) == 3
        assert not waiting.rows
        waiting.masks.set_result(None)
        assert len((await blocked.future).value) == 2
    assert watched.batches == [1, 2, 1, 1, 1], "the blocked one was fed once"


async def test_what_a_job_awaits_for_too_long_fails_it_alone(watched: Watched) -> None:
    engine: Any = watched
    thread = EngineThread(engine, "test-engine", blocked_timeout_s=0.05)
    try:
        async with thread.session(8) as slow, thread.session(8) as other:
            blocked = thread.submit(Awaiting(slow))
            with pytest.raises(InvalidArgument, match="its masks are late"):
                await blocked.future
            assert len((await thread.submit(Steps(other, 2)).future).value) == 2
    finally:
        await asyncio.to_thread(thread.stop)


async def test_a_job_that_is_blocked_can_be_cancelled_and_ends_with_the_thread(
    watched: Watched, thread: EngineThread
) -> None:
    async with thread.session(8) as one, thread.session(8) as other:
        handles = [thread.submit(Awaiting(session)) for session in (one, other)]
        while len(thread._blocked) < 2:
            await thread.call(lambda: None)
        handles[0].cancel()
        await thread.submit(Steps(one)).future
        assert len(thread._blocked) == 1
    await asyncio.to_thread(thread.stop)
    with pytest.raises(Unavailable):
        await handles[1].future
