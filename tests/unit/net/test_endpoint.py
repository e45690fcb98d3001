"""Addresses as people write them, and the way from an aggregator's HTTP port to that of gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from tandem.net.endpoint import Endpoint, of_grpc, parse_endpoint


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("127.0.0.1:8000", Endpoint("127.0.0.1", 8000)),
        ("http://127.0.0.1:8000", Endpoint("127.0.0.1", 8000, "http")),
        ("HTTP://127.0.0.1:8000/v1/", Endpoint("127.0.0.1", 8000, "http")),
        ("https://edge.example.com", Endpoint("edge.example.com", 443, "https")),
        ("[::1]:50050", Endpoint("::1", 50050)),
        ("http://[::1]:8000", Endpoint("::1", 8000, "http")),
    ],
)
def test_both_ways_to_write_an_address(text: str, endpoint: Endpoint) -> None:
    assert parse_endpoint(text) == endpoint


@pytest.mark.parametrize(
    "text",
    ["", "nowhere", ":8000", "::1:8000", "host:port", "host:65536", "ftp://host:1", "http://:1"],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="is neither HOST:PORT nor a URL"):
        parse_endpoint(text)


@contextmanager
def _answering(body: bytes) -> Iterator[Endpoint]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/healthz"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield Endpoint("127.0.0.1", server.server_port, "http")
    finally:
        server.shutdown()
        server.server_close()


def test_the_port_of_http_names_that_of_grpc() -> None:
    with _answering(b'{"status": "ok", "grpc_port": 50050}') as http:
        assert of_grpc(http) == Endpoint("127.0.0.1", 50050)
