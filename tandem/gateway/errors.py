"""Errors in OpenAI's format; the one place where the suite's errors become HTTP statuses.
Invariant: what the caller did wrong is a 4xx that names the parameter where one is at fault; what
the suite lacks is a 5xx, or a 429 that says when to come again; no inner words leave with a 500."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice, takewhile
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticSerializationError, to_json
from starlette.responses import Response

from tandem.core.errors import InvalidArgument
from tandem.core.foreign_words import without_addresses
from tandem.index.owners import DocumentQuotaExceeded
from tandem.net.quotas import HolderRefused
from tandem.net.status import status_of
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

RETRY_AFTER_S = 1
"""What a refused caller is told to wait: a slot comes free when one answer of many ends."""

_INVALID = "invalid_request_error"
_NAMED = re.compile(r"(\w+): (.+)", re.DOTALL)
_BY_STATUS: Mapping[str, tuple[int, str, str]] = {
    "INVALID_ARGUMENT": (400, _INVALID, "invalid_value"),
    "OUT_OF_RANGE": (400, _INVALID, "invalid_value"),
    "RESOURCE_EXHAUSTED": (429, "rate_limit_error", "rate_limit_exceeded"),
    "UNAVAILABLE": (503, "server_error", "unavailable"),
    "FAILED_PRECONDITION": (503, "server_error", "misconfigured"),
    "UNIMPLEMENTED": (501, "server_error", "not_implemented"),
    "UNAUTHENTICATED": (502, "server_error", "services_disagree"),
    "PERMISSION_DENIED": (502, "server_error", "services_disagree"),
    "DATA_LOSS": (502, "server_error", "cloud_broke_the_conversation"),
    "DEADLINE_EXCEEDED": (504, "server_error", "timeout"),
}
_PARAMS = {"request": None, "images": "messages"}
"""Fields of the suite that callers know by another name."""
_TOO_LONG = re.compile(r"the context holds \d+")
_LONGEST_NAME = 64
"""That is compared with others; this takes time, and a body may have a name of a megabyte."""
_MOST_FORMS = 4
"""Of a field that are told: a message is read by people."""
_TAGS = frozenset({"str", "int", "float", "bool"})
"""What pydantic calls members of a union, where it says which of them refused a value."""


class ApiError(Exception):
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
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})
        self.body = {"message": message, "type": kind, "param": param, "code": code}

    def response(self) -> Response:
        return json_response({"error": self.body}, self.status, self.headers)


def invalid(param: str | None, message: str, code: str = "invalid_value") -> ApiError:
    """Return an error for a `param` that cannot be used."""
    return ApiError(400, message, param=param, code=code)


def too_many(why: str, retry_after_s: float = RETRY_AFTER_S) -> ApiError:
    """Return an error for a caller that asks for more than it may have now."""
    headers = {"Retry-After": str(max(1, math.ceil(retry_after_s)))}
    code = "rate_limit_exceeded"
    kind = "rate_limit_error"
    return ApiError(429, why, code=code, kind=kind, headers=headers)


def lacks_scope(holder: str, scopes: Sequence[str]) -> ApiError:
    """Return an error for a key of `holder` that has none of `scopes`, of which one is needed."""
    named = " or ".join(f"'{scope}'" for scope in scopes)
    why = f"The key of '{holder}' does not have the scope {named}."
    return ApiError(403, why, kind="permission_error", code="missing_scope")


def unsupported(param: str, why: str) -> ApiError:
    """Return an error for a parameter, or a value of one, that would have to be ignored."""
    return invalid(param, f"'{param}' is not supported here: {why}", "unsupported_parameter")


def unknown_parameter(name: str, known: Iterable[str], instead: str = "") -> ApiError:
    """Return an error for an unknown parameter. It says what to send `instead`, or else suggests
    the most similar of the names `known` in the same object."""
    within, dot, last = name.rpartition(".")
    close = get_close_matches(last, known, n=1) if len(last) <= _LONGEST_NAME else []
    meant = f"; did you mean '{within}{dot}{close[0]}'?" if close else ""
    if instead:
        meant = f"; {instead}"
    words = f"Unrecognized request argument supplied: {name}{meant}"
    return invalid(name, words, "unknown_parameter")


def api_error(error: BaseException, tandem_fields: frozenset[str] = frozenset()) -> ApiError:
    """Return `error` as the caller sees it; `tandem_fields` are parameters inside `tandem`."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, InvalidArgument):
        return _invalid_field(error.field, error.why, tandem_fields)
    if isinstance(error, DocumentQuotaExceeded):  # to ask again is of no use
        return ApiError(413, str(error), code="document_quota_exceeded")
    if isinstance(error, HolderRefused):
        return too_many(str(error), error.retry_after_s)
    code, whole = status_of(error)
    details = without_addresses(whole)
    if details != whole:
        log.warning("an error named an address", details=whole)
    known = _BY_STATUS.get(code.name)
    if known is None:
        return ApiError(500, details, kind="server_error", code="internal_error")
    status, kind, word = known
    if status == 400 and (named := _NAMED.fullmatch(details)):
        return _invalid_field(named[1], named[2], tandem_fields)
    again_s = getattr(error, "retry_after_s", None) or RETRY_AFTER_S
    headers = {"Retry-After": str(max(1, math.ceil(again_s)))} if status in (429, 503) else {}
    return ApiError(status, details, kind=kind, code=word, headers=headers)


