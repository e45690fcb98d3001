"""Long prompts in chunks: the same logits, and other sessions' passes go on between."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import accumulate, pairwise
from math import inf
from typing import cast

import numpy as np
import pytest

from tandem.backends.interface import KV_BLOCK, Capabilities, ForwardRequest, Logits, Session, never
from tandem.net.tenant import Tenant
from tandem.runtime import engine_thread
from tandem.runtime.chunked_prefill import (
    CHUNK_ROWS,
    CHUNK_S,
    CHUNKS_ALONE,
    LEAST_CHUNK_ROWS,
    PREFILL_SHARE,
    ChunkedPrefill,
    ChunkRows,
    PrefillTurns,
    is_long,
)
from tandem.runtime.engine_jobs import Job, JobHandle
from tandem.runtime.engine_thread import EngineThread
from tandem.runtime.pass_times import PassTimes
from tandem.testing.scripted import ScriptedEngine, scripted_probs

VOCABULARY = 16
ROWS_ALONE = CHUNKS_ALONE * CHUNK_ROWS
PROMPT = tuple(token % VOCABULARY for token in range(3, 3 + 3 * CHUNK_ROWS + 40))


class Recorded(ScriptedEngine):
    """Notes the rows of each request of each pass, and the session of the last one; one pass may
    fail."""

    def __init__(self) -> None:
        probs = scripted_probs(1, VOCABULARY)
        super().__init__(VOCABULARY, probs, context_length=4 * ROWS_ALONE)
        self.passes: list[list[int]] = []
        self.fed: list[Session] = []
        self.failing = -1

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        self.passes.append([len(request.token_ids) for request in batch])
        self.fed.append(batch[-1].session)
        found = super().forward(batch, cancelled)
        if len(self.passes) - 1 == self.failing:
            raise RuntimeError("after some of the work was done")
        return found


class Feed(Job[Logits]):
    """A job that feeds its tokens in one go, `times` over."""

    def __init__(self, session: Session, token_ids: tuple[int, ...], times: int = 1) -> None:
        self._session, self._token_ids, self._times = session, token_ids, times
        self.logits: list[Logits] = []

    def request(self) -> ForwardRequest:
        self._session.rollback(0)
        return ForwardRequest(self._session, self._token_ids, logits_to_keep=2)

    def take(self, logits: Logits) -> bool:
        self.logits.append(logits)
        return len(self.logits) == self._times

    def result(self) -> Logits:
        return self.logits[-1]


@pytest.fixture
def engine() -> Recorded:
    return Recorded()


@pytest.fixture
def thread(engine: Recorded) -> Iterator[EngineThread]:
    running = EngineThread(engine, "test-engine")
    yield running
    running.stop()


def whole(token_ids: tuple[int, ...]) -> Logits:
    engine = Recorded()
    (logits,) = engine.forward([ForwardRequest(engine.open(len(token_ids)), token_ids, 2)])
    return logits


async def fed(thread: EngineThread, *jobs: tuple[tuple[int, ...], int]) -> list[Logits]:
    """What jobs that are handed over at once find."""
    sessions = [thread.engine.open(len(token_ids)) for token_ids, _ in jobs]
    handles = [
        thread.submit(Feed(session, token_ids, times))
        for session, (token_ids, times) in zip(sessions, jobs, strict=True)
    ]
    return [(await handle.future).value for handle in handles]


class Read(Feed):
    """Reads the logits of all that it feeds."""

    def __init__(self, session: Session, token_ids: tuple[int, ...]) -> None:
        super().__init__(session, token_ids)
        self.rows: list[tuple[int, Logits]] = []

    def read_rows(self, first: int, logits: Logits) -> None:
        self.rows.append((first, np.array(logits)))


@pytest.mark.parametrize("length", [1, CHUNK_ROWS, CHUNK_ROWS + 1, len(PROMPT)])
async def test_all_rows_of_a_prompt_are_read_a_chunk_at_a_time(
    engine: Recorded, thread: EngineThread, length: int
) -> None:
    token_ids = PROMPT[:length]
    job = Read(engine.open(length + 1), token_ids)
    handle = thread.submit(job)
    last = (await handle.future).value
    assert max(map(sum, engine.passes)) <= CHUNK_ROWS + 1
    assert [first for first, _ in job.rows] == [*range(0, max(1, length - 1), CHUNK_ROWS)]
    read = np.concatenate([rows for _, rows in job.rows])
    every = Recorded()
    (expected,) = every.forward([ForwardRequest(every.open(length), token_ids, length)])
    assert np.array_equal(read, expected)
    assert np.array_equal(last, expected[-2:])


async def test_a_pass_that_fails_is_read_once(
    engine: Recorded, thread: EngineThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PrefillTurns, "is_due", always)
    engine.failing = 1
    job = Read(engine.open(len(PROMPT)), PROMPT)
    beside = thread.submit(Feed(engine.open(2), (1, 2), 3))
    handle = thread.submit(job)
    await handle.future
    await beside.future
    assert [first for first, _ in job.rows] == [0, CHUNK_ROWS, 2 * CHUNK_ROWS, 3 * CHUNK_ROWS]


def always(self: PrefillTurns, now_s: float) -> bool:
    return True


@pytest.mark.parametrize(
    ("same_bits", "ends"),
    [(False, [[300]]), (True, [[CHUNK_ROWS], [300 - CHUNK_ROWS]])],
    ids=["any cut", "bits depend on cuts"],
)
async def test_alone_a_long_prompt_is_bounded_by_rows(
    engine: Recorded, same_bits: bool, ends: list[list[int]]
) -> None:
    """And its end takes no pass more, where bits do not depend on that."""
    engine.capabilities = Capabilities(same_bits=same_bits)
    thread = EngineThread(engine, "test-engine")
    prompt = tuple(token % VOCABULARY for token in range(2 * ROWS_ALONE + 300))
    try:
        (logits,) = await fed(thread, (prompt, 1))
    finally:
        thread.stop()
    assert engine.passes == [[ROWS_ALONE], [ROWS_ALONE], *ends]
    assert np.array_equal(logits, whole(prompt))


async def test_one_piece_at_most_shares_a_pass_and_others_go_on(
    engine: Recorded, thread: EngineThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PrefillTurns, "is_due", always)
    step = (1, 2, 3)
    short, one, other = await fed(thread, (step, 12), (PROMPT, 1), (PROMPT[1:], 1))
    shared = [rows for rows in engine.passes if len(rows) > 1]
    assert sum(rows.count(CHUNK_ROWS) for rows in shared) == 6
    assert all(rows[0] == len(step) and max(rows[1:]) <= CHUNK_ROWS for rows in shared)
    assert all(rows.count(CHUNK_ROWS) <= 1 for rows in shared)
    for logits, token_ids in ((short, step), (one, PROMPT), (other, PROMPT[1:])):
        assert np.array_equal(logits, whole(token_ids))


async def test_a_prompt_waits_for_its_turn_while_others_run(
    engine: Recorded, thread: EngineThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = iter([True, False, False, True])
    monkeypatch.setattr(PrefillTurns, "is_due", lambda self, now_s: next(turns, True))
    await fed(thread, ((1, 2), 8), (PROMPT, 1))
    shared = [len(rows) == 2 for rows in engine.passes[:6]]
    assert shared == [True, False, False, True, True, True]


async def test_a_failed_pass_repeats_the_piece(
    engine: Recorded, thread: EngineThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PrefillTurns, "is_due", always)
    engine.failing = 1
    short, prompt = await fed(thread, ((1, 2), 3), (PROMPT, 1))
    assert np.array_equal(short, whole((1, 2)))
    assert np.array_equal(prompt, whole(PROMPT))


async def test_a_cancelled_prompt_is_not_fed_on(engine: Recorded, thread: EngineThread) -> None:
    async with asyncio.timeout(60):
        session = engine.open(40 * ROWS_ALONE // 10)
        handle = thread.submit(Feed(session, (1,) * (3 * ROWS_ALONE)))
        handle.cancel()
        await fed(thread, ((1, 2), 1))
    assert session.length < 3 * ROWS_ALONE


def test_prompts_take_their_share_of_the_time() -> None:
    turns = PrefillTurns()
    assert turns.is_due(0.0)
    turns.fed(10.0, pass_s=2.0, rows=1)
    others_s = 2.0 * (1 - PREFILL_SHARE) / PREFILL_SHARE
    assert not turns.is_due(10.0 + 0.99 * others_s)
    assert turns.is_due(10.0 + others_s)


def test_who_sent_little_lately_does_not_wait_for_every_other_chunk_of_who_sent_much() -> None:
    greedy, honest = Tenant("greedy"), Tenant("honest")
    turns = PrefillTurns()
    now_s = 0.0

    def fed(*waiting: Tenant) -> Tenant:
        nonlocal now_s
        payer = waiting[turns.next(waiting, now_s)]
        now_s += 0.1
        turns.fed(now_s, pass_s=0.1, rows=16)
        return payer

    for _ in range(50):
        fed(greedy)
    assert [fed(greedy, honest) for _ in range(4)] == [honest] * 4
    # With a prompt as long as the greedy one's it gets no more than its share.
    later = [fed(greedy, honest) for _ in range(400)][-100:]
    assert 45 <= later.count(honest) <= 55


async def test_tenants_take_turns_with_their_prompts(
    engine: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that comes after 8 prompts of another's waits for about as many chunks of them as it has
    itself, and so does another caller's beside two tenants of one."""
    monkeypatch.setattr(ChunkRows, "in_a_row", 1)
    thread = EngineThread(engine, "test-engine")
    async with AsyncExitStack() as stack:
        stack.callback(thread.stop)
        payers = [*[Tenant("edge", b"greedy")] * 8, Tenant("edge", b"honest"), Tenant("other")]
        sessions = [
            await stack.enter_async_context(thread.session(len(PROMPT), payer=payer))
            for payer in payers
        ]
        handles = [thread.submit(Feed(session, PROMPT)) for session in sessions]
        for handle in handles:
            await handle.future
    chunks = 4
    ended = [len(engine.fed) - engine.fed[::-1].index(each) for each in sessions]
    assert ended[9] <= 2 * chunks + 2, "half of what is fed is the other caller's"
    assert ended[8] <= 4 * chunks + 4, "a quarter is each tenant's"


