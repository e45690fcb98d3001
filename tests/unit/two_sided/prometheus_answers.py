"""A real HTTP server that speaks a Prometheus server's recorded answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tandem.two_sided.profiling.profile_sources import MEASURED
from tandem.two_sided.protocol.profiler import Reading

Answer = Callable[[str], tuple[int, bytes]]
FULL = Reading(0.11, 0.04, 0.05, 0.06, 0.7, 0.8)


def vector(device: str, cloud: str) -> bytes:
    """As recorded from a Prometheus 2.42, but for the numbers."""
    result = [
        {"metric": {"side": side}, "value": [1795269431.5, number]}
        for side, number in (("cloud", cloud), ("device", device))
    ]
    data = {"resultType": "vector", "result": result}
    return json.dumps({"status": "success", "data": data}).encode()


def healthy(query: str) -> tuple[int, bytes]:
    (field,) = (field for field, metric in MEASURED.items() if f"({metric}[" in query)
    return 200, vector(*(str(getattr(FULL, f"{side}_{field}")) for side in ("device", "cloud")))


@contextmanager
def served(answer: Answer) -> Iterator[str]:
    """The address of a server that answers queries like this."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # http.server's name
            url = urlsplit(self.path)
            assert url.path == "/api/v1/query"
            status, content = answer(parse_qs(url.query)["query"][0])
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