def validation_error(error: ValidationError, kind: type[BaseModel] | None = None) -> ApiError:
    """Return an error that names the first field that pydantic refuses, and says why. If the field
    may have several forms, it speaks of the form that fits furthest. `kind`: type of the body, for
    the names that it knows."""
    details = error.errors(include_url=False, include_input=False)
    first = details[0]
    if first["type"] == "json_invalid":
        return invalid(None, f"the body is not JSON: {first['msg']}", "invalid_json")
    location = first["loc"]
    field = _named_part(location)
    if first["type"] == "extra_forbidden":
        return unknown_parameter(field, _known_beside(location, kind))
    named = len(list(_named_parts(location)))
    same = [each for each in details if each["loc"][:named] == location[:named]]
    deepest = max(len(each["loc"]) for each in same)
    words: dict[str, list[str]] = {}
    for each in same:
        if len(each["loc"]) == deepest:
            reasons = words.setdefault(_whole_name(each["loc"]), [])
            reasons.append(_words(each))
    sentences = (_sentence(name, dict.fromkeys(what)) for name, what in words.items())
    return invalid(field or None, "; or ".join(islice(sentences, _MOST_FORMS)))


def json_response(
    content: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return UTF-8 JSON. pydantic writes it several times as fast as Python's own module: the event
    loop does nothing else meanwhile, and many vectors or log-probabilities are long."""
    try:
        written = to_json(content)
    except (PydanticSerializationError, UnicodeEncodeError):  # UTF-8 has no lone surrogates
        written = json.dumps(content).encode()
    return Response(written, status, dict(headers or {}), "application/json")


def _invalid_field(field: str, why: str, tandem_fields: frozenset[str]) -> ApiError:
    named = _PARAMS.get(field, f"tandem.{field}" if field in tandem_fields else field)
    code = "context_length_exceeded" if _TOO_LONG.search(why) else "invalid_value"
    return invalid(named, f"{field}: {why}", code)


def _words(detail: ErrorDetails) -> str:
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
            return f"the type '{context['tag'][:_LONGEST_NAME]}' is not supported; send {known}"
    return detail["msg"].removeprefix("Value error, ").replace("Input should", "must", 1)


def _sentence(name: str, words: Iterable[str]) -> str:
    what = "; or ".join(words)
    return f"{name}: {what}" if name else what


def _known_beside(location: Sequence[int | str], kind: type[BaseModel] | None) -> list[str]:
    """Return the names that the object at the location knows, as far as they can be found."""
    for part in location[:-1]:
        field = kind.model_fields.get(str(part)) if kind is not None else None
        forms = (field.annotation, *get_args(field.annotation)) if field is not None else ()
        models = [each for each in forms if isinstance(each, type) and issubclass(each, BaseModel)]
        kind = models[0] if models else None
    if kind is None:
        return []
    return [field.alias or name for name, field in kind.model_fields.items()]


def _named_part(location: Sequence[int | str]) -> str:
    """Return where the field is, without the members of a union that pydantic names behind it; a
    member that is told by its type is named like the field in it."""
    path: list[str] = []
    for part in _named_parts(location):
        if path[-1:] != [str(part)]:
            path.append(str(part))
    return ".".join(path)


def _named_parts(location: Sequence[int | str]) -> Iterator[int | str]:
    return takewhile(lambda part: isinstance(part, int) or _is_name(part), location)


def _whole_name(location: Sequence[int | str]) -> str:
    """Return where a value is, also inside of one form of a field: without what pydantic calls the
    forms."""
    path: list[str] = []
    for part in location:
        is_form = isinstance(part, str) and (not _is_name(part) or part[:1].isupper())
        if not is_form and path[-1:] != [str(part)]:
            path.append(str(part))
    return ".".join(path)


def _is_name(part: str) -> bool:
    return part.isidentifier() and part not in _TAGS