def test_the_logits_asked_for_come_with_the_last_piece(engine: Recorded) -> None:
    session = engine.open(2000)
    for length, keep, before in ((256, 1, 0), (257, 1, 256), (300, 64, 0), (512, 0, 256)):
        request = ForwardRequest(session, (1,) * length, keep)
        assert is_long([request]) == (before > 0)
        prefill, fed_rows = ChunkedPrefill([request]), 0
        while not prefill.is_fed:
            (piece,) = prefill.next_chunk()
            assert piece.logits_to_keep == 0
            fed_rows += len(piece.token_ids)
            prefill.done(engine.forward([piece]))
        (rest,) = prefill.rest()
        assert (fed_rows, len(rest.token_ids), rest.logits_to_keep) == (
            before,
            length - before,
            keep,
        )
        session.rollback(0)


EXACT = Capabilities(same_bits=True)
FREE = Capabilities(same_bits=True, batch_invariant=True)
NEITHER = Capabilities()


@pytest.mark.parametrize(
    ("first_s", "row_s", "capabilities", "rows"),
    [
        (0.5, 0.0005, EXACT, CHUNK_ROWS),
        (0.5, 0.002, EXACT, 64),
        (0.5, 0.025, EXACT, KV_BLOCK),
        (0.5, 0.025, FREE, LEAST_CHUNK_ROWS),
        (0.5, 0.025, NEITHER, LEAST_CHUNK_ROWS),
        (0.5, 0.004, NEITHER, 32),
        (0.5, 1.0, NEITHER, LEAST_CHUNK_ROWS),
        (0.01, 0.004, NEITHER, LEAST_CHUNK_ROWS),
        (0.01, 0.001, NEITHER, 32),
        (0.01, 0.001, EXACT, KV_BLOCK),
        (0.1, 0.001, EXACT, 64),
        (0.1, 0.0001, EXACT, CHUNK_ROWS),
    ],
)
def test_a_chunk_takes_no_longer_than_others_may_wait(
    first_s: float, row_s: float, capabilities: Capabilities, rows: int
) -> None:
    """But never less than a block, where a part of one would change bits."""
    times = PassTimes(first_s, 0.0, longest_rows=17, longest_s=first_s + 16 * row_s)
    assert ChunkRows(times, capabilities).rows == rows
    assert ChunkRows(None, capabilities).rows == CHUNK_ROWS


