"""Mutual TLS: this process's certificate, its key, and the authority that everybody is checked by.
Invariants: both ends of a connection show a certificate of the same authority, except where a
service asks its callers for a key alone, and they know its one certificate; files that changed are
used by the next connection, and connections that stand are left alone."""

import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from tandem.net.certificates import expiry_s, load_pair
from tandem.net.reloaded import BadFile, Reloaded, read_file

PINNED_NAME = "joined.tandem.invalid"
"""What a certificate that callers know as such is called in it: its address may be any."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: certificate with what leads to its authority, private key, trusted authorities.
    None: callers are asked for no certificate."""

    certificate: Path
    key: Path
    authorities: Path | None


@dataclass(frozen=True, slots=True)
class _Pem:
    certificate: bytes
    key: bytes = field(repr=False)
    authorities: bytes | None


class TlsIdentity:
    """Identity of this process, as server and as caller. Raises BadFile for files that do not
    fit."""

    called = ""
    """The name in the certificates of others, where it is not that of their address."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        named = (files.certificate, files.key, files.authorities)
        paths = tuple(path for path in named if path is not None)
        self._pem = Reloaded(paths, lambda: _read(files))
        self._caller: tuple[_Pem, grpc.ChannelCredentials] | None = None
        self._expiry: tuple[_Pem, float] | None = None

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return credentials that use the files' current content at each handshake and, with
        authorities, require a certificate from callers."""
        given = self._pem.current()

        def changed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal given
            pem = self._pem.current()
            if pem is given:
                return None
            given = pem
            return _configuration(pem)

        # None stands for no change, which the published type does not know.
        fetch: Any = changed
        return grpc.dynamic_ssl_server_credentials(
            _configuration(given), fetch, self._files.authorities is not None
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Return the same object until the files change; a channel keeps what it was opened
        with."""
        pem = self._pem.current()
        if self._caller is None or self._caller[0] is not pem:
            credentials = grpc.ssl_channel_credentials(pem.authorities, pem.key, pem.certificate)
            self._caller = (pem, credentials)
        return self._caller[1]

    def valid_for_s(self) -> float:
        """Return how long the certificate is still valid; 0 for one that is not."""
        pem = self._pem.current()
        if self._expiry is None or self._expiry[0] is not pem or not self._expiry[1]:
            try:
                self._expiry = (pem, expiry_s(self._files.certificate, self._files.key))
            except OSError:  # files being replaced; ssl's errors are among these
                return 0.0 if self._expiry is None else self._left_s(self._expiry[1])
        return self._left_s(self._expiry[1])

    def _left_s(self, expiry_s: float) -> float:
        return max(0.0, expiry_s - time.time())


class PinnedService:
    """What a caller knows of a service that it calls by one certificate, and shows a key alone.
    Raises BadFile."""

    called = PINNED_NAME

    def __init__(self, certificate: Path) -> None:
        self._pem = Reloaded((certificate,), lambda: _read_authorities(certificate))
        self._caller: tuple[bytes, grpc.ChannelCredentials] | None = None

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Return the same object until the file changes."""
        pem = self._pem.current()
        if self._caller is None or self._caller[0] is not pem:
            self._caller = (pem, grpc.ssl_channel_credentials(pem))
        return self._caller[1]


def _configuration(pem: _Pem) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.certificate)], pem.authorities)


def _read(files: TlsFiles) -> _Pem:
    """Read the files and check them. gRPC would accept anything and then fail at every handshake,
    without saying why."""
    authorities = None if files.authorities is None else _read_authorities(files.authorities)
    pem = _Pem(read_file(files.certificate), read_file(files.key), authorities)
    load_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), files.certificate, files.key)
    return pem


def _read_authorities(path: Path) -> bytes:
    pem = read_file(path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise BadFile(path, "must be PEM certificates of authorities") from error
    return pem
