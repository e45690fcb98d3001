"""What is told to an event loop: in order, one failure or not, with what follows from it."""

from __future__ import annotations

import asyncio
from typing import Any

from tandem.engine.postings import Postings


async def told(postings: Postings) -> None:
    """Everything sent so far has been handled."""
    done = asyncio.Event()
    postings.add_after(asyncio.get_running_loop(), done.set)
    postings.send()
    await done.wait()


async def test_calls_run_in_order_over_several_sendings() -> None:
    postings, loop = Postings(), asyncio.get_running_loop()
    heard: list[int] = []
    for number in range(6):
        postings.add(loop, lambda number=number: heard.append(number))  # type: ignore[misc]
        if number % 2:
            postings.send()
    assert heard == [], "they run on the loop, not here"
    await told(postings)
    assert heard == list(range(6))


async def test_one_that_fails_is_reported_and_keeps_none_from_running() -> None:
    postings, loop = Postings(), asyncio.get_running_loop()
    failures: list[Any] = []
    heard: list[str] = []
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
    postings.add(loop, lambda: [][0])
    postings.add(loop, lambda: heard.append("after it"))
    await told(postings)
    assert heard == ["after it"]
    assert [type(error) for error in failures] == [IndexError]


async def test_what_comes_after_sees_what_futures_callbacks_did() -> None:
    postings, loop = Postings(), asyncio.get_running_loop()
    future: asyncio.Future[int] = loop.create_future()
    heard: list[str] = []
    future.add_done_callback(lambda _: heard.append("callback"))
    postings.add(loop, lambda: future.set_result(1))
    postings.add_after(loop, lambda: heard.append("after"))
    postings.send()
    await told(postings)
    assert heard == ["callback", "after"]
