"""Whatever a caller sends or asks for, others have their turns of the event loop meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tandem.gateway.caller_connection import ConnectionLimits
from tests.gateway.http_suite import HttpSuite, one_loop
from tests.gateway.test_failures import Breaking
from tests.gateway.test_slow_callers import served as served_by

LONGEST_S = 0.15
"""Of this thread's own time, between two turns of a task that does nothing; several times as long
as a slow core takes for one. Chunks that were read at once took 0.4 s, and seconds for a core that
had others to serve."""
CHUNKED = b"Transfer-Encoding: chunked\r\n"


@asynccontextmanager
async def turns_meanwhile() -> AsyncIterator[list[float]]:
    """How long others had to wait for each turn, in seconds of this thread's time."""
    waited: list[float] = []

    async def wait() -> None:
        while True:
            before_s = time.thread_time()
            await asyncio.sleep(0)
            waited.append(time.thread_time() - before_s)

    waiting = asyncio.create_task(wait())
    try:
        yield waited
    finally:
        waiting.cancel()


async def answers_to(url: str, *, headers: bytes, body: bytes) -> bytes:
    """What comes for a body, or for one that is followed by another request."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, port)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" + headers
    writer.write(head + b"Content-Type: application/json\r\n\r\n" + body)
    try:
        return await asyncio.wait_for(reader.read(), 60)
    finally:
        writer.close()


NEXT = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (CHUNKED, b"1\r\n \r\n" * 100_000 + b"0\r\n\r\n"),
        (CHUNKED, b"1\r\n \r\n0\r\n" + b"A: b\r\n" * 5_000 + b"\r\n"),
        (b"A: b\r\n" * 5_000 + b"Content-Length: 1\r\n", b" "),
    ],
    ids=["chunks of a byte", "trailers", "headers"],
)
@one_loop
async def test_small_parts_hold_nobody_up(served: HttpSuite, headers: bytes, body: bytes) -> None:
    async with turns_meanwhile() as waited:
        answers = await answers_to(served.url, headers=headers, body=body + NEXT)
    assert b"the body is not JSON" in answers
    assert answers.count(b"HTTP/1.1 200 OK") == 1, "what follows it is answered too"
    assert max(waited) < LONGEST_S


@one_loop
async def test_many_requests_at_once_are_answered_one_after_the_other(served: HttpSuite) -> None:
    more = NEXT.replace(b"close", b"keep-alive") * 500
    async with turns_meanwhile() as waited:
        answers = await answers_to(
            served.url, headers=b"Content-Length: 2\r\n", body=b"{}" + more + NEXT
        )
    assert answers.count(b"HTTP/1.1 200 OK") == 501
    assert max(waited) < LONGEST_S


@pytest.mark.parametrize("headers", [b"A: b\r\n" * 8_000, b"A: " + b"b" * 48_000 + b"\r\n"])
@one_loop
async def test_too_long_headers_are_refused(served: HttpSuite, headers: bytes) -> None:
    try:
        answer = await answers_to(served.url, headers=headers, body=b"")
    except ConnectionResetError:  # as it may be for one that still sends
        return
    assert answer.startswith(b"HTTP/1.1 400 ")


async def test_the_document_of_the_api_is_made_beside_the_answers() -> None:
    """It takes more than a second."""
    async with (
        served_by(Breaking(RuntimeError()), ConnectionLimits()) as (_, http),
        turns_meanwhile() as waited,
    ):
        one, other = await asyncio.gather(http.get("/openapi.json"), http.get("/openapi.json"))
    assert one.json()["openapi"].startswith("3.")
    assert one.content == other.content
    assert max(waited) < LONGEST_S
