"""The OpenAPI document of the HTTP API. Invariant: an operation lists every status that it can
return and the body that comes with it, and every reference resolves inside the document."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from tandem.gateway.answer_schema import (
    AliveAnswer,
    ChatCompletion,
    ChatCompletionChunk,
    ErrorBody,
    ModelCard,
    ModelList,
    ReadyAnswer,
    TextCompletion,
    TextCompletionChunk,
)
from tandem.gateway.anthropic_messages import (
    CountTokensRequest,
    MessageError,
    MessageEvent,
    MessageObject,
    MessagesRequest,
    TokenCount,
)
from tandem.gateway.document_route import (
    DEFAULT_LISTED,
    DOCUMENT_PATH,
    DOCUMENTS_PATH,
    MAX_LISTED,
    DocumentAdded,
    DocumentDeleted,
    DocumentList,
    DocumentUpload,
)
from tandem.gateway.error_forms import COUNT_TOKENS_PATH, MESSAGES_PATH, OLLAMA_CHAT_PATH
from tandem.gateway.link_route import LINK_PATH, LinkChange, LinkState
from tandem.gateway.ollama import (
    NDJSON,
    OllamaChatAnswer,
    OllamaChatRequest,
    OllamaEmbeddings,
    OllamaEmbedRequest,
    OllamaError,
    OllamaGenerateAnswer,
    OllamaGenerateRequest,
    OllamaModelCard,
    OllamaModels,
    OllamaShowRequest,
    OllamaVersion,
)
from tandem.gateway.ollama_route import (
    OLLAMA_EMBED_PATH,
    OLLAMA_GENERATE_PATH,
    OLLAMA_SHOW_PATH,
    OLLAMA_TAGS_PATH,
    OLLAMA_VERSION_PATH,
)
from tandem.gateway.responses import ResponseEvent, ResponseObject, ResponsesRequest
from tandem.gateway.schema import ChatCompletionRequest, CompletionRequest
from tandem.gateway.text_endpoints import (
    DetokenizeRequest,
    DetokenizeResponse,
    EmbeddingList,
    EmbeddingRequest,
    TokenizeRequest,
    TokenizeResponse,
)

CHAT_PATH = "/v1/chat/completions"
COMPLETION_PATH = "/v1/completions"
TOKENIZE_PATH = "/tokenize"
DETOKENIZE_PATH = "/detokenize"
EMBEDDINGS_PATH = "/v1/embeddings"
RESPONSES_PATH = "/v1/responses"
MODELS_PATH = "/v1/models"
MODEL_PATH = "/v1/models/{model}"
_JSON = "application/json"
_EVENTS = "text/event-stream"
_REF = "#/components/schemas/{model}"
_AT_THE_DOOR = (403, 421)
_WITH_A_KEY = (*_AT_THE_DOOR, 401, 429, 500, 503)
_FROM_THE_SUITE = (*_WITH_A_KEY, 501, 502, 504)
_OF_A_BODY = (400, 404, 408, 413, 415)
_HEADERS: Mapping[int, tuple[str, str, str]] = {
    401: ("WWW-Authenticate", "string", "Authentication scheme for API keys."),
    429: ("Retry-After", "integer", "Seconds to wait before the next attempt."),
    503: ("Retry-After", "integer", "Seconds to wait before the next attempt."),
}


@dataclass(frozen=True, slots=True)
class Operation:
    """`answer` by media type, a model or words for what is none, and of a stream the model of its
    events, which `stream` in the body asks for; `refusals` are statuses whose body
    is an `error` unless `other` says what it is. `last_event`: the data that ends a stream."""

    answer: Mapping[str, type[BaseModel] | str]
    refusals: Sequence[int]
    body: type[BaseModel] | None = None
    other: Mapping[int, type[BaseModel]] | None = None
    error: type[BaseModel] = ErrorBody
    last_event: str | None = "[DONE]"
    needs_key: bool = True
    query: Mapping[str, Mapping[str, Any]] | None = None
    """Schemas of the parameters behind the path, all of which may be left out."""


OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("post", CHAT_PATH): Operation(
        {
            _JSON: ChatCompletion,
            _EVENTS: ChatCompletionChunk,
        },
        (*_FROM_THE_SUITE, *_OF_A_BODY),
        ChatCompletionRequest,
    ),
    ("post", COMPLETION_PATH): Operation(
        {
            _JSON: TextCompletion,
            _EVENTS: TextCompletionChunk,
        },
        (*_FROM_THE_SUITE, *_OF_A_BODY),
        CompletionRequest,
    ),
    ("post", RESPONSES_PATH): Operation(
        {
            _JSON: ResponseObject,
            _EVENTS: ResponseEvent,
        },
        (*_FROM_THE_SUITE, *_OF_A_BODY),
        ResponsesRequest,
    ),
    ("post", EMBEDDINGS_PATH): Operation(
        {_JSON: EmbeddingList}, (*_FROM_THE_SUITE, *_OF_A_BODY), EmbeddingRequest
    ),
    ("post", TOKENIZE_PATH): Operation(
        {_JSON: TokenizeResponse}, (*_FROM_THE_SUITE, *_OF_A_BODY), TokenizeRequest
    ),
    ("post", DETOKENIZE_PATH): Operation(
        {_JSON: DetokenizeResponse}, (*_FROM_THE_SUITE, *_OF_A_BODY), DetokenizeRequest
    ),
    ("post", MESSAGES_PATH): Operation(
        {_JSON: MessageObject, _EVENTS: MessageEvent},
        (*_FROM_THE_SUITE, *_OF_A_BODY),
        MessagesRequest,
        error=MessageError,
        last_event=None,
    ),
    ("post", COUNT_TOKENS_PATH): Operation(
        {_JSON: TokenCount},
        (*_FROM_THE_SUITE, *_OF_A_BODY),
        CountTokensRequest,
        error=MessageError,
    ),
    ("post", OLLAMA_CHAT_PATH): Operation(
        {_JSON: OllamaChatAnswer, NDJSON: OllamaChatAnswer},
        (*_FROM_THE_SUITE, *_OF_A_BODY),
        OllamaChatRequest,
        error=OllamaError,
    ),
    ("post", OLLAMA_GENERATE_PATH): Operation(
        {_JSON: OllamaGenerateAnswer, NDJSON: OllamaGenerateAnswer},
        (*_FROM_THE_SUITE, *_OF_A_BODY),
        OllamaGenerateRequest,
        error=OllamaError,
    ),
    ("post", OLLAMA_EMBED_PATH): Operation(
        {_JSON: OllamaEmbeddings},
        (*_FROM_THE_SUITE, *_OF_A_BODY),
        OllamaEmbedRequest,
        error=OllamaError,
    ),
    ("post", OLLAMA_SHOW_PATH): Operation(
        {_JSON: OllamaModelCard},
        (*_FROM_THE_SUITE, *_OF_A_BODY),
        OllamaShowRequest,
        error=OllamaError,
    ),
    ("get", OLLAMA_TAGS_PATH): Operation({_JSON: OllamaModels}, _FROM_THE_SUITE, error=OllamaError),
    ("get", OLLAMA_VERSION_PATH): Operation({_JSON: OllamaVersion}, _WITH_A_KEY, error=OllamaError),
    ("get", MODELS_PATH): Operation({_JSON: ModelList}, _FROM_THE_SUITE),
    ("get", MODEL_PATH): Operation({_JSON: ModelCard}, (*_FROM_THE_SUITE, 404)),
    ("post", DOCUMENTS_PATH): Operation(
        {_JSON: DocumentAdded}, (*_FROM_THE_SUITE, 400, 408, 413, 415), DocumentUpload
    ),
    ("get", DOCUMENTS_PATH): Operation(
        {_JSON: DocumentList},
        (*_FROM_THE_SUITE, 400),
        query={
            "after": {
                "type": "string",
                "description": "Return documents whose names sort after this one.",
            },
            "limit": {
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_LISTED - 1,
                "default": DEFAULT_LISTED,
            },
        },
    ),
    ("delete", DOCUMENT_PATH): Operation({_JSON: DocumentDeleted}, (*_FROM_THE_SUITE, 400, 404)),
    ("get", LINK_PATH): Operation({_JSON: LinkState}, _WITH_A_KEY),
    ("post", LINK_PATH): Operation(
        {_JSON: LinkState}, (*_WITH_A_KEY, 400, 408, 413, 415), LinkChange
    ),
    ("get", "/metrics"): Operation(
        {CONTENT_TYPE_LATEST: "Metrics in Prometheus text format."}, _WITH_A_KEY
    ),
    ("get", "/healthz"): Operation({_JSON: AliveAnswer}, _AT_THE_DOOR, needs_key=False),
    ("get", "/readyz"): Operation(
        {_JSON: ReadyAnswer}, (*_AT_THE_DOOR, 503), other={503: ReadyAnswer}, needs_key=False
    ),
}


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of the app's routes.
    Raises KeyError for a route that is not in OPERATIONS."""
    document = get_openapi(
        title=app.title,
        version=app.version,
        description="OpenAI-compatible API for speculative decoding between an edge and a"
        " cloud. The `tandem` objects in requests and responses are the only"
        " extension. The routes below `/api` and `/v1/messages` translate Ollama's and"
        " Anthropic's APIs.",
        routes=app.routes,
    )
    for path, item in document["paths"].items():
        for method, operation in item.items():
            known = OPERATIONS[method, path]
            operation["responses"] = _responses(known)
            operation["security"] = [{"key": []}] if known.needs_key else []
            operation.setdefault("parameters", []).extend(
                {"name": name, "in": "query", "required": False, "schema": schema}
                for name, schema in (known.query or {}).items()
            )
            if known.body is not None:
                content = {_JSON: {"schema": _reference(known.body)}}
                operation["requestBody"] = {"required": True, "content": content}
    document["components"] = {
        "schemas": _schemas(),
        "securitySchemes": {
            "key": {
                "type": "http",
                "scheme": "bearer",
                "description": "An API key. Required if the server is configured with keys.",
            }
        },
    }
    return document