@pytest.mark.parametrize("capabilities", [FREE, NEITHER])
def test_chunks_follow_what_passes_take(capabilities: Capabilities) -> None:
    """An engine that was measured while the machine was busy."""
    times = PassTimes(first_s=2.0, further_s=0.6, longest_rows=5, longest_s=4.6)
    chunks = ChunkRows(times, capabilities)
    assert chunks.rows == LEAST_CHUNK_ROWS
    for _ in range(40):
        chunks.passed(1, 0.05)
        chunks.passed(8 * chunks.rows, 0.05 + 8 * chunks.rows * 0.002)
    assert chunks.rows == 16
    assert chunks.rows * 0.002 <= CHUNK_S < 2 * chunks.rows * 0.002
    for _ in range(40):
        chunks.passed(1, 0.05)
    assert chunks.rows == 16, "decoding says nothing of prompts"


async def test_a_slow_engine_s_prompts_are_cut_finely_whoever_runs_beside(
    engine: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PrefillTurns, "is_due", always)
    monkeypatch.setattr(ChunkRows, "passed", lambda self, rows, seconds: None)
    slow = PassTimes(first_s=0.5, further_s=0.0, longest_rows=17, longest_s=0.9)
    thread = EngineThread(engine, "test-engine", pass_times=slow)
    try:
        (alone,) = await fed(thread, (PROMPT[:100], 1))
        assert engine.passes == [[64], [36]]
        engine.passes.clear()
        _, beside = await fed(thread, ((1, 2), 20), (PROMPT[:100], 1))
    finally:
        thread.stop()
    assert [rows for rows in engine.passes if len(rows) > 1] == [*[[2, 8]] * 12, [2, 4]]
    assert np.array_equal(alone, beside)


