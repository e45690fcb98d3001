"""What every HTTP request passes before and after its handler: names, keys, a bound, a number, a
count. Invariant: a web page of another site is answered nothing, and a caller without a known key
only `OPEN_PATHS` and pages, whatever routes there are; every request that arrives is answered and
counted once."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tandem.core.errors import ResourceExhausted, Unavailable
from tandem.gateway.connection_body import CLIENT_CLOSED
from tandem.gateway.document_route import DOCUMENTS_PATH
from tandem.gateway.errors import ApiError, api_error, error_response, lacks_scope
from tandem.gateway.known_names import KnownNames
from tandem.net.access_keys import KeyRing
from tandem.net.admission import Admission
from tandem.net.auth import RECHECK_S, Recheck
from tandem.net.scopes import Caller, note_caller
from tandem.net.scopes import Scope as KeyScope
from tandem.telemetry.logging import add_log_context, get_logger, log_context
from tandem.telemetry.metrics import HttpSeries
from tandem.telemetry.tracing import called_with

log = get_logger(__name__)

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
METRICS_PATH = "/metrics"
REQUESTS = "HTTP requests"
PAGES = "pages at once"
PAGES_AT_ONCE = 32
WHY_NOT = "tandem.why_not"
"""In a request's scope: a function that returns why its caller may not have it any more."""


class Guard:
    """`keys` gives those known now; None admits all who call by one of `names`. `max_requests` run
    at once off open paths. `pages` are paths of files that say
    nothing of this server: no key is asked for them, and `PAGES_AT_ONCE` are sent at once."""

    def __init__(
        self,
        app: ASGIApp,
        keys: Callable[[], KeyRing] | None,
        names: KnownNames,
        max_requests: int,
        series: HttpSeries,
        recheck_s: float = RECHECK_S,
        pages: frozenset[str] = frozenset(),
    ) -> None:
        self._app = app
        self._keys = keys
        self._pages = pages
        self._names = names
        self._series = series
        self._recheck_s = recheck_s
        self._admission = Admission({REQUESTS: max_requests, PAGES: PAGES_AT_ONCE})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        asks_headers = scope["method"] == "HEAD"
        if asks_headers:  # every route that answers GET answers this, as GET without a body
            scope = {**scope, "method": "GET"}
        began_s, number = time.monotonic(), secrets.token_hex(8)
        trace = [("traceparent", value) for value in Headers(scope=scope).getlist("traceparent")]
        answer = _Answer(send, number, asks_headers)
        with log_context(request=number), called_with(trace):
            try:
                await self._handle(scope, receive, answer)
            except asyncio.CancelledError:
                if (task := asyncio.current_task()) is None or task.cancelling():
                    raise
                # A call that it made was cancelled, by whoever ends the suite.
                if answer.status is None:
                    stopping = api_error(Unavailable("the aggregator is stopping"))
                    await error_response(stopping, scope["path"])(scope, receive, answer.send)
            except Exception as error:
                log.exception("http request failed")
                if answer.status is None:
                    failed = error_response(api_error(error), scope["path"])
                    await failed(scope, receive, answer.send)
            status = CLIENT_CLOSED if answer.status is None else answer.status
            self._series.answered(_route(scope), status)
            tell = log.debug if scope["path"] in OPEN_PATHS else log.info  # probes come for ever
            duration_s = time.monotonic() - began_s
            tell("http request", route=_route(scope), status=status, duration_s=duration_s)

    async def _handle(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        is_page = scope["path"] in self._pages
        is_free = is_page or scope["path"] in OPEN_PATHS
        with ExitStack() as held:
            try:
                self._names.check(Headers(scope=scope))
                if not is_free:
                    self._identify(scope)
                if is_page or not is_free:
                    place = PAGES if is_page else REQUESTS
                    held.enter_context(self._admission.reserve(place=place))
            except (ApiError, ResourceExhausted) as error:
                refused = error_response(api_error(error), scope["path"])
                return await refused(scope, receive, answer.send)
            if is_free:
                return await self._app(scope, receive, answer.send)
            why_not = scope[WHY_NOT] = partial(self._why_not, scope)
            with Recheck(why_not, self._recheck_s) as recheck:
                await self._app(scope, receive, answer.send)
        if recheck.found is not None:  # an answer that had begun is cut off
            log.warning("http request ended", reason=str(recheck.found))
            if answer.status is None:
                revoked = error_response(recheck.found, scope["path"])
                await revoked(scope, receive, answer.send)

    def _refusal(self, scope: Scope) -> tuple[Caller | None, ApiError | None]:
        """Return the caller and the reason of a refusal; no caller if no keys are needed."""
        if self._keys is None:
            return None, None
        caller = self._keys().caller(_key(scope))
        if caller is None:
            why = "Incorrect API key provided: send one as 'Authorization: Bearer KEY'."
            headers = {"WWW-Authenticate": "Bearer"}
            return None, ApiError(401, why, code="invalid_api_key", headers=headers)
        needed = scopes_for(scope["method"], scope["path"])
        if not caller.scopes.intersection(needed):
            return caller, lacks_scope(caller.holder, needed)
        return caller, None

    def _why_not(self, scope: Scope) -> ApiError | None:
        return self._refusal(scope)[1]

    def _identify(self, scope: Scope) -> None:
        """Note the caller. Raises ApiError for one who may not have what it asks for."""
        caller, refusal = self._refusal(scope)
        if caller is not None:
            add_log_context(caller=caller.holder)
            note_caller(replace(caller, over_http=True))
        if refusal is not None:
            raise refusal


class _Answer:
    """Notes the status of what is sent, and gives it the request's number; of bodies whose headers
    alone were asked for it sends nothing."""

    def __init__(self, send: Send, number: str, headers_only: bool = False) -> None:
        self._send = send
        self._number = number
        self._headers_only = headers_only
        self.status: int | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            names = (b"x-request-id", b"request-id")  # of OpenAI's clients, and of Anthropic's
            numbered = [(name, self._number.encode()) for name in names]
            message = {**message, "headers": [*message.get("headers", ()), *numbered]}
        elif self._headers_only:
            message = {**message, "body": b""}
        await self._send(message)


def scopes_for(method: str, path: str) -> Sequence[KeyScope]:
    """Return the scopes that open a route; one of them is enough. A key that asks for answers may
    not change documents, or read metrics, which name the other tenants and what they ask for."""
    if path == METRICS_PATH:
        return (KeyScope.ADMIN,)
    if path != DOCUMENTS_PATH and not path.startswith(f"{DOCUMENTS_PATH}/"):
        return (KeyScope.GENERATE,)
    if method == "GET":
        return (KeyScope.DOCUMENTS_READ, KeyScope.DOCUMENTS_WRITE)
    return (KeyScope.DOCUMENTS_WRITE,)


def _key(scope: MutableMapping[str, Any]) -> str:
    """Return the caller's key, or an empty string. Clients of Anthropic's API send it in another
    header, to all addresses that they know."""
    headers = Headers(scope=scope)
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if not scheme:
        return headers.get("x-api-key", "").strip()
    return key.strip() if scheme.lower() == "bearer" else ""


def _route(scope: MutableMapping[str, Any]) -> str:
    """Return the path as its route declares it, or "other": callers cannot make up labels of
    metrics."""
    return str(getattr(scope.get("route"), "path", "other"))
