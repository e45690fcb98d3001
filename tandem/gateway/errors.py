"""Errors in OpenAI's format; the one place where the suite's errors become HTTP statuses.
Invariant: what the caller did wrong is a 4xx that names the parameter where one is at fault; what
the suite lacks is a 5xx, or a 429 that says when to come again; no inner words leave with a 500."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, to_json
from starlette.responses import Response

from tandem.core.errors import InvalidArgument
from tandem.index.owners import DocumentQuotaExceeded
from tandem.net.quotas import HolderRefused
from tandem.net.status import status_of

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
    """The caller's `param` cannot be used."""
    return ApiError(400, message, param=param, code=code)


def too_many(why: str, retry_after_s: float = RETRY_AFTER_S) -> ApiError:
    """More than the caller may have now."""
    headers = {"Retry-After": str(max(1, math.ceil(retry_after_s)))}
    code, kind = "rate_limit_exceeded", "rate_limit_error"
    return ApiError(429, why, code=code, kind=kind, headers=headers)


def lacks_scope(holder: str, scopes: Sequence[str]) -> ApiError:
    """The key of `holder` has none of `scopes`, of which one is needed."""
    named = " or ".join(f"'{scope}'" for scope in scopes)
    why = f"The key of '{holder}' does not have the scope {named}."
    return ApiError(403, why, kind="permission_error", code="missing_scope")


def unsupported(param: str, why: str) -> ApiError:
    """A parameter of OpenAI's API that would have to be ignored."""
    return invalid(param, f"'{param}' is not supported here: {why}", "unsupported_parameter")


def api_error(error: BaseException, tandem_fields: frozenset[str] = frozenset()) -> ApiError:
    """`error` as the caller sees it; `tandem_fields` are parameters inside `tandem`."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, InvalidArgument):
        return _invalid_field(error.field, error.why, tandem_fields)
    if isinstance(error, DocumentQuotaExceeded):  # to ask again is of no use
        return ApiError(413, str(error), code="document_quota_exceeded")
    if isinstance(error, HolderRefused):
        return too_many(str(error), error.retry_after_s)
    code, details = status_of(error)
    known = _BY_STATUS.get(code.name)
    if known is None:
        return ApiError(500, details, kind="server_error", code="internal_error")
    status, kind, word = known
    if status == 400 and (named := _NAMED.fullmatch(details)):
        return _invalid_field(named[1], named[2], tandem_fields)
    again_s = getattr(error, "retry_after_s", None) or RETRY_AFTER_S
    headers = {"Retry-After": str(max(1, math.ceil(again_s)))} if status in (429, 503) else {}
    return ApiError(status, details, kind=kind, code=word, headers=headers)


def validation_error(error: ValidationError) -> ApiError:
    """The first field that pydantic refuses, with all that it says of it."""
    details = error.errors(include_url=False, include_input=False, include_context=False)
    first = details[0]
    if first["type"] == "json_invalid":
        return invalid(None, f"the body is not JSON: {first['msg']}", "invalid_json")
    field = _named_part(first["loc"])
    words = [item["msg"] for item in details if _named_part(item["loc"]) == field]
    what = "; or ".join(dict.fromkeys(words)).removeprefix("Value error, ")
    return invalid(field or None, f"{field}: {what}" if field else what)


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


def _named_part(location: tuple[int | str, ...]) -> str:
    """Return where the field is, without the members of a union that pydantic names behind it; a
    member that is told by its type is named like the field in it."""
    path: list[str] = []
    for part in location:
        if isinstance(part, str) and not (part.isidentifier() and part not in _TAGS):
            break
        if path[-1:] != [str(part)]:
            path.append(str(part))
    return ".".join(path)
