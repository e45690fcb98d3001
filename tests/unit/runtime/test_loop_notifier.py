"""What is told to an event loop: in order, one failure or not, with what follows from it."""

from __future__ import annotations

import asyncio
from typing import Any

from tandem.runtime.loop_notifier import LoopNotifier


async def told(notifier: LoopNotifier) -> None:
    """Everything sent so far has been handled."""
    done = asyncio.Event()
    notifier.add_after(asyncio.get_running_loop(), done.set)
    notifier.send()
    await done.wait()


async def test_calls_run_in_order_over_several_sendings() -> None:
    notifier, loop = LoopNotifier(), asyncio.get_running_loop()
    heard: list[int] = []
    for number in range(6):
        notifier.add(loop, lambda number=number: heard.append(number))  # type: ignore[misc]
        if number % 2:
            notifier.send()
    assert heard == [], "they run on the loop, not here"
    await told(notifier)
    assert heard == list(range(6))


async def test_one_that_fails_is_reported_and_keeps_none_from_running() -> None:
    notifier, loop = LoopNotifier(), asyncio.get_running_loop()
    failures: list[Any] = []
    heard: list[str] = []
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
    notifier.add(loop, lambda: [][0])
    notifier.add(loop, lambda: heard.append("after it"))
    await told(notifier)
    assert heard == ["after it"]
    assert [type(error) for error in failures] == [IndexError]


async def test_what_comes_after_sees_what_futures_callbacks_did() -> None:
    notifier, loop = LoopNotifier(), asyncio.get_running_loop()
    future: asyncio.Future[int] = loop.create_future()
    heard: list[str] = []
    future.add_done_callback(lambda _: heard.append("callback"))
    notifier.add(loop, lambda: future.set_result(1))
    notifier.add_after(loop, lambda: heard.append("after"))
    notifier.send()
    await told(notifier)
    assert heard == ["callback", "after"]


async def test_a_loop_that_is_closed_keeps_the_others_from_nothing() -> None:
    notifier, heard = LoopNotifier(), list[str]()
    closed = asyncio.new_event_loop()
    closed.close()
    notifier.add(closed, lambda: heard.append("nobody"))
    notifier.add(asyncio.get_running_loop(), lambda: heard.append("here"))
    await told(notifier)
    assert heard == ["here"]