FIRST_S, ROW_S = 0.010, 0.001


class Clock:
    """Virtual time, for who asks `time` for it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s

    monotonic = perf_counter


class Timed(Recorded):
    """Passes take what is declared, in virtual time; calls `passed` after each, on its thread."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.capabilities = EXACT
        self.passed: Callable[[], None] = lambda: None

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        found = super().forward(batch, cancelled)
        self.clock.now_s += pass_s(sum(self.passes[-1]))
        self.passed()
        return found


def pass_s(rows: int) -> float:
    return FIRST_S + ROW_S * (rows - 1)


class Short(Feed):
    """A job that comes at a moment, and notes how long it took from then on."""

    def __init__(self, session: Session, clock: Clock, came_s: float) -> None:
        super().__init__(session, (1, 2, 3, 4))
        self.clock, self.came_s, self.took_s = clock, came_s, inf

    def take(self, logits: Logits) -> bool:
        self.took_s = self.clock.now_s - self.came_s
        return super().take(logits)


@pytest.mark.parametrize(
    ("are_open", "chunks"), [(True, 1), (False, CHUNKS_ALONE)], ids=["open", "unexpected"]
)
async def test_short_requests_never_wait_for_more_than_a_small_chunk(
    monkeypatch: pytest.MonkeyPatch, are_open: bool, chunks: int
) -> None:
    """They came at random moments while 16 prompts of a whole context were fed: 0.9 s late, since
    nobody else was there in the moment when a pass began. If none of their sessions is open then,
    it is a pass of several chunks, but no further one."""
    clock, source = Clock(), random.Random(1)
    monkeypatch.setattr(engine_thread, "time", clock)
    engine = Timed(clock)
    times = PassTimes(FIRST_S, 0.0, longest_rows=101, longest_s=pass_s(101))
    thread = EngineThread(engine, "test-engine", pass_times=times)
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        stack.callback(thread.stop)
        sessions = [
            await stack.enter_async_context(thread.session(8)) if are_open else engine.open(8)
            for _ in range(8)
        ]
        moments_s = accumulate(source.uniform(0.05, 0.25) for _ in range(80))
        short = [
            Short(sessions[number % 8], clock, came_s) for number, came_s in enumerate(moments_s)
        ]
        handles = [JobHandle(job, loop, chunk_rows=thread._chunks.rows) for job in short]
        coming = deque(handles)

        def come() -> None:
            while coming and cast(Short, coming[0].job).came_s <= clock.now_s:
                thread._put(partial(thread._admit, coming.popleft()))  # type: ignore[arg-type]

        engine.passed = come
        prompts = [await stack.enter_async_context(thread.session(960)) for _ in range(16)]
        fed_prompts = [thread.submit(Feed(session, (1,) * 960)) for session in prompts]
        for handle in (*fed_prompts, *handles):
            await handle.future
    chunk_s = max(CHUNK_S, KV_BLOCK * ROW_S)
    assert max(job.took_s for job in short) <= chunks * chunk_s + 2 * pass_s(len(sessions))
    for before, rows in pairwise(engine.passes):
        assert max(before) < KV_BLOCK or len(rows) == 1 or max(rows) < KV_BLOCK, "it waits twice"
    assert clock.now_s < 2 * 16 * pass_s(960), "prompts go on all the time"


