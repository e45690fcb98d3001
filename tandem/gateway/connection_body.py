"""The caller's end of a connection: its body, read within bounds, and its leaving. Invariant: no
more than the limit is ever held of a body; work is cancelled when its caller leaves, or when this
process stops before it is done."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from tandem.core.errors import Unavailable
from tandem.gateway.errors import ApiError
from tandem.net.fair_shares import NOBODY, Rates
from tandem.net.tenant import paying_tenant

BODY_TIMEOUT_S = 30.0
"""What a caller gets to send its body, without the time for which it is not read."""

OBJECT_BYTES = 256
"""Text of so many bytes is read in the time that one message of a conversation takes, 5 us."""

Work = TypeVar("Work")


class CallerLeft(Exception):
    """Nobody is there any more to be answered."""


class BodyReader:
    """Reads bodies of at most `max_bytes`, each tenant's at its pace: a caller who sends faster is
    not refused but held by TCP's flow control. Where no keys are needed all callers are one, and
    nobody is to be kept from anybody."""

    def __init__(self, max_bytes: int, bytes_per_s: float) -> None:
        """`bytes_per_s`: how fast one tenant's bodies are read; 0: as fast as they come. Reading,
        parsing and refusing a body hold the event loop in proportion to its bytes, and to the
        objects in it, each of which counts as `OBJECT_BYTES` more."""
        self._max_bytes = max_bytes
        self._bytes_per_s = bytes_per_s
        self._rates = Rates(burst_s=1.0)

    async def read(self, request: Request) -> bytes:
        """Return the body, which claims to be JSON. Raises ApiError 408, 413 or 415, or
        CallerLeft."""
        return await _read_body(request, self._max_bytes, self._delay_s)

    def _delay_s(self, part: bytes) -> float:
        """Count bytes of the current caller's, and return for how long no more are to be read."""
        size = len(part) + OBJECT_BYTES * (part.count(b"{") + part.count(b"["))
        per_s = 0.0 if (tenant := paying_tenant()) == NOBODY else self._bytes_per_s
        return self._rates.spend(tenant, size, per_s, time.monotonic())


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Read a body that is too small to be paced. Raises as `BodyReader.read`."""
    return await _read_body(request, max_bytes)


async def _read_body(
    request: Request, max_bytes: int, delay_of: Callable[[bytes], float] = lambda part: 0.0
) -> bytes:
    _check_media_type(request.headers.get("content-type", ""))
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S) as deadline:
            raw = bytearray()
            async for part in request.stream():
                raw += part
                if len(raw) > max_bytes:
                    # The server goes on reading and drops the rest, so that the caller gets to its
                    # answer.
                    why = f"the body is larger than {max_bytes} bytes"
                    raise ApiError(413, why, code="request_too_large")
                if delay_s := delay_of(part):
                    deadline.reschedule((deadline.when() or 0.0) + delay_s)
                    await asyncio.sleep(delay_s)
            return bytes(raw)
    except TimeoutError:
        why = f"the body did not arrive within {BODY_TIMEOUT_S:g} s"
        raise ApiError(408, why, code="request_timeout") from None
    except ClientDisconnect:
        raise CallerLeft from None


def _check_media_type(content_type: str) -> None:
    """Raise ApiError 415 unless the type is JSON. A browser sends other types, or none, on behalf
    of any web page without asking this server first."""
    if content_type.partition(";")[0].strip().lower() != "application/json":
        why = "the body must be JSON, sent with 'Content-Type: application/json'"
        raise ApiError(415, why, code="unsupported_media_type")


async def unless_gone(
    receive: Receive, ending: asyncio.Event, work: Coroutine[Any, Any, Work]
) -> Work:
    """Wait like `unless_ending`; also raises CallerLeft if the caller leaves before. The body must
    have been read."""
    return await _unless(work, ending, _gone(receive))


async def unless_ending(ending: asyncio.Event, work: Coroutine[Any, Any, Work]) -> Work:
    """Return what `work` returns, or raise what it raises; Unavailable, with the work cancelled, if
    `ending` is set before."""
    return await _unless(work, ending)


async def _unless(
    work: Coroutine[Any, Any, Work], ending: asyncio.Event, *ends: Coroutine[Any, Any, None]
) -> Work:
    working = asyncio.create_task(work)
    stopping = asyncio.create_task(_stopping(ending))
    watching = [stopping, *map(asyncio.create_task, ends)]
    try:
        await asyncio.wait((working, *watching), return_when=asyncio.FIRST_COMPLETED)
        for ended in (task for task in watching if task.done() and not working.done()):
            ended.result()  # raises
        return working.result()
    finally:
        for task in (working, *watching):
            task.cancel()
        await asyncio.gather(working, *watching, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise CallerLeft


async def _stopping(ending: asyncio.Event) -> None:
    await ending.wait()
    raise Unavailable("the aggregator is stopping")
