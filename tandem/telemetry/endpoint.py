"""`/metrics` over HTTP, on a thread of its own with an end. Invariants: nothing is served after
`close`, and the port is free again when it returns; whoever connects costs at most one of
`MAX_CALLERS` threads, for at most `CALLER_S`."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

MAX_CALLERS = 16
CALLER_S = 10.0
"""From connecting to the last byte of the answer: a scrape takes milliseconds."""


def serve_metrics(registry: CollectorRegistry, host: str, port: int) -> MetricsServer:
    """Serve `registry` on `host`; port 0 takes a free one (see `.port`). OSError if it is taken."""
    return MetricsServer(registry, host, port)


class MetricsServer:
    """A running endpoint; close it, or use it as a context manager."""

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        self._server = _Server(host, port)
        self._server.set_app(make_wsgi_app(registry))
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
        self._came_s: dict[socket.socket, float] = {}
        self._changing = threading.Lock()
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind without asking the name server for this machine's name, as the base class does."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.socket.getsockname()[:2]
        self.setup_environ()

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


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: scrapes never stop coming."""
