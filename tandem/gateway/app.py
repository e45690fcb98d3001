"""The HTTP API as an ASGI application: /v1/chat/completions, /v1/completions, /v1/models, probes.

Invariant: a request is checked before the suite hears of it, and admitted by the suite before its
status is sent, so that a refusal is a status and no broken stream. Must not import grpc or torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp

from tandem import __version__
from tandem.core.access_keys import KeyRing
from tandem.core.errors import TandemError
from tandem.gateway.asking import AskingLimits, chat_requests, completion_requests
from tandem.gateway.bodies import CHAT, COMPLETION, Form, Writer
from tandem.gateway.caller import Body, CallerLeft, read_body, unless_gone
from tandem.gateway.catalog import Catalog
from tandem.gateway.choices import Piece, pieces
from tandem.gateway.errors import ApiError, api_error, json_response
from tandem.gateway.event_stream import EventStream
from tandem.gateway.guard import CALLER_LEFT, Guard
from tandem.gateway.schema import Asking, ChatAsking, CompletionAsking, TandemOptions
from tandem.gateway.suite import Suite
from tandem.rpc.generation import GenerationRequest
from tandem.telemetry.metrics import Metrics

CHAT_PATH = "/v1/chat/completions"
_TANDEM_FIELDS = frozenset(TandemOptions.model_fields)


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """`keys` gives the keys known now; None lets everybody in. `max_requests` are handled at once;
    how many of them are answered at once, and how many wait, is for the suite to say."""

    keys: Callable[[], KeyRing] | None = None
    limits: AskingLimits = field(default_factory=AskingLimits)
    max_body_bytes: int = 2 * 2**20
    max_requests: int = 256
    timeout_s: float = 600.0


def make_app(suite: Suite, metrics: Metrics, settings: GatewaySettings) -> ASGIApp:
    """The application, for an ASGI server that runs on the suite's event loop."""
    app = make_routes(suite, metrics, settings)
    return Guard(app, settings.keys, settings.max_requests, metrics.http())


def make_routes(suite: Suite, metrics: Metrics, settings: GatewaySettings) -> FastAPI:
    """All that can be asked, before anyone is asked for a key."""
    gateway = _Gateway(suite, metrics, settings)
    app = FastAPI(title="Tandem", version=__version__, docs_url=None, redoc_url=None)
    _route(app, "POST", CHAT_PATH, gateway.chat, ChatAsking)
    _route(app, "POST", "/v1/completions", gateway.complete, CompletionAsking)
    _route(app, "GET", "/v1/models", gateway.models)
    _route(app, "GET", "/v1/models/{model:path}", gateway.model)
    _route(app, "GET", "/metrics", gateway.metrics)
    _route(app, "GET", "/healthz", gateway.healthy)
    _route(app, "GET", "/readyz", gateway.ready)
    for kind, handler in (
        (ApiError, _refused),
        (TandemError, _refused),
        (Exception, _refused),
        (CallerLeft, _nobody),
        (HTTPException, _no_such_route),
    ):
        app.add_exception_handler(kind, handler)
    return app


class _Gateway:
    """The handlers of the routes."""

    def __init__(self, suite: Suite, metrics: Metrics, settings: GatewaySettings) -> None:
        self._suite = suite
        self._registry = metrics.registry
        self._settings = settings
        self._catalog = Catalog(suite)

    async def chat(self, request: Request) -> Response:
        """Answer a conversation, in the model's own chat template."""
        asking = await self._read(request, ChatAsking)
        fingerprint = await self._catalog.fingerprint(asking.model)
        asked = chat_requests(asking, self._settings.limits)
        return await self._answer(request, asking, asked, CHAT, fingerprint, 1)

    async def complete(self, request: Request) -> Response:
        """Continue one prompt or several, texts or token ids."""
        asking = await self._read(request, CompletionAsking)
        fingerprint = await self._catalog.fingerprint(asking.model)
        asked = completion_requests(asking, self._settings.limits)
        prompts = len(asked) // (asking.n or 1)
        return await self._answer(request, asking, asked, COMPLETION, fingerprint, prompts)

    async def models(self) -> Response:
        """The model that answers here."""
        return json_response({"object": "list", "data": [await self._catalog.card()]})

    async def model(self, model: str) -> Response:
        """One model by its name."""
        await self._catalog.fingerprint(model)
        return json_response(await self._catalog.card())

    async def metrics(self) -> Response:
        """Metrics of this process, for Prometheus."""
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

    async def healthy(self) -> Response:
        """Whether the process runs."""
        return json_response({"status": "ok"})

    async def ready(self) -> Response:
        """Whether an answer could be given now: the drafter and the cloud are reached."""
        try:
            await self._catalog.reach()
        except TandemError as error:
            return json_response({"status": "not ready", "reason": str(error)}, 503)
        return json_response({"status": "ready"})

    async def _read(self, request: Request, kind: type[Body]) -> Body:
        return await read_body(request, kind, self._settings.max_body_bytes)

    async def _answer(
        self,
        request: Request,
        asking: Asking,
        asked: Sequence[GenerationRequest],
        form: Form,
        fingerprint: str,
        prompts: int,
    ) -> Response:
        writer = Writer(
            form,
            asking.model,
            fingerprint,
            asked,
            prompts,
            provenance=asking.tandem.provenance,
            include_usage=bool(asking.stream_options and asking.stream_options.include_usage),
        )
        answering = pieces(self._suite, asked, self._settings.timeout_s)
        if asking.stream:
            first = await unless_gone(request.receive, _next(answering))
            return EventStream(writer, first, answering)
        ended = await unless_gone(request.receive, _last_pieces(answering))
        return json_response(writer.whole(ended))


async def _next(answering: Any) -> Piece:
    piece: Piece = await anext(answering)
    return piece


async def _last_pieces(answering: Any) -> list[Piece]:
    async with aclosing(answering):
        return [piece async for piece in answering if piece.ended]


def _route(
    app: FastAPI,
    method: str,
    path: str,
    handler: Callable[..., Any],
    body: type[Asking] | None = None,
) -> None:
    """Bodies are read by the handler, within bounds; OpenAPI is told of them here."""
    extra: dict[str, Any] = {}
    if body is not None:
        schema = {"schema": body.model_json_schema()}
        extra["requestBody"] = {"required": True, "content": {"application/json": schema}}
    app.add_api_route(path, handler, methods=[method], response_model=None, openapi_extra=extra)


async def _refused(request: Request, error: Exception) -> Response:
    refused = api_error(error, _TANDEM_FIELDS)
    if request.url.path == CHAT_PATH and refused.body["param"] == "prompt":
        refused.body["param"] = "messages"  # which the suite made its prompt of
    return refused.response()


async def _nobody(request: Request, error: Exception) -> Response:
    return Response(status_code=CALLER_LEFT)


async def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    return ApiError(
        error.status_code, message, code="unknown_url", headers=error.headers
    ).response()
