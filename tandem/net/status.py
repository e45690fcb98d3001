"""Errors as status codes with a reason; the one place where exceptions meet grpc. Invariant:
whatever a handler raises reaches the caller as a status that says what to change, and an unforeseen
error as INTERNAL without its inner words."""

import asyncio
import errno
import inspect
import math
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError
from grpc import StatusCode

from tandem.core.errors import (
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    ProtocolError,
    ResourceExhausted,
    TandemError,
    Unavailable,
)
from tandem.core.foreign_words import cleaned, in_quotes, quoted
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

STATUS_S = 5.0
"""How long a status may wait for the frames before it, which its caller does not read."""

MOST_DETAILS_BYTES = 4096
"""Of a status as gRPC sends it, which has 8 KiB for all metadata."""

RETRY_AFTER = "retry-after"
"""Metadata of a status: seconds, as HTTP says it."""
MIN_RETRY_S = 0.1
MAX_RETRY_S = 60.0
"""Bounds of what another service may say there. Quotas are of a minute, so nobody has a reason to
say more; and whoever is told less would ask again without a pause."""

ENGINE_SILENT_S = "engine-silent-s"
MAX_SILENT_S = 3600.0
"""Metadata of a status: so a caller can count the outage from its beginning."""

Metadata = tuple[tuple[str, str], ...]

STATUS_LOST = "the stream ended while a message was being sent"
"""All that is known of an end whose status was lost."""


class Rejected(TandemError):
    """Another service refused; its status is handed on."""

    def __init__(self, code: StatusCode, details: str, retry_after_s: float | None = None) -> None:
        """Describe the rejection. `retry_after_s`: after how long another try may be worthwhile,
        bounded; None where it is not said."""
        super().__init__(details)
        self.code = code
        self.retry_after_s = retry_after_s


class Overdue(Rejected):
    """The caller let a limit in time pass; nothing more will be written to it."""

    def __init__(self, why: str) -> None:
        super().__init__(StatusCode.DEADLINE_EXCEEDED, why)


_CODES: tuple[tuple[type[BaseException], StatusCode], ...] = (
    (InvalidArgument, StatusCode.INVALID_ARGUMENT),
    (FailedPrecondition, StatusCode.FAILED_PRECONDITION),
    (DataLoss, StatusCode.DATA_LOSS),
    (ResourceExhausted, StatusCode.RESOURCE_EXHAUSTED),
    (Unavailable, StatusCode.UNAVAILABLE),
    (ProtocolError, StatusCode.INTERNAL),
)


def status_of(error: BaseException) -> tuple[StatusCode, str]:
    """Return the status a caller sees for `error`. What an error quotes of its caller may be of any
    length; a status that is too long never arrives, another one does in its place."""
    code, details = _whole_status_of(error)
    size_bytes = 0
    for place, letter in enumerate(details):
        plain = letter.isascii() and letter.isprintable() and letter != "%"
        size_bytes += 1 if plain else 3 * len(letter.encode(errors="surrogatepass"))
        if size_bytes > MOST_DETAILS_BYTES:
            return code, f"{details[: place - 3]}..."
    return code, details


def _whole_status_of(error: BaseException) -> tuple[StatusCode, str]:
    if isinstance(error, Rejected):
        return error.code, str(error)
    if isinstance(error, grpc.aio.AioRpcError):
        return error.code(), details_of(error)
    if isinstance(error, grpc.aio.InternalError):
        return StatusCode.CANCELLED, "the caller left while it was being written to"
    if isinstance(error, DecodeError):
        return (
            StatusCode.INVALID_ARGUMENT,
            "message: the bytes are not a protobuf message of this RPC",
        )
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code, str(error)
    return StatusCode.INTERNAL, "internal error; the service's log has the trace"


def upstream_rejection(
    code: StatusCode, details: str, retry_after_s: float | None = None
) -> Rejected:
    """Return the status for our caller when a service that we call ended our call. It is the same
    one, unless the service rejected our credentials, which is not the caller's fault."""
    if code in (StatusCode.UNAUTHENTICATED, StatusCode.PERMISSION_DENIED):
        why = f"refused by a service behind this one: {details}; check this service's"
        why += " TANDEM_CALL_KEY_FILE, or TANDEM_CLOUD_KEY_FILE for the cloud"
        return Rejected(StatusCode.UNAVAILABLE, why)
    return Rejected(code, details, retry_after_s)


