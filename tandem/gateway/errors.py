"""Errors in the form of the API that was asked, which is known by the path; the one place where the
suite's errors become HTTP statuses. Invariant: what the caller did wrong is a 4xx that names the
parameter where one is at fault, as that API calls it; what the suite lacks is a 5xx, or a 429 that
says when to come again; no inner words leave with a 500."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from typing import Any, Literal

from pydantic import Field
from pydantic_core import PydanticSerializationError, to_json
from starlette.exceptions import HTTPException
from starlette.responses import Response

from tandem.core.errors import InvalidArgument
from tandem.core.foreign_words import without_addresses
from tandem.gateway.base_models import Answer, absent
from tandem.index.owners import DocumentQuotaExceeded
from tandem.net.quotas import HolderRefused
from tandem.net.status import status_of
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

RETRY_AFTER_S = 1
"""What a refused caller is told to wait: a slot comes free when one answer of many ends."""

_INVALID = "invalid_request_error"
_SERVER = "server_error"
_NAMED = re.compile(r"(\w+): (.+)", re.DOTALL)
_BY_STATUS: Mapping[str, tuple[int, str, str]] = {
    "INVALID_ARGUMENT": (400, _INVALID, "invalid_value"),
    "OUT_OF_RANGE": (400, _INVALID, "invalid_value"),
    "RESOURCE_EXHAUSTED": (429, "rate_limit_error", "rate_limit_exceeded"),
    "UNAVAILABLE": (503, _SERVER, "unavailable"),
    "FAILED_PRECONDITION": (503, _SERVER, "misconfigured"),
    "UNIMPLEMENTED": (501, _SERVER, "not_implemented"),
    "UNAUTHENTICATED": (502, _SERVER, "upstream_auth_failed"),
    "PERMISSION_DENIED": (502, _SERVER, "upstream_auth_failed"),
    "DATA_LOSS": (502, _SERVER, "upstream_protocol_error"),
    "DEADLINE_EXCEEDED": (504, _SERVER, "timeout"),
}
_PARAMS = {"request": None, "images": "messages"}
"""Fields of the suite that callers know by another name."""
_TOO_LONG = re.compile(r"the context holds \d+")
_MOST_FORMS = 4
"""Of a field that are told: a message is read by people."""
_LONGEST_TAG = 64
_LONGEST_MESSAGE = 2000
_LONGEST_NAME = 200
"""Characters of what a caller sent may come back in an error; a body may be a name of 2 MiB."""
_TAGS = frozenset({"str", "int", "float", "bool"})
"""What pydantic calls members of a union, where it says which of them refused a value."""


class ErrorDetails(Answer):
    message: str
    type: str
    param: str | None = Field(description="The request field that caused the error, if any.")
    code: str | None


class ErrorBody(Answer):
    """Error response in OpenAI's format. A broken stream ends with it."""

    error: ErrorDetails


class ThreadRefusal(Answer):
    """For Anthropic's own clients, which then send the whole conversation without `thread`."""

    error_code: Literal["thread_unsupported_request"] = "thread_unsupported_request"
    unsupported: list[str] = Field(description="What is not supported.")


class MessageErrorDetails(Answer):
    type: str
    message: str
    details: ThreadRefusal | None = absent("Only where `thread` is refused.")


class MessageError(Answer):
    """Error in Anthropic's format. A broken stream ends with it."""

    type: Literal["error"] = "error"
    error: MessageErrorDetails


class OllamaError(Answer):
    """Error in Ollama's format. A broken stream ends with it."""

    error: str


class ApiError(HTTPException):
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str = _INVALID,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        message = _shortened(message, _LONGEST_MESSAGE)
        super().__init__(status, message, dict(headers or {}))
        self.status = status
        self.message = message
        self.param = None if param is None else _shortened(param, _LONGEST_NAME)
        self.code = code
        self.kind = kind


def _shortened(words: str, most: int) -> str:
    return words if len(words) <= most else f"{words[: most - 1]}…"


def invalid(param: str | None, message: str, code: str = "invalid_value") -> ApiError:
    """Return an error for a `param` that cannot be used."""
    return ApiError(400, message, param=param, code=code)


def lacks_scope(holder: str, scopes: Sequence[str]) -> ApiError:
    """Return an error for a key of `holder` that has none of `scopes`, of which one is needed."""
    named = " or ".join(f"'{scope}'" for scope in scopes)
    why = f"The key of '{holder}' does not have the scope {named}."
    return ApiError(403, why, kind="permission_error", code="missing_scope")


