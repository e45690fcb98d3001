"""A service that is known by one certificate, and asks its callers for a key alone."""

from __future__ import annotations

from pathlib import Path

from tandem.commands.authority import self_signed
from tandem.net.access import ClientAccess, ServerAccess
from tandem.net.auth import known_keys, own_key
from tandem.net.tls import PINNED_NAME, PinnedService, TlsFiles, TlsIdentity
from tests.services.secured_services import (
    EDGE_KEY,
    STRANGE_KEY,
    VALID,
    Credentials,
    ending,
    secured_services,
)

DESCRIBE = "/tandem_api.verifier.v1.VerifierService/Describe"


def made(credentials: Credentials, name: str) -> TlsFiles:
    issued = self_signed(name, [PINNED_NAME], VALID)
    return TlsFiles(
        credentials.write(f"{name}.crt", issued.certificate),
        credentials.write(f"{name}.key", issued.key),
        None,
    )


def knowing(certificate: Path, key: Path) -> ClientAccess:
    """Of a drafter, for its verifier."""
    own = ClientAccess(cloud=PinnedService(certificate), cloud_key=own_key(key))
    return own.to_cloud()


async def test_certificate_and_key_must_both_be_known(tmp_path: Path) -> None:
    credentials = Credentials(tmp_path)
    files, other = made(credentials, "verifier"), made(credentials, "between")
    key = credentials.write("key", EDGE_KEY.encode())
    wrong = credentials.write("wrong", STRANGE_KEY.encode())
    access = ServerAccess(TlsIdentity(files), known_keys(credentials.keys))
    async with secured_services(tmp_path, access) as services:
        target = services["verifier"].target
        status, _ = await ending(target, DESCRIBE, knowing(files.certificate, key))
        assert status == "OK"
        status, _ = await ending(target, DESCRIBE, knowing(files.certificate, wrong))
        assert status == "UNAUTHENTICATED"
        status, _ = await ending(target, DESCRIBE, ClientAccess(PinnedService(files.certificate)))
        assert status == "UNAUTHENTICATED", "no key"
        # Who is in between has a certificate of the same name.
        status, _ = await ending(target, DESCRIBE, knowing(other.certificate, key))
        assert status == "UNAVAILABLE"
        status, _ = await ending(target, DESCRIBE, None)
        assert status == "UNAVAILABLE", "no TLS"
        status, _ = await ending(target, DESCRIBE, credentials.client())
        assert status == "UNAVAILABLE", "an authority that did not sign it"


async def test_a_certificate_that_is_replaced_is_followed(tmp_path: Path) -> None:
    credentials = Credentials(tmp_path)
    files = made(credentials, "verifier")
    key = credentials.write("key", EDGE_KEY.encode())
    caller = knowing(files.certificate, key)
    access = ServerAccess(TlsIdentity(files), known_keys(credentials.keys))
    async with secured_services(tmp_path, access) as services:
        target = services["verifier"].target
        assert (await ending(target, DESCRIBE, caller))[0] == "OK"
        first = caller.channel_credentials()
        assert caller.channel_credentials() is first
        made(credentials, "verifier")
        assert (await ending(target, DESCRIBE, caller))[0] == "OK"
        assert caller.channel_credentials() is not first
