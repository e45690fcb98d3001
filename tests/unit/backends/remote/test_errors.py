"""What a server says of a fault reaches callers: without the key, and without its address."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tandem.backends.interface import EngineFailed
from tandem.backends.remote.server import RemoteServer
from tests.services.secured_services import Credentials

KEY = "sk-a-secret-of-the-operator"


class Repeating(BaseHTTPRequestHandler):
    """Repeats the key that it refuses, as some proxies of models do."""

    def do_POST(self) -> None:
        told = f'{{"error": {{"message": "no such key: {self.headers["Authorization"]}"}}}}'
        self.send_response(int(self.path[1:]))
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told.encode())


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Repeating) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def error_of(url: str, path: str, certificates: str | None = None) -> str:
    server = RemoteServer(url, key=KEY, certificates=certificates)
    try:
        with pytest.raises(EngineFailed) as failed:
            server.run(server.post(path, {})).result()
    finally:
        server.close()
    return str(failed.value)


@pytest.mark.parametrize("status", [400, 401, 403, 500])
def test_a_key_that_a_server_repeats_is_not_shown(status: int) -> None:
    with serving() as port:
        told = error_of(f"http://127.0.0.1:{port}", f"/{status}")
    assert "no such key: Bearer …" in told
    assert KEY not in told


def test_a_certificate_of_another_host_names_no_host(tmp_path: Path) -> None:
    credentials = Credentials(tmp_path)
    files = credentials.issue("vllm", hosts=["another.example.com"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    with serving(context) as port:
        told = error_of(f"https://localhost:{port}", "/200", str(files.authorities))
    assert "certificate is not valid for '…'" in told