async def refusal(error: grpc.aio.AioRpcError, ask: Callable[[], Awaitable[object]]) -> Rejected:
    """Return the status that refused our stream; `ask`, another call, may meet a status that was
    lost."""
    code, details = actual_status(error.code(), details_of(error))
    if details == STATUS_LOST:
        try:
            await ask()
        except Rejected as refused:
            return refused
    return Rejected(code, details, retry_after_s(error.trailing_metadata()))


def actual_status(code: StatusCode, details: str) -> tuple[StatusCode, str]:
    """Return the actual status of a stream that ended while a message was being sent: grpc.aio puts
    INTERNAL in place of the status that the service or the connection's end gave (grpc issue
    36066)."""
    if code is StatusCode.INTERNAL and details == "Internal error from Core":
        return StatusCode.UNAVAILABLE, STATUS_LOST
    return code, details


def details_of(error: grpc.aio.AioRpcError, stranger: str = "") -> str:
    """Return the details of a failed call, and what to do about them; `stranger`: see
    `plain_details`."""
    again_s = retry_after_s(error.trailing_metadata())
    return plain_details(error.code(), error.details() or "", stranger, again_s)


def plain_details(
    code: StatusCode, details: str, stranger: str = "", again_s: float | None = None
) -> str:
    """Return `details`, cleaned, in fewer words than gRPC's, and what to change where nobody could
    answer. `stranger` is how to call a service of another side, as in "the cloud at HOST:PORT":
    what it says is quoted as its words. `again_s`: when it says to try again."""
    if details == STATUS_LOST:
        return details
    refused = _REFUSED.fullmatch(details[:MOST_DETAILS_BYTES])
    if code is StatusCode.UNAVAILABLE and refused is not None and refused[2] in _OS_WORDS:
        return f"{refused[1]} cannot be reached: {refused[2]}"
    words = cleaned(details, MOST_DETAILS_BYTES)
    advice = next((advice for sign, advice in _ADVICE if sign in words), None)
    if code is not StatusCode.UNAVAILABLE or (advice and advice in words):  # said on the way here
        advice = None
    if stranger and details:
        words = _words_of(stranger, code, words, again_s)
    return words if advice is None else f"{words}; {advice}"


def _words_of(stranger: str, code: StatusCode, words: str, again_s: float | None) -> str:
    """Return the words at the end of a call, from a service of another side or from gRPC about the
    connection: with some statuses nobody can tell these two apart."""
    said = _TRY_AGAIN.search(words)
    if said is not None:
        words = words[: said.start()] + words[said.end() :]
        again_s = again_s or bounded_retry_s(said[1])
    if code in _OF_CONNECTIONS:
        return f"the call to {stranger} ended with: {in_quotes(words) or code.name}"
    named = _NAMED.fullmatch(words) if code is StatusCode.INVALID_ARGUMENT else None
    shown = quoted(stranger, words if named is None else named[2])
    if named is not None:
        shown = f"{named[1]}: {shown}"
    again = code is StatusCode.RESOURCE_EXHAUSTED and again_s is not None
    return f"{shown}; try again in {again_s:.3g} s" if again else shown


_NAMED = re.compile(r"([a-z_]{1,40}): (.+)", re.DOTALL)
"""A field and what is wrong with it: callers are told the field."""
_TRY_AGAIN = re.compile(r"[;,]? *try again in ([0-9.e+-]+) s\b")
_OF_CONNECTIONS = frozenset(
    {
        *(StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED, StatusCode.CANCELLED),
        *(StatusCode.INTERNAL, StatusCode.UNKNOWN, StatusCode.OK),
    }
)
"""What gRPC itself ends calls with."""


def retry_after_s(metadata: Any) -> float | None:
    """Return when to try again, as a status's metadata say, within `MIN_RETRY_S` and `MAX_RETRY_S`;
    None where they do not. From another service, so it may be anything."""
    for key, value in metadata or ():
        if key == RETRY_AFTER:
            return bounded_retry_s(value)
    return None


