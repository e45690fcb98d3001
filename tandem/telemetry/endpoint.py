"""`/metrics` over HTTP, on a thread of its own with an end.

Invariant: nothing is served after `close`, and the port is free again when it returns. Must not
import grpc or torch.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from prometheus_client import CollectorRegistry, start_http_server


def serve_metrics(registry: CollectorRegistry, host: str, port: int) -> MetricsServer:
    """Serve `registry` on `host`; port 0 takes a free one (see `.port`). OSError if it is taken."""
    return MetricsServer(registry, host, port)


class MetricsServer:
    """A running endpoint; close it, or use it as a context manager."""

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        self.port: int = self._server.server_port
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
