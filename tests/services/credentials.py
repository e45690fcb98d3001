"""A folder of certificates and keys as an operator has it, good ones and bad ones."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tandem.commands.authority import Issued, Validity, issue, new_authority
from tandem.net.access import ClientAccess, ServerAccess
from tandem.net.access_keys import KEY_BYTES, key_line, new_key
from tandem.net.auth import known_keys, own_key
from tandem.net.scopes import Scope
from tandem.net.tls import TlsFiles, TlsIdentity

NOW = datetime.now(UTC)
VALID = Validity(NOW - timedelta(hours=1), NOW + timedelta(days=1))
EXPIRED = Validity(NOW - timedelta(days=2), NOW - timedelta(days=1))
LOOPBACK = ("localhost", "127.0.0.1", "::1")
EDGE_KEY, OTHER_KEY, STRANGE_KEY = (new_key(bytes([byte]) * KEY_BYTES) for byte in (1, 2, 3))


class Credentials:
    """`files` of an identity by its name; `keys` is what the services accept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._changes = 0
        self.authority = new_authority("test", VALID)
        self.write("ca.crt", self.authority.certificate)
        self.keys = self.write("keys", key_line("edge", EDGE_KEY, frozenset(Scope)).encode())

    def write(self, name: str, content: bytes) -> Path:
        """As a tool that rotates does: whole, in one step."""
        path = self.folder / name
        new = self.folder / f".{name}.new"
        new.write_bytes(content)
        # Two changes within one tick of the file system's clock must look like two.
        self._changes += 1
        os.utime(new, ns=(self._changes, self._changes))
        new.replace(path)
        return path

    def issue(
        self,
        name: str,
        hosts: Sequence[str] = LOOPBACK,
        validity: Validity = VALID,
        authority: Issued | None = None,
    ) -> TlsFiles:
        """Files of a fresh certificate called `name`, in the place of an older one."""
        issued = issue(authority or self.authority, name, hosts, validity)
        return TlsFiles(
            self.write(f"{name}.crt", issued.certificate),
            self.write(f"{name}.key", issued.key),
            self.folder / "ca.crt",
        )

    def server(self, files: TlsFiles | None = None) -> ServerAccess:
        identity = TlsIdentity(files or self.issue("server"))
        return ServerAccess(identity, known_keys(self.keys), reflection=True)

    def client(self, files: TlsFiles | None = None, key: str | None = EDGE_KEY) -> ClientAccess:
        identity = TlsIdentity(files or self.issue("client"))
        if key is None:
            return ClientAccess(identity)
        return ClientAccess(identity, own_key(self.write(f"key-{key[-4:]}", key.encode())))