def _responses(operation: Operation) -> dict[str, Any]:
    other = operation.other or {}
    answers = {200: dict(operation.answer)}
    for status in sorted(operation.refusals):
        answers[status] = {_JSON: other.get(status, operation.error)}
    return {
        str(status): _response(status, content, operation) for status, content in answers.items()
    }


def _response(
    status: int, content: Mapping[str, type[BaseModel] | str], operation: Operation
) -> dict[str, Any]:
    headers = {
        "X-Request-Id": _header("string", "Id of the request, also written to the server's log.")
    }
    if status in _HEADERS:
        name, kind, words = _HEADERS[status]
        headers[name] = _header(kind, words)
    return {
        "description": HTTPStatus(status).phrase,
        "headers": headers,
        "content": {
            kind: {"schema": _event(what, operation) if kind == _EVENTS else _reference(what)}
            for kind, what in content.items()
        },
    }


def _event(what: type[BaseModel] | str, operation: Operation) -> dict[str, Any]:
    """Return the schema of one event of a stream, as versions of OpenAPI before 3.2 have it. If the
    answer was broken off, its last event is an error."""
    forms: list[dict[str, Any]] = [
        {"contentMediaType": _JSON, "contentSchema": _reference(each)}
        for each in (what, operation.error)
    ]
    if operation.last_event is not None:
        forms.insert(0, {"const": operation.last_event})
    return {
        "type": "object",
        "required": ["data"],
        "properties": {"event": {"type": "string"}, "data": {"type": "string", "anyOf": forms}},
    }


def _header(kind: str, words: str) -> dict[str, Any]:
    return {"description": words, "schema": {"type": kind}}


def _reference(what: type[BaseModel] | str) -> dict[str, Any]:
    if isinstance(what, str):
        return {"type": "string", "description": what}
    return {"$ref": _REF.format(model=what.__name__)}


def _schemas() -> dict[str, Any]:
    models: set[type[BaseModel]] = set()
    for operation in OPERATIONS.values():
        bodies = (*operation.answer.values(), *(operation.other or {}).values(), operation.body)
        models.add(operation.error)
        models |= {each for each in bodies if isinstance(each, type)}
    mode: JsonSchemaMode = "validation"
    named = [(each, mode) for each in sorted(models, key=lambda each: each.__name__)]
    _, schemas = models_json_schema(named, ref_template=_REF)
    definitions: dict[str, Any] = schemas["$defs"]
    return definitions
