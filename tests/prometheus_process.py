"""A real Prometheus with this repository's rules, and a server that speaks recorded answers."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.programs import REPOSITORY, where

RULES_FILE = REPOSITORY / "deploy" / "prometheus" / "rules" / "tandem.recording.yml"
Answer = Callable[[str, str], tuple[int, bytes]]
"""From what is asked, "query" or "rules", and the query to status and content."""


@asynccontextmanager
async def prometheus(
    folder: Path, ports: Sequence[int], *, rules: bool = True
) -> AsyncIterator[str]:
    """The address of a server that scrapes these ports, ten times a second."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    often = {f"{each}_interval": "100ms" for each in ("scrape", "evaluation")}
    job = {
        "job_name": "tandem",
        "relabel_configs": [{"target_label": "suite", "replacement": "tandem"}],
        "static_configs": [{"targets": [f"127.0.0.1:{each}" for each in ports]}],
    }
    settings: dict[str, Any] = {
        "global": often | {"scrape_timeout": "100ms"},
        "scrape_configs": [job],
    }
    if rules:
        settings |= {"rule_files": [str(RULES_FILE)]}
    (folder / "prometheus.yml").write_text(json.dumps(settings))
    process = await asyncio.create_subprocess_exec(
        where("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{port}",
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


def vector(*rows: tuple[str, dict[str, str], str]) -> bytes:
    """As recorded from a Prometheus 2.42, but for names, labels and numbers."""
    result = [
        {"metric": labels | {"__name__": rule}, "value": [1795269431.5, number]}
        for rule, labels, number in rows
    ]
    data = {"resultType": "vector", "result": result}
    return json.dumps({"status": "success", "data": data}).encode()


def listed(*names: str) -> bytes:
    """The answer about rules, likewise."""
    group = {"name": "tandem-measured", "rules": [{"name": name} for name in names]}
    return json.dumps({"status": "success", "data": {"groups": [group]}}).encode()


@contextmanager
def served(answer: Answer) -> Iterator[str]:
    """The address of a server that answers like this."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # http.server's name
            url = urlsplit(self.path)
            query = parse_qs(url.query).get("query", [""])[0]
            status, content = answer(url.path.removeprefix("/api/v1/"), query)
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
