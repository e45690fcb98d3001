"""What a process asks of its callers, and what it shows to those that it calls.

Invariant: a service serves with TLS and keys, or was told `insecure` in so many words. Must not
import torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import grpc

from tandem.core.access_keys import KeyRing
from tandem.rpc.auth import KeyGuard, ShowKey, known_keys, own_key
from tandem.rpc.reloaded import BadFile, Reloaded
from tandem.rpc.tls import TlsFiles, TlsIdentity
from tandem.settings import ServiceSettings, SettingsError, variable_of

Loaded = TypeVar("Loaded")

_TLS_FIELDS = ("tls_certificate", "tls_key", "tls_ca")


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """What callers must have. Without an identity the port is plain, without keys open. Reflection
    asks for what any method asks for."""

    identity: TlsIdentity | None = None
    keys: Reloaded[KeyRing] | None = None
    reflection: bool = False

    def interceptors(self) -> list[grpc.aio.ServerInterceptor]:
        return [] if self.keys is None else [KeyGuard(self.keys)]


@dataclass(slots=True)
class ClientAccess:
    """What this process shows. Without an identity it calls over plain connections."""

    identity: TlsIdentity | None = None
    key: Reloaded[str] | None = None
    _made: tuple[grpc.ChannelCredentials, grpc.ChannelCredentials] | None = field(
        default=None, repr=False
    )

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """The same object until the certificate changes; None for a plain connection. A changed
        key needs no new channel."""
        if self.identity is None:
            return None
        own = self.identity.channel_credentials()
        if self.key is None:
            return own
        if self._made is None or self._made[0] is not own:
            showing = grpc.metadata_call_credentials(ShowKey(self.key))
            self._made = (own, grpc.composite_channel_credentials(own, showing))
        return self._made[1]


def server_access(settings: ServiceSettings) -> ServerAccess:
    """Raises SettingsError, which names the variable, for files that cannot be used, and for a
    service that would be open without having been told so."""
    identity = _identity(settings, "keys_file")
    path = settings.keys_file
    keys = None if path is None else _loaded("keys_file", lambda: known_keys(path))
    return ServerAccess(identity, keys, settings.reflection)


def client_access(settings: ServiceSettings) -> ClientAccess:
    """Of a service that calls others. Raises SettingsError as `server_access` does."""
    identity = _identity(settings, "call_key_file")
    path = settings.call_key_file
    return ClientAccess(
        identity, None if path is None else _loaded("call_key_file", lambda: own_key(path))
    )


def _identity(settings: ServiceSettings, key_field: str) -> TlsIdentity | None:
    """TLS with its three files, and a file of keys beside it; or neither, where that was asked
    for."""
    wanted = (*_TLS_FIELDS, key_field)
    missing = [field for field in wanted if getattr(settings, field) is None]
    no_tls = all(field in missing for field in _TLS_FIELDS)
    if missing and not (settings.insecure and (missing == [key_field] or missing == [*wanted])):
        raise SettingsError(_complaint(missing, settings.insecure))
    if no_tls:
        return None
    certificate, key, ca = (getattr(settings, field) for field in _TLS_FIELDS)
    return _loaded("tls_certificate", lambda: TlsIdentity(TlsFiles(certificate, key, ca)))


def _complaint(missing: list[str], insecure: bool) -> str:
    first, *others = map(variable_of, missing)
    also = f", with {', '.join(others)}" if others else ""
    if insecure:
        return f"{first}: must be set{also}, or no file of TLS and keys at all"
    without = f"{variable_of('insecure')}=true goes without, on a network that is trusted"
    return f"{first}: must be set{also} ('tandem certs' makes them); {without}"


def _loaded(field: str, load: Callable[[], Loaded]) -> Loaded:
    try:
        return load()
    except BadFile as error:
        raise SettingsError(f"{variable_of(field)}: {error}") from error
