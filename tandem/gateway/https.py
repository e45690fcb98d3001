"""The certificate that HTTP callers are shown.

Who calls is told by the key, so callers need no certificate. Invariant: each handshake takes the
files as they are then, and files that cannot be used change nothing; connections that stand are
left alone. Must not import grpc or torch.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from tandem.rpc.certificate_pair import load_pair
from tandem.rpc.reloaded import Reloaded, read_file


class HttpsCertificate:
    """PEM files: certificate with what leads to its authority, private key. Raises BadFile."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._context = Reloaded((certificate, key), lambda: _context(certificate, key))

    def listening(self) -> ssl.SSLContext:
        """For a port that listens."""
        context = self._context.current()
        context.sni_callback = self._take_current
        return context

    def _take_current(
        self, connection: ssl.SSLObject, name: str | None, listening: ssl.SSLContext
    ) -> None:
        """At each handshake, whether or not the caller names a host."""
        connection.context = self._context.current()


def _context(certificate: Path, key: Path) -> ssl.SSLContext:
    for path in (certificate, key):
        read_file(path)  # which says of the two what is not there
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_pair(context, certificate, key)
    return context
