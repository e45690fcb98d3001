"""`/metrics` over HTTP, on a thread of its own with an end. Invariants: nothing is served after
`close`, and the port is free again when it returns; whoever connects costs at most one of
`MAX_CALLERS` threads, for at most `CALLER_S`; on loopback no web page reads anything."""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIApplication

from prometheus_client import CollectorRegistry, make_wsgi_app

from tandem.core.host_names import ANY, names_here

MAX_CALLERS = 16
CALLER_S = 10.0
"""From connecting to the last byte of the answer: a scrape takes milliseconds."""

UNKNOWN_HOST = b"Ask this port by localhost, an IP address or the name of this machine.\n"
NO_PAGES = b"Web pages may not ask this port.\n"


def serve_metrics(registry: CollectorRegistry, host: str, port: int) -> MetricsServer:
    """Serve `registry` on `host`; port 0 takes a free one (see `.port`). OSError if it is taken."""
    return MetricsServer(registry, host, port)


class MetricsServer:
    """A running endpoint; close it, or use it as a context manager."""

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        self._server = _Server(host, port)
        self._server.set_app(_for_programs(make_wsgi_app(registry), self._server.names()))
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self._closing = threading.Lock()

    def close(self) -> None:
        """Stop serving, free the port, end the thread. Calling it again does nothing."""
        with self._closing:
            if self._thread.is_alive():
                self._server.shutdown()
                self._server.server_close()
                self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()


class _Server(ThreadingMixIn, WSGIServer):
    """Serves each caller, who asks once, on a thread of its own. Callers are cut off when they are
    too many or too slow, those who came first before the others: a scraper is long gone then."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._host = host
        self._came_s: dict[socket.socket, float] = {}
        self._changing = threading.Lock()
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind without asking the name server for this machine's name, as the base class does."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.socket.getsockname()[:2]
        self.setup_environ()

    def names(self) -> frozenset[str]:
        """Return the names of this machine to answer to. On an address that others can reach these
        are all: by which name they know it is not known here."""
        if ipaddress.ip_address(self.server_name).is_loopback:
            return frozenset({self._host.lower(), socket.gethostname().lower()})
        return frozenset({ANY})

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changing:
            while len(self._came_s) >= MAX_CALLERS:
                self._cut_off(next(iter(self._came_s)))
            self._came_s[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._changing:
            self._came_s.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Cut off the callers that have been here for too long; called by `serve_forever` twice a
        second."""
        before_s = time.monotonic() - CALLER_S
        with self._changing:
            for caller in [
                request for request, came_s in self._came_s.items() if came_s < before_s
            ]:
                self._cut_off(caller)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: a caller that went away is no fault of ours."""

    def _cut_off(self, caller: socket.socket) -> None:
        """Shut a caller's connection down; its thread wakes up, and closes it."""
        del self._came_s[caller]
        with suppress(OSError):
            caller.shutdown(socket.SHUT_RDWR)


def _for_programs(app: WSGIApplication, names: frozenset[str]) -> WSGIApplication:
    """Refuse what a web page asks. A scraper sends no Origin, and the name that it was given."""

    def answer(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        host = environ.get("HTTP_HOST")
        if host is not None and not names_here(host, names):
            return _refusal(start_response, "421 Misdirected Request", UNKNOWN_HOST)
        if "HTTP_ORIGIN" in environ:
            return _refusal(start_response, "403 Forbidden", NO_PAGES)
        return app(environ, start_response)

    return answer


def _refusal(start_response: StartResponse, status: str, why: bytes) -> Iterable[bytes]:
    start_response(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(why)))])
    return [why]


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: scrapes never stop coming."""
