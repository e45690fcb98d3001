"""Bearer keys on calls: `authorization: Bearer KEY` in the metadata. Invariants: on a guarded
server no method but health runs for a call whose key does not have the method's scope, whatever
services it has; a stream ends soon after its key was taken back; a key is only ever sent over TLS,
and never logged."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import grpc
from grpc import StatusCode

from tandem.core.errors import InvalidArgument
from tandem.net.access_keys import check_key
from tandem.net.keys_file import CurrentKeys, KeysFile
from tandem.net.reloaded import BadFile, Reloaded, read_file
from tandem.net.scopes import OPEN, SCOPE_OF, Caller, Scope, note_caller
from tandem.net.status import end_call
from tandem.telemetry.logging import add_log_context, get_logger

log = get_logger(__name__)

HEADER = "authorization"
SCHEME = "bearer "
RECHECK_S = 20.0
"""How often a stream's key is looked up again; three times in the minute that is promised."""

_MISSING = "a key is required: metadata 'authorization: Bearer KEY'"
_UNKNOWN = "the key is unknown"

if TYPE_CHECKING:  # generic for type checkers only
    Handler = grpc.RpcMethodHandler[Any, Any] | None

Reason = TypeVar("Reason")
_WhyNot = tuple[StatusCode, str]
Metadata = Iterable[tuple[str, str | bytes]]


def known_keys(path: Path) -> KeysFile:
    """Return the hashed keys in the file at `path`; a change is used by the next call. Raises
    BadFile."""
    return KeysFile(path)


def own_key(path: Path) -> Reloaded[str]:
    """Return the one key in the file at `path`, which this process shows. Raises BadFile."""

    def read() -> str:
        try:
            key = read_file(path).decode().strip()
            check_key(key)
        except (InvalidArgument, UnicodeDecodeError) as error:
            why = error.why if isinstance(error, InvalidArgument) else "must be text"
            raise BadFile(path, f"must hold one key and nothing else: {why}") from None
        return key

    return Reloaded((path,), read)


class KeyGuard(grpc.aio.ServerInterceptor):
    """Lets calls through whose key has the method's scope, and health. While a stream lasts, its
    key is looked up again every `recheck_s`."""

    def __init__(self, keys: CurrentKeys, recheck_s: float = RECHECK_S) -> None:
        self._keys = keys
        self._recheck_s = recheck_s

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        method = handler_call_details.method
        if SCOPE_OF.get(method, Scope.ADMIN) is OPEN:
            return await continuation(handler_call_details)
        key = presented_key(handler_call_details.invocation_metadata or ())
        if (caller := self._caller(key)) is not None:
            add_log_context(caller=caller.holder)  # grpc.aio runs the handler in this task
            note_caller(caller)
        if (why_not := self._why_not(key, method)) is not None:
            return _refusal(why_not, method)
        handler = await continuation(handler_call_details)
        return _watched(handler, lambda: self._why_not(key, method), self._recheck_s)

    def _caller(self, key: str | None) -> Caller | None:
        return None if key is None else self._keys.current().caller(key)

    def _why_not(self, key: str | None, method: str) -> _WhyNot | None:
        """Return why a call may not begin or continue with this key; None: it may."""
        if key is None:
            return StatusCode.UNAUTHENTICATED, _MISSING
        if (caller := self._caller(key)) is None:
            return StatusCode.UNAUTHENTICATED, _UNKNOWN
        if method not in SCOPE_OF:
            return StatusCode.UNIMPLEMENTED, "there is no such method"
        if (scope := SCOPE_OF[method]) in caller.scopes:
            return None
        name = method.rpartition("/")[2]
        why = f"{name} needs the scope '{scope}', which the key of '{caller.holder}' does not have"
        return StatusCode.PERMISSION_DENIED, why


def _watched(handler: Handler, why_not: Callable[[], _WhyNot | None], recheck_s: float) -> Handler:
    """Return `handler`; a stream's ends with a status once `why_not` says why it may not go on."""
    if handler is None or not (handler.request_streaming or handler.response_streaming):
        return handler
    kind = _KINDS[handler.request_streaming, handler.response_streaming]
    serve = getattr(handler, kind)

    async def watched(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        response = None
        recheck = Recheck(why_not, recheck_s)
        with recheck:
            if inspect.isasyncgenfunction(serve):
                async for answer in serve(request, context):
                    await context.write(answer)
            else:
                response = await serve(request, context)
        if recheck.found is not None:
            code, why = recheck.found
            log.warning("stream ended", status=code.name, reason=why)
            await end_call(context, code, f"ended: {why}")
        return response

    make = getattr(grpc, f"{kind}_rpc_method_handler")
    made: Handler = make(watched, handler.request_deserializer, handler.response_serializer)
    return made


_KINDS = {
    (True, False): "stream_unary",
    (False, True): "unary_stream",
    (True, True): "stream_stream",
}


class Recheck(Generic[Reason]):
    """Ends what runs inside, in the same task, once `why_not` finds a reason, which is in `found`
    then. It is asked every `every_s` seconds."""

    def __init__(self, why_not: Callable[[], Reason | None], every_s: float) -> None:
        self._why_not = why_not
        self._every_s = every_s
        self._cancelled = 0
        self.found: Reason | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._next = self._loop.call_later(self._every_s, self._check)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self._next.cancel()
        if self._task is None or self.found is None:
            return False
        left = [self._task.uncancel() for _ in range(self._cancelled)]
        return kind is asyncio.CancelledError and left[-1:] == [0]

    def _check(self) -> None:
        self.found = self.found or self._why_not()
        if self.found is not None and self._task is not None:
            self._cancelled += 1  # again and again, should a handler keep it to itself
            self._task.cancel()
        self._next = self._loop.call_later(self._every_s, self._check)


def presented_key(metadata: Metadata) -> str | None:
    """Return the key that a call shows; None where it shows none, or more than one thing."""
    shown = [entry for name, entry in metadata if name == HEADER]
    if len(shown) == 1 and isinstance(shown[0], str) and shown[0].lower().startswith(SCHEME):
        return shown[0][len(SCHEME) :].strip()
    return None


def _refusal(why_not: _WhyNot, method: str) -> Handler:
    """Return a handler that refuses any call before a message is read, methods that do not exist
    included: all four kinds of calls are streams on the wire."""

    code, why = why_not

    async def refuse(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        log.warning("call refused", reason=why, method=method, peer=context.peer())
        await context.abort(code, why)

    return grpc.stream_stream_rpc_method_handler(refuse)


class BearerKey(grpc.AuthMetadataPlugin):
    """Adds the key to every call of a channel. gRPC lets this happen on secure channels only."""

    def __init__(self, key: Reloaded[str]) -> None:
        self._key = key

    def __call__(
        self, context: grpc.AuthMetadataContext, callback: grpc.AuthMetadataPluginCallback
    ) -> None:
        callback(((HEADER, f"Bearer {self._key.current()}"),), None)
