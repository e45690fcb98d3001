"""When a stream is overdue, second by second; and that nothing outlives it."""

from __future__ import annotations

import asyncio

import pytest

from tandem.net.served_sessions import converse
from tandem.net.stream_limits import StreamClock, StreamLimits

LIMITS = StreamLimits(first_message_s=10, idle_s=60, write_s=20)


def overdue(clock: StreamClock, now: float) -> str:
    return str(clock.overdue(now) or "")


def test_the_first_message_has_its_own_limit() -> None:
    clock = StreamClock(LIMITS)
    clock.waits(100, first=True)
    assert overdue(clock, 109.9) == ""
    assert overdue(clock, 110) == "stream: no first message for 10 s"
    clock.heard()
    assert overdue(clock, 1000) == ""  # what the service does with it takes its time
    clock.waits(1000)
    assert overdue(clock, 1059.9) == ""
    assert overdue(clock, 1060) == "stream: nothing was said for 60 s"


def test_a_caller_that_reads_is_alive() -> None:
    clock = StreamClock(LIMITS)
    clock.waits(0)
    clock.writes(50)
    clock.written(55)
    assert overdue(clock, 114) == ""
    assert overdue(clock, 115) == "stream: nothing was said for 60 s"


def test_a_caller_that_reads_nothing_is_not() -> None:
    clock = StreamClock(LIMITS)
    clock.waits(0)
    clock.writes(1)
    assert overdue(clock, 20.9) == ""
    assert overdue(clock, 21) == "stream: an answer was not read for 20 s"
    assert clock.writing
    clock.written(21)
    assert overdue(clock, 21) == ""
    assert not clock.writing


def test_it_is_looked_at_again_when_a_limit_may_pass_and_not_late() -> None:
    clock = StreamClock(LIMITS)
    assert clock.due_s(5) == 15  # a wait that begins now may be over then
    clock.waits(0)
    clock.writes(3)
    assert clock.due_s(15) == 23
    clock.written(16)
    assert clock.due_s(70) == 76


async def test_a_conversation_that_is_cancelled_twice_leaves_no_work_behind() -> None:
    """The second time while its last frame leaves."""
    began, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def last_frame() -> None:
        began.set()
        await asyncio.Event().wait()

    call = asyncio.create_task(converse([work()], last_frame))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    call.cancel()
    await began.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert ended.is_set()