async def test_who_opens_a_session_waits_for_one_chunk_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Callers come at random moments, each with a session to open and then a job for it. The chunk
    that ran when they came is the only one that they wait for: the next one waits for what the loop
    does with their sessions."""
    clock, source = Clock(), random.Random(1)
    monkeypatch.setattr(engine_thread, "time", clock)
    engine = Timed(clock)
    times = PassTimes(FIRST_S, 0.0, longest_rows=101, longest_s=pass_s(101))
    thread = EngineThread(engine, "test-engine", pass_times=times)
    loop = asyncio.get_running_loop()
    moments_s = deque(accumulate(source.uniform(0.05, 0.25) for _ in range(80)))
    callers = list[asyncio.Task[float]]()

    async def ask(came_s: float) -> float:
        async with thread.session(8, payer=Tenant("honest")) as session:
            job = Short(session, clock, came_s)
            await thread.submit(job).future
        return job.took_s

    def come(handled: threading.Event) -> None:
        while moments_s and moments_s[0] <= clock.now_s:
            callers.append(loop.create_task(ask(moments_s.popleft())))
        loop.call_soon(handled.set)

    def passed() -> None:
        handled = threading.Event()
        loop.call_soon_threadsafe(come, handled)
        handled.wait(60)

    async with AsyncExitStack() as stack:
        stack.callback(thread.stop)
        await stack.enter_async_context(thread.session(8))  # others are about
        prompts = [
            await stack.enter_async_context(thread.session(960, payer=Tenant("greedy")))
            for _ in range(16)
        ]
        engine.passed = passed
        fed_prompts = [thread.submit(Feed(session, (1,) * 960)) for session in prompts]
        for handle in fed_prompts:
            await handle.future
        engine.passed = lambda: None
        took_s = await asyncio.gather(*callers)
    assert len(took_s) > 40
    assert max(took_s) <= pass_s(KV_BLOCK) + 2 * pass_s(8)
