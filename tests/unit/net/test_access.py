"""What a service must be told before it serves, and what it is told that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from tandem.net.access import client_access, server_access
from tandem.net.access_keys import hash_key
from tandem.settings import ServiceSettings, SettingsError
from tests.services.scripted_suite import health_of
from tests.services.secured_services import EDGE_KEY, Credentials, ending, secured_services

HINT = "--insecure (TANDEM_INSECURE=true) does without"


@pytest.fixture
def credentials(tmp_path: Path) -> Credentials:
    return Credentials(tmp_path)


def told(credentials: Credentials, **changes: object) -> ServiceSettings:
    """Everything a secured service is told, but for the changes."""
    files = credentials.issue("own")
    fields: dict[str, object] = {
        "tls_certificate": files.certificate,
        "tls_key": files.key,
        "tls_ca": files.authorities,
        "keys_file": credentials.keys,
        "call_key_file": credentials.write("own.call-key", f"{EDGE_KEY}\n".encode()),
    }
    return ServiceSettings(**(fields | changes))  # type: ignore[arg-type]


def refusal(settings: ServiceSettings) -> str:
    with pytest.raises(SettingsError) as refused:
        server_access(settings)
    message = str(refused.value)
    assert "\n" not in message
    return message


def test_a_service_that_is_told_everything_is_secured(credentials: Credentials) -> None:
    settings = told(credentials)
    server, client = server_access(settings), client_access(settings)
    assert server.identity is not None
    assert server.keys is not None
    assert server.keys.current().holder(EDGE_KEY) == "edge"
    assert client.key is not None
    assert client.key.current() == EDGE_KEY
    assert client.channel_credentials() is client.channel_credentials()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_service_that_is_told_nothing_is_refused_unless_insecure(host: str) -> None:
    message = refusal(ServiceSettings(host=host))
    assert message.startswith("TANDEM_TLS_CERTIFICATE: must be set, with TANDEM_TLS_KEY, ")
    assert HINT in message
    with pytest.raises(SettingsError, match="TANDEM_CALL_KEY_FILE"):
        client_access(ServiceSettings(host=host))
    settings = ServiceSettings(host=host, insecure=True)
    assert server_access(settings).identity is None
    assert server_access(settings).keys is None
    assert client_access(settings).channel_credentials() is None


@pytest.mark.parametrize("missing", ["tls_certificate", "tls_key", "tls_ca", "keys_file"])
def test_half_of_it_is_refused_and_the_missing_half_named(
    credentials: Credentials, missing: str
) -> None:
    message = refusal(told(credentials, **{missing: None}))
    assert message.startswith(f"TANDEM_{missing.upper()}: must be set")
    if missing != "keys_file":
        assert refusal(told(credentials, insecure=True, **{missing: None}))


def test_insecure_allows_tls_without_keys_but_no_keys_without_tls(
    credentials: Credentials,
) -> None:
    """A key must not travel over a plain connection."""
    access = server_access(told(credentials, insecure=True, keys_file=None))
    assert access.identity is not None
    assert access.keys is None
    files = dict.fromkeys(("tls_certificate", "tls_key", "tls_ca"))
    message = refusal(told(credentials, insecure=True, **files))
    assert message.startswith("TANDEM_TLS_CERTIFICATE: must be set")


def test_files_that_cannot_be_used_are_named(credentials: Credentials) -> None:
    nowhere = credentials.folder / "nowhere"
    other = credentials.issue("other")
    nonsense = credentials.write("nonsense", b"nonsense")
    clear = credentials.write("clear", f"edge {EDGE_KEY}\n".encode())
    cases: list[tuple[dict[str, object], str]] = [
        ({"tls_certificate": nowhere}, f"{nowhere}: cannot be read"),
        ({"tls_key": nowhere}, f"{nowhere}: cannot be read"),
        ({"tls_ca": nowhere}, f"{nowhere}: cannot be read"),
        ({"tls_key": other.key}, f"{other.key}: is not the private key of"),
        ({"tls_key": nonsense}, "must be PEM"),
        ({"tls_certificate": nonsense}, "must be PEM"),
        ({"tls_ca": nonsense}, f"{nonsense}: must be PEM certificates of authorities"),
        ({"keys_file": nowhere}, f"{nowhere}: cannot be read"),
        ({"keys_file": clear}, f"{clear}: line 1 must be HOLDER sha256:HEX scopes="),
    ]
    for changes, words in cases:
        message = refusal(told(credentials, **changes))
        assert message.startswith("TANDEM_")
        assert words in message
        assert EDGE_KEY not in message
    for content in (b"", b"short", f"{EDGE_KEY} {EDGE_KEY}".encode(), b"\xff" * 40):
        path = credentials.write("call", content)
        with pytest.raises(SettingsError, match=r"CALL_KEY_FILE.*must hold one key"):
            client_access(told(credentials, call_key_file=path))
    hashed = credentials.write("call", hash_key(EDGE_KEY).encode())
    with pytest.raises(SettingsError, match="is a hash, not a key"):
        client_access(told(credentials, call_key_file=hashed))


def test_an_encrypted_key_is_refused_and_not_asked_for(credentials: Credentials) -> None:
    files = credentials.issue("own")
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    sealed = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    path = credentials.write("sealed.key", sealed)
    message = refusal(told(credentials, tls_certificate=files.certificate, tls_key=path))
    assert "without a password" in message


async def test_the_health_port_is_plain_and_serves_nothing_else(
    credentials: Credentials, tmp_path: Path
) -> None:
    async with secured_services(tmp_path, credentials.server(), health_port=0) as services:
        for running in services.values():
            assert await health_of(running.health_target) == "SERVING"
            route = f"/{running.service.full_name}/Describe"
            assert (await ending(running.health_target, route, None))[0] == "UNIMPLEMENTED"
        probed = services["retriever"].health_target
        assert await health_of(services["retriever"].target) == "UNAVAILABLE"
    assert await health_of(probed) == "UNAVAILABLE"
