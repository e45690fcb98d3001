"""What every HTTP request passes before and after its handler: keys, a bound, a number, a count.

Invariant: without a known key only `OPEN_PATHS` are answered, whatever routes there are; every
request that arrives is answered and counted once. Must not import grpc or torch.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tandem.core.access_keys import KeyRing
from tandem.gateway.errors import RETRY_AFTER_S, ApiError, api_error
from tandem.telemetry.logging import get_logger, log_context, name_in_log
from tandem.telemetry.metrics import HttpSeries
from tandem.telemetry.tracing import called_with

log = get_logger(__name__)

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
CALLER_LEFT = 499
"""No status that is ever sent; it is counted for callers who did not wait for theirs."""


class Guard:
    """`keys` gives those known now, None lets everybody in; `max_requests` are handled at once, the
    open paths apart."""

    def __init__(
        self,
        app: ASGIApp,
        keys: Callable[[], KeyRing] | None,
        max_requests: int,
        series: HttpSeries,
    ) -> None:
        self._app = app
        self._keys = keys
        self._max_requests = max_requests
        self._series = series
        self._handled = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began_s, number = time.monotonic(), secrets.token_hex(8)
        answer = _Answer(send, number)
        with log_context(request=number), called_with(_trace_headers(scope)):
            try:
                await self._handle(scope, receive, answer)
            except Exception as error:
                log.exception("http request failed")
                if answer.status is None:
                    await api_error(error).response()(scope, receive, answer.send)
            status = CALLER_LEFT if answer.status is None else answer.status
            self._series.answered(_route(scope), status)
            tell = log.debug if scope["path"] in OPEN_PATHS else log.info  # probes come for ever
            tell(
                "http request",
                route=_route(scope),
                status=status,
                duration_s=time.monotonic() - began_s,
            )

    async def _handle(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        if scope["path"] in OPEN_PATHS:
            return await self._app(scope, receive, answer.send)
        try:
            self._admit(scope)
        except ApiError as error:
            return await error.response()(scope, receive, answer.send)
        self._handled += 1
        try:
            await self._app(scope, receive, answer.send)
        finally:
            self._handled -= 1

    def _admit(self, scope: Scope) -> None:
        if self._keys is not None:
            holder = self._keys().holder(_bearer(scope))
            if holder is None:
                raise ApiError(
                    401,
                    "Incorrect API key provided: send one as 'Authorization: Bearer KEY'.",
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )
            name_in_log(caller=holder)
        if self._handled >= self._max_requests:
            raise ApiError(
                429,
                f"{self._handled} requests are being handled; try again",
                kind="rate_limit_error",
                code="rate_limit_exceeded",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )


class _Answer:
    """Notes the status of what is sent, and gives it the request's number."""

    def __init__(self, send: Send, number: str) -> None:
        self._send = send
        self._number = number
        self.status: int | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ()), (b"x-request-id", self._number.encode())]
            message = {**message, "headers": headers}
        await self._send(message)


def _bearer(scope: MutableMapping[str, Any]) -> str:
    """The key that the caller shows, or nothing."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, key = value.decode("latin-1").partition(" ")
            return key.strip() if scheme.lower() == "bearer" else ""
    return ""


def _trace_headers(scope: MutableMapping[str, Any]) -> list[tuple[str, str]]:
    """Which trace the caller says that its request is part of."""
    return [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in scope["headers"]
        if name == b"traceparent"
    ]


def _route(scope: MutableMapping[str, Any]) -> str:
    """The path as the routes have it: no caller makes names of metrics."""
    route = scope.get("route")
    return str(getattr(route, "path", "other"))
