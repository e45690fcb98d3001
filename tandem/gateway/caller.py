"""The caller's end of a connection: its body, read within bounds, and its leaving.

Invariant: no more than the limit is ever held of a body; work for a caller who left is cancelled.
Must not import grpc or torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from tandem.gateway.errors import ApiError, validation_error

BODY_TIMEOUT_S = 30.0
"""What a caller gets to send its body."""

Body = TypeVar("Body", bound=BaseModel)
Work = TypeVar("Work")


class CallerLeft(Exception):
    """Nobody is there any more to be answered."""


async def read_body(request: Request, kind: type[Body], max_bytes: int) -> Body:
    """The body as a `kind`. Raises ApiError 400, 408 or 413, or CallerLeft."""
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            raw = await _read(request, max_bytes)
    except TimeoutError:
        why = f"the body did not arrive within {BODY_TIMEOUT_S:g} s"
        raise ApiError(408, why, code="request_timeout") from None
    except ClientDisconnect:
        raise CallerLeft from None
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        raise validation_error(error) from None


async def _read(request: Request, max_bytes: int) -> bytes:
    raw = bytearray()
    async for part in request.stream():
        raw += part
        if len(raw) > max_bytes:
            # The server goes on reading and drops the rest, so that the caller gets to its answer.
            raise ApiError(
                413, f"the body is larger than {max_bytes} bytes", code="request_too_large"
            )
    return bytes(raw)


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, Work]) -> Work:
    """What `work` returns or raises; CallerLeft, with the work cancelled, if the caller leaves
    before. The body must have been read."""
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise CallerLeft
        return working.result()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
