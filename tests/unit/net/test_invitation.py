"""The line that lets a second machine in, and what may answer in the verifier's place."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from tandem.commands.authority import self_signed
from tandem.core.errors import InvalidArgument, TandemError
from tandem.net.endpoint import Endpoint
from tandem.net.invitation import Invitation, fetch_certificate, parse_invitation, sha256_of
from tandem.net.tls import PINNED_NAME
from tests.services.secured_services import EDGE_KEY, VALID

HASH = "0f" * 32


def test_a_line_says_what_was_put_into_it() -> None:
    invitation = Invitation(Endpoint("gpu.example.com", 50051), HASH, EDGE_KEY)
    assert str(invitation) == f"gpu.example.com:50051#sha256:{HASH}:{EDGE_KEY}"
    assert parse_invitation(f" {invitation}\n") == invitation
    sixth = Invitation(Endpoint("fd00::1", 1), HASH, EDGE_KEY)
    assert parse_invitation(str(sixth)) == sixth
    assert EDGE_KEY not in repr(invitation)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "gpu:50051",
        f"gpu:50051#sha256:{HASH}:",
        f"gpu:50051#sha256:{HASH[2:]}:{EDGE_KEY}",
        f"gpu:50051#md5:{HASH}:{EDGE_KEY}",
        f"gpu#sha256:{HASH}:{EDGE_KEY}",
        f"gpu:50051#sha256:{HASH}:short",
    ],
)
def test_what_is_no_line_is_refused_without_showing_its_key(line: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_invitation(line)
    assert refused.value.field == "line"
    assert EDGE_KEY not in str(refused.value)


class Listener:
    """Serves TLS with a certificate, and keeps what it is sent."""

    def __init__(self, folder: Path) -> None:
        made = self_signed("verifier", [PINNED_NAME], VALID)
        self.pem = made.certificate.decode()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        pair = folder / "pair.pem"
        pair.write_bytes(made.certificate + made.key)
        self._context.load_cert_chain(pair)
        self.sent = b""

    @contextmanager
    def serving(self) -> Iterator[Endpoint]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            thread = Thread(target=self._answer, args=(server,))
            thread.start()
            yield Endpoint("127.0.0.1", server.getsockname()[1])
            thread.join()

    def _answer(self, server: socket.socket) -> None:
        plain, _ = server.accept()
        with plain, self._context.wrap_socket(plain, server_side=True) as secured:
            secured.settimeout(10.0)
            while received := secured.recv(4096):
                self.sent += received


def test_the_certificate_that_the_line_names_is_fetched(tmp_path: Path) -> None:
    verifier = Listener(tmp_path)
    with verifier.serving() as endpoint:
        line = Invitation(endpoint, sha256_of(verifier.pem), EDGE_KEY)
        assert sha256_of(fetch_certificate(line)) == line.sha256


def test_who_shows_another_certificate_is_refused_and_sent_nothing(tmp_path: Path) -> None:
    (tmp_path / "between").mkdir()
    verifier, between = Listener(tmp_path), Listener(tmp_path / "between")
    with between.serving() as endpoint:
        line = Invitation(endpoint, sha256_of(verifier.pem), EDGE_KEY)
        with pytest.raises(TandemError, match="shows another certificate than the line names"):
            fetch_certificate(line)
    assert between.sent == b""