def unsupported(param: str, why: str) -> ApiError:
    """Return an error for a parameter, or a value of one, that would have to be ignored."""
    return invalid(param, f"'{param}' is not supported here: {why}", "unsupported_parameter")


def api_error(error: BaseException, tandem_fields: frozenset[str] = frozenset()) -> ApiError:
    """Return `error` as the caller sees it; `tandem_fields` are parameters inside `tandem`."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, InvalidArgument):
        return _invalid_field(error.field, error.why, tandem_fields)
    if isinstance(error, DocumentQuotaExceeded):  # to ask again is of no use
        return ApiError(413, str(error), code="document_quota_exceeded")
    if isinstance(error, HolderRefused):
        status, kind, word = _BY_STATUS["RESOURCE_EXHAUSTED"]
        again = _retry_after(error.retry_after_s)
        return ApiError(status, str(error), kind=kind, code=word, headers=again)
    code, whole = status_of(error)
    details = without_addresses(whole)
    if details != whole:
        log.warning("an error named an address", details=whole)
    known = _BY_STATUS.get(code.name)
    if known is None:
        return ApiError(500, details, kind=_SERVER, code="internal_error")
    status, kind, word = known
    if status == 400 and (named := _NAMED.fullmatch(details)):
        return _invalid_field(named[1], named[2], tandem_fields)
    again_s = getattr(error, "retry_after_s", None) or RETRY_AFTER_S
    headers = _retry_after(again_s) if status in (429, 503) else {}
    return ApiError(status, details, kind=kind, code=word, headers=headers)


def _retry_after(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, math.ceil(seconds)))}


def validation_error(details: Sequence[Mapping[str, Any]]) -> ApiError:
    """Return an error that names the first field that pydantic refuses, and says why. If the field
    may have several forms, it speaks of the form that fits furthest."""
    location = details[0]["loc"]
    field = _named_part(location)
    if details[0]["type"] == "unknown_parameter":
        context, within = details[0]["ctx"], f"{field}." if field else ""
        name = within + context["name"]
        meant = f"; did you mean '{within}{context['meant']}'?" if context["meant"] else ""
        return invalid(name, f"Unknown parameter: {name}{meant}", "unknown_parameter")
    named = len(list(_named_parts(location)))
    same = [each for each in details if each["loc"][:named] == location[:named]]
    deepest = max(len(each["loc"]) for each in same)
    words: dict[str, list[str]] = {}
    for each in same:
        if len(each["loc"]) == deepest:
            words.setdefault(_whole_name(each["loc"]), []).append(_words(each))
    sentences = (_sentence(name, dict.fromkeys(what)) for name, what in words.items())
    known = details[0]["type"] == "unsupported_parameter"
    code = "unsupported_parameter" if known else "invalid_value"
    return invalid(field or None, "; or ".join(islice(sentences, _MOST_FORMS)), code)


def json_response(
    content: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return UTF-8 JSON of a model, or of what pydantic can write."""
    return Response(written(content), status, dict(headers or {}), "application/json")


def written(content: Any) -> bytes:
    """Return JSON in ASCII: some clients end a line of a stream at other characters than LF."""
    try:
        return to_json(content, ensure_ascii=True)
    except (PydanticSerializationError, UnicodeEncodeError):  # UTF-8 has no lone surrogates
        plain = content.model_dump() if isinstance(content, Answer) else content
        return json.dumps(plain).encode()


def error_response(error: ApiError, path: str) -> Response:
    """Return `error` as the API of `path` answers it."""
    return json_response(error_body(error, path), error.status, error.headers)


RESPONSES_PATH = "/v1/responses"
MESSAGES_PATH = "/v1/messages"
OLLAMA_PREFIX = "/api/"
OLLAMA_CHAT_PATH = f"{OLLAMA_PREFIX}chat"
CHAT_PATH = "/v1/chat/completions"
DETOKENIZE_PATH = "/detokenize"

