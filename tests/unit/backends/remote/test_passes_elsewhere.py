"""The engine thread with an engine whose passes are computed elsewhere: jobs do not wait for one
another, and what nobody waits for is given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tandem.backends.interface import EngineFailed, ForwardRequest, Logits, Session
from tandem.runtime.engine_jobs import Job
from tandem.runtime.engine_thread import EngineThread
from tandem.testing.remote_server import FakeServer, serving
from tests.unit.backends.remote.test_remote_engine import PROBS, VOCABULARY, assert_rows, engine_of

PATIENCE_S = 30.0


class Rows(Job[Logits]):
    """One pass over some tokens."""

    def __init__(self, session: Session, token_ids: list[int], rows: int) -> None:
        self._session = session
        self._token_ids = tuple(token_ids)
        self._rows = rows
        self._before = session.length
        self._logits: Logits | None = None

    def request(self) -> ForwardRequest:
        self._session.rollback(self._before)
        return ForwardRequest(self._session, self._token_ids, self._rows)

    def take(self, logits: Logits) -> bool:
        self._logits = logits
        return True

    def result(self) -> Logits:
        assert self._logits is not None
        return self._logits


@pytest.fixture(params=["vllm", "sglang"])
def fake(request: pytest.FixtureRequest) -> Iterator[FakeServer]:
    with serving(FakeServer(PROBS, VOCABULARY, dialect=request.param)) as server:
        yield server


@asynccontextmanager
async def thread_of(fake: FakeServer) -> AsyncIterator[EngineThread]:
    engine = engine_of(fake)
    thread = EngineThread(engine, "remote-target")
    try:
        yield thread
    finally:
        await asyncio.to_thread(thread.stop)
        assert engine.sessions_open == 0
        engine.close()


async def rows_of(thread: EngineThread, session: Session, text: list[int], rows: int) -> Logits:
    done = await asyncio.wait_for(thread.submit(Rows(session, text, rows)).future, PATIENCE_S)
    return done.value


async def test_a_slow_request_holds_up_nobody_else(fake: FakeServer) -> None:
    slow = [9, 9, 9]
    quick = fake.probs
    release = asyncio.Event()
    loop = asyncio.get_running_loop()

    def probs(context: tuple[int, ...]) -> Any:
        if context[:3] == tuple(slow):
            asyncio.run_coroutine_threadsafe(release.wait(), loop).result(PATIENCE_S)
        return quick(context)

    fake.probs = probs
    async with thread_of(fake) as thread, thread.session(64) as first, thread.session(64) as other:
        late = thread.submit(Rows(first, slow, 2))
        text = [1, 2]
        for _ in range(4):
            logits = await rows_of(thread, other, text[other.length :], 1)
            assert_rows(logits, text)
            text.append(int(logits[-1].argmax()))
        assert not late.future.done()
        release.set()
        assert_rows((await asyncio.wait_for(late.future, PATIENCE_S)).value, slow)


async def test_a_job_that_is_given_up_leaves_its_session_as_it_was(fake: FakeServer) -> None:
    async with thread_of(fake) as thread, thread.session(64) as session:
        await rows_of(thread, session, [1, 2], 1)
        fake.pass_s = 0.3
        handle = thread.submit(Rows(session, [3, 4], 2))
        await asyncio.sleep(0.1)
        handle.cancel()
        fake.pass_s = 0.0
        assert_rows(await rows_of(thread, session, [5, 6], 2), [1, 2, 5, 6])


async def test_a_long_prompt_is_one_request(fake: FakeServer) -> None:
    text = [number % VOCABULARY for number in range(900)]
    async with thread_of(fake) as thread, thread.session(1000) as session:
        assert_rows(await rows_of(thread, session, text, 3), text)
        assert len(fake.asked) == 1


async def test_a_failing_server_fails_the_job_and_works_again(fake: FakeServer) -> None:
    async with thread_of(fake) as thread, thread.session(64) as session:
        fake.status = 500
        with pytest.raises(EngineFailed, match="answers 500: come again"):
            await rows_of(thread, session, [1, 2], 2)
        async with asyncio.timeout(PATIENCE_S):
            while not thread.fault:
                await asyncio.sleep(0.05)
        fake.status = 200
        async with asyncio.timeout(PATIENCE_S):
            while thread.fault:
                await asyncio.sleep(0.05)
        assert_rows(await rows_of(thread, session, [1, 2], 2), [1, 2])
