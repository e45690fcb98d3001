"""The OpenAPI document of the HTTP API, which FastAPI makes of the routes and their models; here is
what it does not know: streams. Invariant: an operation lists every status that it can return and
the body that comes with it, and every reference resolves inside the document."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import JSONResponse, Response

from tandem.gateway.base_models import Answer
from tandem.gateway.connection_body import LimitedRoute
from tandem.gateway.errors import ErrorBody

_JSON = "application/json"
_EVENTS = "text/event-stream"
_REF = "#/components/schemas/{model}"
AT_THE_DOOR = (403, 421)
WITH_A_KEY = (*AT_THE_DOOR, 401, 429, 500, 503)
FROM_THE_SUITE = (*WITH_A_KEY, 501, 502, 504)
OF_A_BODY = (400, 404, 408, 413, 415)
_NEXT_ATTEMPT = ("Retry-After", "integer", "Seconds to wait before the next attempt.")
_HEADERS = {
    401: ("WWW-Authenticate", "string", "Authentication scheme for API keys."),
    429: _NEXT_ATTEMPT,
    503: _NEXT_ATTEMPT,
}
_REQUEST_ID = ("X-Request-Id", "string", "Id of the request, also written to the server's log.")


def add_route(
    app: FastAPI,
    method: str,
    path: str,
    handler: Callable[..., Any],
    *,
    refusals: Sequence[int],
    answer: type[Answer] | None = None,
    error: type[Answer] = ErrorBody,
    event: type[Answer] | None = None,
    lines: bool = False,
    text: str = "",
    last_event: str | None = None,
    answered_as: dict[int, type[Answer]] | None = None,
    needs_key: bool = True,
) -> None:
    """Add a route whose handler returns responses.

    Args:
        answer: the model of a whole answer; `event`: of a streamed one.
        refusals: statuses with an `error`, unless `answered_as` says what they have.
        lines: a stream is lines of the `answer`.
        text: the media type of an answer that is a text.
        last_event: the data that ends a stream.
    """
    statuses = {status: {"model": error} for status in refusals}
    statuses |= {status: {"model": model} for status, model in (answered_as or {}).items()}
    streams: dict[str, Any] = {}
    if event is not None:
        streams[_EVENTS] = {"schema": _event(event, error, last_event)}
    if text:
        streams[text] = {"schema": {"type": "string"}}
    if lines and answer is not None:
        streams["application/x-ndjson"] = {"schema": _reference(answer)}
    route = LimitedRoute(
        path,
        handler,
        methods=[method],
        response_model=answer,
        response_class=JSONResponse if answer is not None else Response,
        responses={
            status: {**content, "headers": _headers(status)}
            for status, content in sorted(statuses.items())
        },
        openapi_extra={
            "responses": {"200": {"headers": _headers(200), "content": streams}},
            "security": [{"key": []}] if needs_key else [],
        },
        generate_unique_id_function=lambda route: route.name,
    )
    app.router.routes.append(route)
    if event is not None:
        app.state.events.append(event)


def add_document(app: FastAPI) -> None:
    """Add the route of the OpenAPI document. It is made when it is first asked for, on a thread,
    since that takes more than a second."""
    made: list[bytes] = []
    making = asyncio.Lock()

    def make() -> bytes:
        return json.dumps(openapi_document(app), ensure_ascii=False).encode()

    async def send_document() -> Response:
        async with making:
            if not made:
                made.append(await asyncio.to_thread(make))
        return Response(made[0], media_type=_JSON)

    app.add_api_route("/openapi.json", send_document, include_in_schema=False, response_model=None)


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of the app's routes."""
    document = get_openapi(
        title=app.title,
        version=app.version,
        description="OpenAI-compatible API for speculative decoding between an edge and a"
        " cloud. The `tandem` objects in requests and responses are the only"
        " extension. The routes below `/api` and `/v1/messages` translate Ollama's and"
        " Anthropic's APIs.",
        routes=app.routes,
        separate_input_output_schemas=False,
    )
    for item in document["paths"].values():
        for operation in item.values():
            operation["responses"].pop("422", None)  # FastAPI's own form of 400
    schemas = document["components"]["schemas"]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    events: Sequence[type[BaseModel]] = app.state.events
    _, more = models_json_schema([(each, "validation") for each in events], ref_template=_REF)
    schemas.update(more["$defs"])
    document["components"]["securitySchemes"] = {
        "key": {
            "type": "http",
            "scheme": "bearer",
            "description": "An API key. Required if the server is configured with keys.",
        }
    }
    return document


def _event(event: type[Answer], error: type[Answer], last_event: str | None) -> dict[str, Any]:
    """Return the schema of one event of a stream, as versions of OpenAPI before 3.2 have it. If the
    answer was broken off, its last event is an error."""
    forms: list[dict[str, Any]] = [
        {"contentMediaType": _JSON, "contentSchema": _reference(each)} for each in (event, error)
    ]
    if last_event is not None:
        forms.insert(0, {"const": last_event})
    return {
        "type": "object",
        "required": ["data"],
        "properties": {
            "event": {"type": "string"},
            "id": {"type": "string"},
            "data": {"type": "string", "anyOf": forms},
        },
    }


def _headers(status: int) -> dict[str, Any]:
    told = (_REQUEST_ID, *((_HEADERS[status],) if status in _HEADERS else ()))
    return {name: {"description": words, "schema": {"type": kind}} for name, kind, words in told}


def _reference(model: type[Answer]) -> dict[str, Any]:
    return {"$ref": _REF.format(model=model.__name__)}
