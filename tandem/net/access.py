"""The credentials that a process demands of its callers and shows to the services it calls.
Invariant: a service has TLS and keys, unless it is explicitly `insecure`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import grpc

from tandem.net.auth import RECHECK_S, BearerKey, KeyGuard, known_keys, own_key
from tandem.net.keys_file import KeysFile
from tandem.net.reloaded import BadFile, Reloaded
from tandem.net.tls import PinnedService, TlsFiles, TlsIdentity
from tandem.settings import ServiceSettings, SettingsError, variable_of

Loaded = TypeVar("Loaded")

_TLS_FIELDS = ("tls_certificate", "tls_key", "tls_ca")


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """Requirements for callers. Without an identity the port is plain, without keys open."""

    identity: TlsIdentity | None = None
    keys: KeysFile | None = None
    reflection: bool = False
    recheck_s: float = RECHECK_S

    def interceptors(self) -> list[grpc.aio.ServerInterceptor]:
        return [] if self.keys is None else [KeyGuard(self.keys, self.recheck_s)]

    @property
    def fault(self) -> str:
        """The reason why no caller is accepted; empty if there is none."""
        state = None if self.keys is None else self.keys.state()
        return state.warning if state is not None and state.closed else ""


@dataclass(slots=True)
class ClientAccess:
    """Credentials of this process as a caller. Without an identity it calls over plain connections.
    The cloud is shown `cloud_key`, if there is one: a key that it sees must not open this side's
    services. `cloud`: the one certificate that the cloud is known by."""

    identity: TlsIdentity | PinnedService | None = None
    key: Reloaded[str] | None = None
    cloud_key: Reloaded[str] | None = None
    cloud: PinnedService | None = None
    _made: tuple[grpc.ChannelCredentials, grpc.ChannelCredentials] | None = field(
        default=None, repr=False
    )

    def to_cloud(self) -> "ClientAccess":
        """Return the credentials for the other side."""
        if self.cloud_key is None:
            return self
        return ClientAccess(self.cloud or self.identity, self.cloud_key)

    @property
    def called(self) -> str:
        """The name in the certificates of others; empty where it is that of their address."""
        return "" if self.identity is None else self.identity.called

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """Return the same object until the certificate, not the key, changes; None: plain
        connection."""
        if self.identity is None:
            return None
        identity = self.identity.channel_credentials()
        if self.key is None:
            return identity
        if self._made is None or self._made[0] is not identity:
            showing = grpc.metadata_call_credentials(BearerKey(self.key))
            self._made = (identity, grpc.composite_channel_credentials(identity, showing))
        return self._made[1]


def server_access(settings: ServiceSettings) -> ServerAccess:
    """Load what a server needs to know its callers. Raises SettingsError, which names the variable,
    for files that cannot be used, and for a service that would be open without `insecure`."""
    identity = _identity(settings, "keys_file")
    path = settings.keys_file
    keys = None if path is None else loaded("keys_file", lambda: known_keys(path))
    return ServerAccess(identity, keys, settings.reflection)


def client_access(settings: ServiceSettings) -> ClientAccess:
    """Return the access of a service that calls others. Raises SettingsError as `server_access`
    does."""
    identity = _identity(settings, "call_key_file")
    path = settings.call_key_file
    key = None if path is None else loaded("call_key_file", lambda: own_key(path))
    other = settings.cloud_key_file
    cloud_key = None if other is None else loaded("cloud_key_file", lambda: own_key(other))
    pinned = settings.cloud_certificate
    if pinned is None:
        return ClientAccess(identity, key, cloud_key)
    if cloud_key is None:
        raise SettingsError(f"{variable_of('cloud_key_file')}: must be set with cloud_certificate")
    cloud = loaded("cloud_certificate", lambda: PinnedService(pinned))
    return ClientAccess(identity, key, cloud_key, cloud)


def _identity(settings: ServiceSettings, key_field: str) -> TlsIdentity | None:
    """Return the TLS identity that the three TLS files make, or None without TLS. These files and
    the one of `key_field` are required; with `insecure` the latter may be left out, or all four.
    Raises SettingsError."""
    keyed = key_field == "keys_file" and not settings.client_certificates
    required = [*(_TLS_FIELDS[:2] if keyed else _TLS_FIELDS), key_field]
    missing = [field for field in required if getattr(settings, field) is None]
    if missing and not (settings.insecure and missing in ([key_field], required)):
        raise SettingsError(_complaint(missing, settings.insecure))
    if missing == required:
        return None
    certificate, key, ca = (getattr(settings, field) for field in _TLS_FIELDS)
    ca = None if keyed else ca
    return loaded("tls_certificate", lambda: TlsIdentity(TlsFiles(certificate, key, ca)))


def _complaint(missing: list[str], insecure: bool) -> str:
    first, *others = map(variable_of, missing)
    also = f", with {', '.join(others)}" if others else ""
    if insecure:
        return f"{first}: must be set{also}, or none of the TLS and key files"
    without = f"--insecure ({variable_of('insecure')}=true) does without them, on a trusted network"
    return f"{first}: must be set{also} ('tandem certs' creates them); {without}"


def loaded(field: str, load: Callable[[], Loaded]) -> Loaded:
    """Return the result of `load` for the files of a setting. Raises SettingsError naming it."""
    try:
        return load()
    except BadFile as error:
        raise SettingsError(f"{variable_of(field)}: {error}") from error
