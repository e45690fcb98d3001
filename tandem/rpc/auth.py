"""Bearer keys on calls: `authorization: Bearer KEY` in the metadata.

Invariants: on a guarded server no method but health runs for a call without a known key, whatever
services it has; a key is only ever sent over TLS, and never logged. Must not import torch.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from tandem.core.access_keys import KeyRing, check_key, parse_keys
from tandem.core.errors import InvalidArgument
from tandem.rpc.reloaded import BadFile, Reloaded, read_file
from tandem.telemetry.logging import get_logger, name_in_log

log = get_logger(__name__)

HEADER = "authorization"
SCHEME = "bearer "
OPEN_SERVICE = "/grpc.health.v1.Health/"
"""Probes have no keys; it tells nothing but whether the service serves."""

_MISSING = "a key is needed: metadata 'authorization: Bearer KEY'"
_UNKNOWN = "the key is not one of those known here"

if TYPE_CHECKING:  # generic for type checkers only
    Handler = grpc.RpcMethodHandler[Any, Any] | None

Metadata = Iterable[tuple[str, str | bytes]]


def known_keys(path: Path) -> Reloaded[KeyRing]:
    """The hashed keys in the file at `path`; a change is used by the next call. Raises BadFile."""

    def read() -> KeyRing:
        try:
            return parse_keys(read_file(path).decode())
        except (InvalidArgument, UnicodeDecodeError) as error:
            why = error.why if isinstance(error, InvalidArgument) else "must be text"
            raise BadFile(path, why) from None

    return Reloaded((path,), read)


def own_key(path: Path) -> Reloaded[str]:
    """The one key in the file at `path`, which this process shows. Raises BadFile."""

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
    """Lets calls with a known key through, and health."""

    def __init__(self, keys: Reloaded[KeyRing]) -> None:
        self._keys = keys

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        method = handler_call_details.method
        if method.startswith(OPEN_SERVICE):
            return await continuation(handler_call_details)
        key = shown_key(handler_call_details.invocation_metadata or ())
        holder = None if key is None else self._keys.current().holder(key)
        if holder is not None:
            name_in_log(caller=holder)  # grpc.aio runs the handler in this task
            return await continuation(handler_call_details)
        return _refusal(_MISSING if key is None else _UNKNOWN, method)


def shown_key(metadata: Metadata) -> str | None:
    """The key that a call shows; None where it shows none, or more than one thing."""
    shown = [entry for name, entry in metadata if name == HEADER]
    if len(shown) != 1 or not isinstance(shown[0], str):
        return None
    if not shown[0].lower().startswith(SCHEME):
        return None
    return shown[0][len(SCHEME) :].strip()


def _refusal(why: str, method: str) -> Handler:
    """On the wire all four kinds of calls are streams of messages, so this refuses any of them,
    methods that do not exist included, before a message is read."""

    async def refuse(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        log.warning("call refused", reason=why, method=method, peer=context.peer())
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, why)

    return grpc.stream_stream_rpc_method_handler(refuse)


class ShowKey(grpc.AuthMetadataPlugin):
    """Adds the key to every call of a channel. gRPC lets this happen on secure channels only."""

    def __init__(self, key: Reloaded[str]) -> None:
        self._key = key

    def __call__(
        self, context: grpc.AuthMetadataContext, callback: grpc.AuthMetadataPluginCallback
    ) -> None:
        callback(((HEADER, f"Bearer {self._key.current()}"),), None)
