"""The health probe that containers run: its words and exit codes before real health servers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from tandem.net.probe import PORT_VARIABLE, main

Status = health_pb2.HealthCheckResponse


@contextmanager
def server_that_is(status: int) -> Iterator[str]:
    """Its port."""
    servicer = health.HealthServicer()
    servicer.set("", status)
    server = grpc.server(ThreadPoolExecutor(max_workers=1))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield str(port)
    finally:
        server.stop(grace=0).wait()


def test_serving_is_exit_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    with server_that_is(Status.SERVING) as port:
        assert main((), {PORT_VARIABLE: port}) == 0
        assert main((f"127.0.0.1:{port}",), {PORT_VARIABLE: "1"}) == 0
    assert capsys.readouterr().out == f"127.0.0.1:{port} SERVING\n" * 2


def test_nobody_there_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    assert main((address,), {}) == 1
    assert capsys.readouterr().out == f"{address} UNAVAILABLE\n"
