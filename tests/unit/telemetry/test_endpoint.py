"""The metrics endpoint over real HTTP on localhost."""

from __future__ import annotations

import socket
import threading
import urllib.request

import pytest
from prometheus_client import CollectorRegistry

from tandem.telemetry.endpoint import serve_metrics
from tandem.telemetry.metrics import Metrics


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def test_serves_what_the_registry_holds() -> None:
    registry = CollectorRegistry()
    series = Metrics(registry, side="cloud").engine("m")
    with serve_metrics(registry, "127.0.0.1", 0) as server:
        series.sessions_open.set(3)
        line = 'tandem_sessions_open{model_name="m",side="cloud"} 3.0'
        assert line in scrape(server.port).splitlines()


def test_closing_frees_the_port_and_ends_the_thread() -> None:
    before = threading.active_count()
    server = serve_metrics(CollectorRegistry(), "127.0.0.1", 0)
    scrape(server.port)
    server.close()
    server.close()
    assert threading.active_count() <= before
    with serve_metrics(CollectorRegistry(), "127.0.0.1", server.port) as again:
        assert again.port == server.port


def test_a_taken_port_is_an_error() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        with pytest.raises(OSError, match="in use"):
            serve_metrics(CollectorRegistry(), "127.0.0.1", holder.getsockname()[1])
