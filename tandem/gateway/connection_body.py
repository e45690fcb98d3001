"""The caller's end of a connection: its body, read within bounds, and its leaving. Invariant: no
more than the limit is ever held of a body; work is cancelled when its caller leaves, or when this
process stops before it is done."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive

from tandem.core.errors import TandemError, Unavailable
from tandem.gateway.body_parsing import parse_json
from tandem.gateway.errors import ApiError, api_error, validation_error
from tandem.gateway.long_bodies import LONG_BYTES, in_turn, weight_of
from tandem.net.fair_shares import NOBODY, Rates
from tandem.net.tenant import paying_tenant

BODY_TIMEOUT_S = 30.0
"""What a caller gets to send its body, without the time for which it is not read."""
CLIENT_CLOSED = 499
"""No status that is ever sent; it is counted for callers who did not wait for theirs."""

Work = TypeVar("Work")
Checked = Callable[[Any], tuple[Any, Sequence[Mapping[str, Any]]]]
"""Returns a body as its route's model, and what is wrong with it."""


class CallerLeft(HTTPException):
    """Nobody is there any more to be answered."""

    def __init__(self) -> None:
        super().__init__(CLIENT_CLOSED)


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """What an application's bodies may be. `bytes_per_s`: how fast one tenant's are read; 0: as
    fast as they come. A caller who sends faster is not refused but held by TCP's flow control:
    reading, parsing and refusing a body hold the event loop in proportion to its bytes, and to the
    objects in it (`weight_of`). Where no keys are needed all callers
    are one, and nobody is to be kept from anybody. `max_ids` gives the token ids that a prompt may
    have. Once `ending` is set, no body is read any more."""

    max_bytes: int
    bytes_per_s: float
    max_ids: Callable[[], int]
    ending: asyncio.Event
    rates: Rates = field(default_factory=lambda: Rates(burst_s=1.0))

    def delay_s(self, part: bytes) -> float:
        """Count bytes of the current caller's, and return for how long no more are to be read."""
        per_s = 0.0 if (tenant := paying_tenant()) == NOBODY else self.bytes_per_s
        return self.rates.spend(tenant, weight_of(part), per_s, time.monotonic())


class LimitedRoute(APIRoute):
    """A route whose body is read within the `BodyLimits` in its application's state."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_limited(request: Request) -> Response:
            limited = _LimitedRequest(request.scope, request.receive)
            if self.body_field is not None:
                limited.checked = self.body_field.validate
            return await handle(limited)

        return handle_limited


class _LimitedRequest(Request):
    """FastAPI asks for `body`, and for `json` where there is one."""

    checked: Checked
    _read: bytes | None = None

    async def body(self) -> bytes:
        """Return the body. Raises as `read_body`."""
        if self._read is None:
            limits: BodyLimits = self.app.state.body_limits
            try:
                self._read = await fail_on_shutdown(limits.ending, read_body(self, limits))
            except TandemError as error:  # FastAPI takes others than its own for a bad body
                raise api_error(error) from None
        return self._read

    async def json(self) -> Any:
        """Return the body as JSON; a long one as its model, of which FastAPI has nothing to check
        any more."""
        raw = await self.body()
        max_ids = self.app.state.body_limits.max_ids()
        if weight_of(raw) <= LONG_BYTES:
            return parse_json(raw, max_ids)
        self.state.is_long = True
        try:
            return await in_turn(self, partial(self._as_model, raw, max_ids), begins=True)
        except TandemError as error:
            raise api_error(error) from None

    def _as_model(self, raw: bytes, max_ids: int) -> Any:
        model, errors = self.checked(parse_json(raw, max_ids))
        if errors:
            raise validation_error(errors)
        return model


async def read_body(request: Request, limits: BodyLimits) -> bytes:
    """Read a body that claims to be JSON. Raises ApiError 408, 413 or 415, or CallerLeft."""
    _check_media_type(request.headers.get("content-type", ""))
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S) as deadline:
            raw = bytearray()
            async for part in request.stream():
                raw += part
                if len(raw) > limits.max_bytes:
                    # The server goes on reading and drops the rest, so that the caller gets to its
                    # answer.
                    why = f"the body is larger than {limits.max_bytes} bytes"
                    raise ApiError(413, why, code="request_too_large")
                if delay_s := limits.delay_s(part):
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


async def cancel_on_disconnect(
    receive: Receive, ending: asyncio.Event, work: Awaitable[Work]
) -> Work:
    """Wait like `fail_on_shutdown`; also raises CallerLeft if the caller leaves before. The body
    must have been read."""
    return await _unless(work, ending, _gone(receive))


async def fail_on_shutdown(ending: asyncio.Event, work: Awaitable[Work]) -> Work:
    """Return what `work` returns, or raise what it raises; Unavailable, with the work cancelled, if
    `ending` is set before."""
    return await _unless(work, ending)


async def _unless(
    work: Awaitable[Work], ending: asyncio.Event, *ends: Coroutine[Any, Any, None]
) -> Work:
    working = asyncio.ensure_future(work)
    watching = [asyncio.create_task(each) for each in (_stopping(ending), *ends)]
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
