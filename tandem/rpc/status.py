"""Errors as status codes with a reason; the one place where exceptions meet grpc.

Invariant: whatever a handler raises reaches the caller as a status that says what to change, and an
unforeseen error as INTERNAL without its inner words. Must not import torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc import StatusCode

from tandem.core.errors import (
    InvalidArgument,
    ProtocolError,
    ResourceExhausted,
    TandemError,
    Unavailable,
)
from tandem.protocol.document_kv import KvModelMismatch, KvUnavailable
from tandem.protocol.intake import VocabularyMismatch
from tandem.protocol.prefixes import PrefixMismatch
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)


STATUS_LOST = "the stream ended while a message was being sent"
"""All that is known of an end whose status was lost."""


class Rejected(TandemError):
    """Another service refused; its status is handed on."""

    def __init__(self, code: StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code


_CODES: tuple[tuple[type[BaseException], StatusCode], ...] = (
    (InvalidArgument, StatusCode.INVALID_ARGUMENT),
    (VocabularyMismatch, StatusCode.FAILED_PRECONDITION),
    (KvModelMismatch, StatusCode.FAILED_PRECONDITION),
    (KvUnavailable, StatusCode.FAILED_PRECONDITION),
    (PrefixMismatch, StatusCode.DATA_LOSS),
    (ResourceExhausted, StatusCode.RESOURCE_EXHAUSTED),
    (Unavailable, StatusCode.UNAVAILABLE),
    (ProtocolError, StatusCode.INTERNAL),
)


def status_of(error: BaseException) -> tuple[StatusCode, str]:
    """The status a caller sees for `error`."""
    if isinstance(error, Rejected):
        return error.code, str(error)
    if isinstance(error, grpc.aio.AioRpcError):
        return error.code(), details_of(error)
    if isinstance(error, grpc.aio.InternalError):
        return StatusCode.CANCELLED, "the caller left while it was being written to"
    if isinstance(error, DecodeError):
        return StatusCode.INVALID_ARGUMENT, "message: the bytes are no protobuf message of this RPC"
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code, str(error)
    return StatusCode.INTERNAL, "internal error; the service's log has the trace"


def refused_below(code: StatusCode, details: str) -> Rejected:
    """What our caller is told when a service that we call ended our call: its status, but for what
    it finds wrong with us, of which our caller is not guilty."""
    if code in (StatusCode.UNAUTHENTICATED, StatusCode.PERMISSION_DENIED):
        why = f"refused by a service behind this one: {details}; see TANDEM_CALL_KEY_FILE here"
        return Rejected(StatusCode.UNAVAILABLE, why)
    return Rejected(code, details)


async def refusal(error: grpc.aio.AioRpcError, ask: Callable[[], Awaitable[object]]) -> Rejected:
    """What a stream of ours was refused with. Where its status was lost, `ask`, another call to the
    same service, may meet what it was."""
    code, details = known_status(error.code(), details_of(error))
    if details == STATUS_LOST:
        try:
            await ask()
        except Rejected as refused:
            return refused
    return Rejected(code, details)


def known_status(code: StatusCode, details: str) -> tuple[StatusCode, str]:
    """When a stream ends while a message is being sent, grpc.aio puts INTERNAL in the place of the
    status that the service or the connection's end gave (grpc issue 36066)."""
    if code is StatusCode.INTERNAL and details == "Internal error from Core":
        return StatusCode.UNAVAILABLE, STATUS_LOST
    return code, details


def details_of(error: grpc.aio.AioRpcError) -> str:
    """The details of a failed call, and what to do about them."""
    return advised(error.code(), error.details() or "")


def advised(code: StatusCode, details: str) -> str:
    """`details`, and what to change where TLS is why nobody answered."""
    if code is not StatusCode.UNAVAILABLE:
        return details
    advice = next((advice for sign, advice in _TLS_ADVICE if sign in details), None)
    return details if advice is None else f"{details}; {advice}"


_TLS_ADVICE = (
    ("certificate has expired", "the server's certificate has expired: renew it"),
    (
        "Hostname Verification Check failed",
        "the server's certificate does not name the address it was called by: call it by one of its"
        " names (SAN), or make it a certificate with this one",
    ),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "the server's certificate is of an authority that this side's TANDEM_TLS_CA does not hold",
    ),
    (
        "WRONG_VERSION_NUMBER",
        "the server does not speak TLS: give it certificates, or call it without them",
    ),
    (
        "Socket closed",
        "if the server demands TLS: it ended the connection, which it does when this side shows no"
        " certificate, an expired one or one of another authority",
    ),
)
"""What a failed handshake looks like in gRPC's words, the special before the general."""


@asynccontextmanager
async def errors_as_status(
    context: grpc.aio.ServicerContext[Any, Any],
) -> AsyncIterator[None]:
    """Turn what the handler raises into the call's status, and log it."""
    try:
        yield
    except (asyncio.CancelledError, grpc.aio.AbortError):
        raise
    except grpc.aio.InternalError as error:  # nobody is left to be told
        log.info("caller left")
        raise asyncio.CancelledError from error
    except Exception as error:
        code, details = status_of(error)
        if code is StatusCode.INTERNAL:
            log.exception("rpc failed", status=code.name)
        else:
            log.warning("rpc refused", status=code.name, reason=details)
        await context.abort(code, details)
