"""A service's refusal as an exception of its kind."""

import re

from tandem.core.errors import (
    FailedPrecondition,
    InvalidArgument,
    ResourceExhausted,
    TandemError,
    Unavailable,
)
from tandem.net.status import Rejected


class AccessDenied(TandemError):
    """The service does not know the key or the certificate, or does not serve this caller."""


class DeadlineExceeded(TandemError, TimeoutError):
    """No complete answer within `timeout_s`."""


_KINDS: dict[str, type[TandemError]] = {
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "FAILED_PRECONDITION": FailedPrecondition,
    "PERMISSION_DENIED": AccessDenied,
    "RESOURCE_EXHAUSTED": ResourceExhausted,
    "UNAUTHENTICATED": AccessDenied,
    "UNAVAILABLE": Unavailable,
}


def typed(error: Rejected, endpoint: str) -> TandemError:
    """Return the error in this project's types: InvalidArgument with the field that the service
    named; for other codes, an error whose message names `endpoint`. Codes without a class of their
    own become a plain TandemError."""
    code = error.code.name
    details = str(error) or error.code.name
    if code == "INVALID_ARGUMENT":
        field, colon, why = details.partition(": ")
        named = colon and re.fullmatch(r"\w+", field)
        return InvalidArgument(field, why) if named else InvalidArgument("request", details)
    if kind := _KINDS.get(code):
        return kind(f"{endpoint}: {details}")
    return TandemError(f"{endpoint}: {code}: {details}")
