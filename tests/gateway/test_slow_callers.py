"""Callers that read nothing, send nothing, or come in great numbers."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx2
import pytest

from tandem.gateway.app import GatewaySettings, make_app
from tandem.gateway.caller_connection import ConnectionLimits
from tandem.gateway.server import HttpServer
from tandem.generation.client import Generated
from tandem.generation.request import GenerationRequest
from tandem.services.aggregator.http import connection_limit
from tandem.telemetry.metrics import Metrics, new_registry
from tandem_api.common.v1 import generation_pb2 as pb
from tests.gateway.http_suite import TIMEOUT_S, chat_body
from tests.gateway.test_failures import Breaking
from tests.services.scripted_suite import until

PIECE = "x" * 2**16


@dataclass
class Flooding(Breaking):
    """Says more than any buffer holds, for ever; `slots` answer at once, as many as are asked."""

    slots: int = 0

    async def stream(
        self, request: GenerationRequest, timeout_s: float
    ) -> AsyncGenerator[Generated]:
        self.slots += 1
        answer = Generated(text="")
        try:
            while True:
                answer.text += PIECE
                yield answer
                await asyncio.sleep(0)
        finally:
            self.slots -= 1


@asynccontextmanager
async def served(
    suite: Breaking, limits: ConnectionLimits
) -> AsyncIterator[tuple[HttpServer, httpx2.AsyncClient]]:
    app = make_app(suite, Metrics(new_registry(), "device"), GatewaySettings())
    async with (
        HttpServer(app, "127.0.0.1", 0, limits=limits) as server,
        httpx2.AsyncClient(base_url=server.url, timeout=TIMEOUT_S) as http,
    ):
        yield server, http


def connected(server: HttpServer) -> socket.socket:
    """With a small buffer, so that little is sent ahead of its reading."""
    caller = socket.socket()
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    caller.connect((server.host, server.port))
    return caller


def request_of(n: int, stream: bool = True) -> bytes:
    body = json.dumps(chat_body(stream=stream, n=n)).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def test_callers_who_do_not_read_free_their_slots() -> None:
    """Two connections of eight choices each held all sixteen slots, past every limit."""
    suite = Flooding(RuntimeError())
    async with served(suite, ConnectionLimits(write_s=0.3)) as (server, http):
        callers = [connected(server) for _ in range(2)]
        for caller in callers:
            caller.sendall(request_of(8))
        await until(lambda: suite.slots == 16)
        await until(lambda: suite.slots == 0)
        assert (await http.get("/healthz")).status_code == 200
        for caller in callers:
            caller.close()


@dataclass
class Verbose(Breaking):
    """Ends with more than any buffer holds."""

    async def stream(
        self, request: GenerationRequest, timeout_s: float
    ) -> AsyncGenerator[Generated]:
        yield Generated(text=PIECE * 512, summary=pb.Summary(finish_reason="stop"))


async def test_a_caller_who_does_not_read_a_whole_answer_is_cut_off() -> None:
    async with served(Verbose(RuntimeError()), ConnectionLimits(write_s=0.2)) as (server, _):
        reader, writer = await asyncio.open_connection(sock=connected(server), limit=1024)
        writer.write(request_of(1, stream=False))
        await asyncio.sleep(0.8)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await asyncio.wait_for(reader.readexactly(len(PIECE) * 512), TIMEOUT_S)
        writer.close()


async def test_a_caller_who_reads_slowly_gets_its_answer() -> None:
    suite = Flooding(RuntimeError())
    async with served(suite, ConnectionLimits(write_s=0.3)) as (server, _):
        reader, writer = await asyncio.open_connection(sock=connected(server))
        writer.write(request_of(1))
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + 0.6
        while loop.time() < ends_s:
            assert await reader.read(2**16)
            await asyncio.sleep(0.001)
        assert suite.slots == 1
        writer.close()
        await until(lambda: suite.slots == 0)


async def test_silent_connections_make_room_for_the_next_caller() -> None:
    suite = Flooding(RuntimeError())
    async with served(suite, ConnectionLimits(connections=50, idle_s=TIMEOUT_S)) as (server, http):
        asking = connected(server)
        asking.sendall(request_of(1))
        await until(lambda: suite.slots == 1)
        silent = [await asyncio.open_connection(server.host, server.port) for _ in range(300)]
        assert (await http.get("/healthz")).status_code == 200
        assert suite.slots == 1, "who is answered keeps its connection"
        closed = 0
        for reader, writer in silent:
            try:
                closed += (await asyncio.wait_for(reader.read(), 0.002)) == b""
            except ConnectionResetError:
                closed += 1
            except TimeoutError:
                pass
            writer.close()
        assert closed >= 250
        asking.close()


@pytest.mark.parametrize("sent", [b"", b'{"model": "scri'])
async def test_a_body_that_does_not_come_is_given_up(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.gateway.connection_body.BODY_TIMEOUT_S", 0.05)
    async with served(Flooding(RuntimeError()), ConnectionLimits(idle_s=0.05)) as (server, _):
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(request_of(1).partition(b"\r\n\r\n")[0] + b"\r\n\r\n" + sent)
        answer = await asyncio.wait_for(reader.read(), TIMEOUT_S)
        assert answer.startswith(b"HTTP/1.1 408 ")
        writer.close()


async def test_silent_strangers_keep_nobody_out_where_few_files_may_be_open() -> None:
    """512 connections were allowed where 64 files were: everybody was reset for 11 s."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.gateway.few_files", "64"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    strangers = list[socket.socket]()
    try:
        port = int(await asyncio.wait_for(child.stdout.readline(), TIMEOUT_S))
        strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
        await asyncio.sleep(0.5)
        async with httpx2.AsyncClient(timeout=TIMEOUT_S) as http:
            for _ in range(20):
                answer = await http.get(
                    f"http://127.0.0.1:{port}/", headers={"Connection": "close"}
                )
                assert answer.status_code == 200
    finally:
        for stranger in strangers:
            stranger.close()
        child.stdin.close()
        await child.wait()


def test_connections_are_as_many_as_wanted_where_files_allow_it() -> None:
    assert connection_limit(8) == 8