def bounded_retry_s(value: object) -> float | None:
    """Return the seconds within bounds; None for what is no number."""
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return None if math.isnan(seconds) else max(MIN_RETRY_S, min(seconds, MAX_RETRY_S))


_REFUSED = re.compile(
    r"failed to connect to all addresses; last error: \w+: (?:ipv[46]:)?([\w.:%\[\]-]{1,80}):"
    r" Failed to connect to remote host: ([\w ]+)"
)
_OS_WORDS = frozenset(map(os.strerror, errno.errorcode))
"""Nothing else is taken for why: a status with these words may be another service's."""
_ADVICE = (
    ("an http1.x server", "that port is one of HTTP: give that of gRPC"),
    ("Domain name not found", "there is no such host"),
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
    ("Stream removed", "the service ended, or the link to it broke, in the middle of the call"),
    (
        "Socket closed",
        "if the server demands TLS: it ended the connection, which it does when this side shows no"
        " certificate, an expired one or one of another authority",
    ),
)
"""What a failed handshake, or a lost connection, looks like in gRPC's words, the special before the
general."""


@asynccontextmanager
async def errors_as_status(context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
    """Turn what the handler raises into the call's status, and log it."""
    try:
        yield
    except (asyncio.CancelledError, grpc.aio.AbortError):
        raise
    except grpc.aio.InternalError as error:  # the caller is gone
        log.info("caller disconnected")
        raise asyncio.CancelledError from error
    except Exception as error:
        code, details = status_of(error)
        if code is StatusCode.INTERNAL:
            log.exception("rpc failed", status=code.name)
        else:
            log.warning("rpc refused", status=code.name, reason=details)
        await end_call(context, code, details, _metadata_of(error))


def _metadata_of(error: Exception) -> Metadata:
    """Return the metadata of a refusal: after how many seconds another try may be worth it, as in
    HTTP, and for how many seconds the engine had been stuck."""
    if isinstance(error, Unavailable) and error.silent_s:
        return ((ENGINE_SILENT_S, f"{error.silent_s:.3f}"),)
    again_s = getattr(error, "retry_after_s", None)
    return () if again_s is None else ((RETRY_AFTER, str(math.ceil(again_s))),)


def engine_silent_s(metadata: Any) -> float:
    """Return the seconds of a stuck engine in a status's metadata; 0 for an engine that works.
    From another service, so it may be anything."""
    for key, value in metadata or ():
        if key == ENGINE_SILENT_S:
            with suppress(TypeError, ValueError):
                return max(0.0, min(float(value), MAX_SILENT_S))
    return 0.0


async def end_call(
    context: grpc.aio.ServicerContext[Any, Any],
    code: StatusCode,
    details: str,
    metadata: Metadata = (),
) -> NoReturn:
    """End the call with this status; behind a frame that is not read, without one: such a call
    stays open until its caller leaves or has passed its deadline, and holds nothing but that
    frame."""
    try:
        async with asyncio.timeout(STATUS_S):
            await context.abort(code, details, metadata)
    except (TimeoutError, grpc.aio.InternalError):
        log.warning("caller does not read", status=code.name)
    raise asyncio.CancelledError


class WholeMessages(grpc.aio.ServerInterceptor):
    """Refuses bytes that are no message of their RPC, whichever servicer has it. Parsed by grpc.aio
    itself they would be a fault of ours in its log, and UNKNOWN to the caller."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_deserializer is None:
            return handler
        ends = handler.request_streaming, handler.response_streaming
        kind = "_".join("stream" if streaming else "unary" for streaming in ends)
        serve = getattr(handler, kind)
        parse = handler.request_deserializer
        if not (inspect.iscoroutinefunction(serve) or inspect.isasyncgenfunction(serve)):
            return handler

        async def checked(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            try:
                message = request if handler.request_streaming else parse(request)
                if not inspect.isasyncgenfunction(serve):
                    return await serve(message, context)
                async for response in serve(message, context):
                    await context.write(response)
            except DecodeError as error:
                code, details = status_of(error)
                log.warning("rpc refused", status=code.name, reason=details)
                await end_call(context, code, details)

        make = getattr(grpc, f"{kind}_rpc_method_handler")
        parsed = parse if handler.request_streaming else None
        return make(checked, parsed, handler.response_serializer)
