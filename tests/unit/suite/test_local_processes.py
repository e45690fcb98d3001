"""What child processes are given; that they run is for tests/process."""

from __future__ import annotations

import asyncio
import socket
import sys

import grpc
import pytest

from tandem.suite.local_processes import HOST, cancelled_after, child_environment, reserved_ports


def test_a_child_gets_its_own_settings_and_not_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_MAX_DRAFT_LENGTH", "8")
    monkeypatch.setenv("TANDEM_MAX_RUNNING", "2")
    monkeypatch.setenv("TANDEM_LOG_LEVEL", "debug")
    monkeypatch.setenv("TANDEM_MISSPELT", "1")
    verifier = child_environment("verifier")
    assert verifier["TANDEM_MAX_DRAFT_LENGTH"] == "8"
    assert verifier["TANDEM_LOG_LEVEL"] == "debug"
    assert "TANDEM_MAX_RUNNING" not in verifier
    assert "TANDEM_MAX_DRAFT_LENGTH" not in child_environment("aggregator")
    # Nobody's setting: passed on, so that the child complains.
    assert verifier["TANDEM_MISSPELT"] == "1"


async def test_tasks_end_with_their_block() -> None:
    forever = asyncio.create_task(asyncio.Event().wait())
    async with cancelled_after([forever]):
        assert not forever.done()
    assert forever.cancelled()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only a listener holds it")
async def test_a_reserved_port_is_for_a_service_and_for_nobody_else() -> None:
    with reserved_ports(3) as ports:
        assert len({*ports}) == 3
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((HOST, ports[0]))
        server = grpc.aio.server()
        assert server.add_insecure_port(f"{HOST}:{ports[0]}") == ports[0]
        await server.start()
        http = await asyncio.start_server(lambda reader, writer: None, HOST, ports[1])
        for port in ports[:2]:
            _, writer = await asyncio.open_connection(HOST, port)
            writer.close()
        http.close()
        await server.stop(0)
