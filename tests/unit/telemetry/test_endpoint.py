"""The metrics endpoint over real HTTP on localhost."""

from __future__ import annotations

import http.client
import socket
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import closing, suppress

import pytest
from prometheus_client import CollectorRegistry

from tandem.telemetry.endpoint import MAX_CALLERS, serve_metrics
from tandem.telemetry.metrics import Metrics, new_registry


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


def ask(port: int, **headers: str) -> tuple[int, str]:
    asking = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with closing(asking):
        asking.putrequest("GET", "/metrics", skip_host="Host" in headers)
        for name, value in headers.items():
            asking.putheader(name, value)
        asking.endheaders()
        answer = asking.getresponse()
        return answer.status, answer.read().decode()


def test_a_web_page_that_made_its_own_name_point_here_reads_nothing() -> None:
    """DNS rebinding: to the browser the page and this port are one site. Metrics name tenants."""
    with serve_metrics(new_registry(), "127.0.0.1", 0) as server:
        here = f"127.0.0.1:{server.port}"
        for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1.evil.example", "["):
            status, said = ask(server.port, Host=host)
            assert status == 421, host
            assert said.startswith("Ask this port by localhost, an IP address or the name of this")
        for origin in ("http://evil.example", "null", f"http://{here}"):
            status, said = ask(server.port, Host=here, Origin=origin)
            assert (status, said) == (403, "Web pages may not ask this port.\n"), origin
        for host in (here, "localhost:1", "a.localhost", "[::1]:9100", socket.gethostname()):
            assert ask(server.port, Host=host)[0] == 200, host


def test_silent_callers_take_few_threads_and_shut_no_scraper_out() -> None:
    before = threading.active_count()
    with serve_metrics(CollectorRegistry(), "127.0.0.1", 0) as server:
        silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
        assert scrape(server.port) is not None
        assert wait_for(lambda: threading.active_count() <= before + MAX_CALLERS + 1)
        for caller in silent[:-MAX_CALLERS]:
            with suppress(ConnectionError):
                assert caller.recv(1) == b""
        for caller in silent:
            caller.close()


def test_a_caller_who_is_too_slow_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.telemetry.endpoint.CALLER_S", 0.1)
    with serve_metrics(CollectorRegistry(), "127.0.0.1", 0) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as slow:
            slow.sendall(b"GET /metrics HTTP/1.1\r\nHost: ")
            slow.settimeout(10)
            with suppress(ConnectionError):
                while slow.recv(2**12):
                    pass
        assert scrape(server.port) is not None


def wait_for(condition: Callable[[], bool]) -> bool:
    ends_s = time.monotonic() + 10
    while not condition() and time.monotonic() < ends_s:
        time.sleep(0.01)
    return condition()
