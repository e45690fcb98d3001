"""Errors in the form of the API that was asked, which is known by the path. Invariant: status and
headers are those that OpenAI's API would send; the message names the caller's own fields."""

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from tandem.gateway.errors import ApiError, json_response

MESSAGES_PATH = "/v1/messages"
COUNT_TOKENS_PATH = f"{MESSAGES_PATH}/count_tokens"
ANTHROPIC_PATHS = (MESSAGES_PATH, COUNT_TOKENS_PATH)
OLLAMA_PREFIX = "/api/"
OLLAMA_CHAT_PATH = f"{OLLAMA_PREFIX}chat"

_MESSAGE_NAMES: Mapping[str, str] = {
    "prompt": "messages",
    "stop": "stop_sequences",
}
_OLLAMA_NAMES: Mapping[str, str] = {
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "response_format": "format",
    **{
        name: f"options.{name}"
        for name in (
            *("temperature", "top_p", "top_k", "min_p", "typical_p", "seed", "stop"),
            *("presence_penalty", "frequency_penalty"),
        )
    },
}
"""Names of OpenAI's and of the suite's fields in the other APIs."""

_ANTHROPIC_KINDS: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(error: ApiError, path: str) -> dict[str, Any]:
    """Return the body of `error` as the API of `path` writes it."""
    if path in ANTHROPIC_PATHS:
        kind = "invalid_request_error" if error.status < 500 else "api_error"
        message = _renamed(error, _MESSAGE_NAMES)
        named = {"type": _ANTHROPIC_KINDS.get(error.status, kind), "message": message}
        return {"type": "error", "error": named}
    if path.startswith(OLLAMA_PREFIX):
        of_chats = {"prompt": "messages"} if path == OLLAMA_CHAT_PATH else {}
        return {"error": _renamed(error, {**_OLLAMA_NAMES, **of_chats})}
    return {"error": error.body}


def error_response(error: ApiError, path: str) -> Response:
    """Return `error` as the API of `path` answers it."""
    return json_response(error_body(error, path), error.status, error.headers)


def _renamed(error: ApiError, names: Mapping[str, str]) -> str:
    """Return the error's message; a field named at its beginning is renamed as `names` says."""
    field, colon, words = str(error).partition(": ")
    if field in ("grammar", "processors"):  # which stand for one of several fields
        field = error.body["param"] or field
    return names.get(field, field) + colon + words