_RESPONSE_NAMES: Mapping[str, str] = {
    "prompt": "input",
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text",
    "reasoning_effort": "reasoning",
    "chat_template_kwargs": "reasoning",
}
_NAMES_BY_PATH: Mapping[str, Mapping[str, str]] = {
    CHAT_PATH: {"prompt": "messages"},
    RESPONSES_PATH: _RESPONSE_NAMES,
    DETOKENIZE_PATH: {"prompt": "tokens"},
}
_MESSAGE_NAMES: Mapping[str, str] = {
    "prompt": "messages",
    "stop": "stop_sequences",
    "response_format": "output_config",
    "reasoning_effort": "output_config",
    "chat_template_kwargs": "thinking",
    "thinking_token_budget": "thinking",
}
_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "typical_p", "seed", "stop"),
    *("presence_penalty", "frequency_penalty"),
)
_OLLAMA_NAMES: Mapping[str, str] = {
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "response_format": "format",
    **{name: f"options.{name}" for name in _SAMPLING},
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


def error_body(error: ApiError, path: str) -> ErrorBody | MessageError | OllamaError:
    """Return the body of `error` as the API of `path` writes it."""
    if path == MESSAGES_PATH or path.startswith(f"{MESSAGES_PATH}/"):
        usual = _INVALID if error.status < 500 else "api_error"
        kind = _ANTHROPIC_KINDS.get(error.status, usual)
        message = _renamed(error, _MESSAGE_NAMES)
        refusal = ThreadRefusal(unsupported=["thread"]) if error.param == "thread" else None
        return MessageError(error=MessageErrorDetails(type=kind, message=message, details=refusal))
    if path.startswith(OLLAMA_PREFIX):
        of_chats = {"prompt": "messages"} if path == OLLAMA_CHAT_PATH else {}
        return OllamaError(error=_renamed(error, {**_OLLAMA_NAMES, **of_chats}))
    names = _NAMES_BY_PATH.get(path, {})
    param = None if error.param is None else names.get(error.param.partition(".")[0], error.param)
    told = ErrorDetails(message=error.message, type=error.kind, param=param, code=error.code)
    return ErrorBody(error=told)


def _renamed(error: ApiError, names: Mapping[str, str]) -> str:
    """Return the error's message; a field named at its beginning is renamed as `names` says."""
    field, colon, words = error.message.partition(": ")
    if field in ("grammar", "processors"):  # which stand for one of several fields
        field = error.param or field
    return names.get(field, field) + colon + words


def _invalid_field(field: str, why: str, tandem_fields: frozenset[str]) -> ApiError:
    named = _PARAMS.get(field, f"tandem.{field}" if field in tandem_fields else field)
    code = "context_length_exceeded" if _TOO_LONG.search(why) else "invalid_value"
    return invalid(named, f"{field}: {why}", code)


def _words(detail: Mapping[str, Any]) -> str:
    """Return what pydantic says of a value, in the API's words instead of Python's types."""
    context = detail.get("ctx", {})
    match detail["type"]:
        case "missing":
            return "is required"
        case "extra_forbidden":
            return "is unknown here; leave it out"
        case "dict_type" | "model_type" | "model_attributes_type":
            return "must be an object"
        case "bool_type":
            return "must be true or false"
        case "greater_than_equal":
            return f"must be at least {context['ge']}"
        case "less_than_equal":
            return f"must be at most {context['le']}"
        case "union_tag_not_found":
            return "type: is required"
        case "union_tag_invalid":
            known = context["expected_tags"]
            return f"the type '{context['tag'][:_LONGEST_TAG]}' is not supported; send {known}"
    words = str(detail["msg"])
    return words.removeprefix("Value error, ").replace("Input should", "must", 1)


def _sentence(name: str, words: Iterable[str]) -> str:
    what = "; or ".join(words)
    return f"{name}: {what}" if name else what


def _named_part(location: Sequence[int | str]) -> str:
    """Return where the field is, without the members of a union that pydantic names behind it; a
    member that is told by its type is named like the field in it."""
    return _joined(_named_parts(location))


def _named_parts(location: Sequence[int | str]) -> Iterator[int | str]:
    return takewhile(lambda part: isinstance(part, int) or _is_name(part), location)


def _whole_name(location: Sequence[int | str]) -> str:
    """Return where a value is, also inside of one form of a field: without what pydantic calls the
    forms."""
    return _joined(
        part
        for part in location
        if isinstance(part, int) or (_is_name(part) and not part[:1].isupper())
    )


def _joined(parts: Iterable[int | str]) -> str:
    path: list[str] = []
    for part in parts:
        if path[-1:] != [str(part)]:
            path.append(str(part))
    return ".".join(path)


def _is_name(part: str) -> bool:
    return part.isidentifier() and part not in _TAGS
