"""One connection to several services of which any will do."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tandem.net.access import ClientAccess
from tandem.net.connection import Connection
from tandem.net.failover import Failover
from tandem.net.failover_connection import FailoverConnection
from tandem.net.health_checks import HealthChecks
from tests.services.scripted_suite import until

WAIT_S = 60.0


class Peer(health_pb2_grpc.HealthServicer):
    """Counts the calls that are not questions of the connection itself."""

    def __init__(self) -> None:
        self.serving, self.called = True, 0

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802  # the RPC's name
        self.called += bool(request.service)
        name = "SERVING" if self.serving else "NOT_SERVING"
        return health_pb2.HealthCheckResponse(status=name)


@asynccontextmanager
async def peers(
    count: int, access: ClientAccess | None = None
) -> AsyncIterator[tuple[list[Peer], list[grpc.aio.Server], Any]]:
    """With their servers and the connection to all."""
    known, servers, targets = [Peer() for _ in range(count)], [], []
    async with AsyncExitStack() as stack:
        for peer in known:
            server = grpc.aio.server()
            add: Any = health_pb2_grpc.add_HealthServicer_to_server
            add(peer, server)
            targets.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
            await server.start()
            stack.push_async_callback(server.stop, None)
            servers.append(server)
        standing = FailoverConnection(targets, 2**16, access or ClientAccess())
        stack.push_async_callback(standing.close)
        yield known, servers, standing


async def calls(standing: FailoverConnection, known: list[Peer], count: int = 8) -> list[int]:
    """How many of so many calls each peer got; one that fails leaves its channel."""
    before = [peer.called for peer in known]
    for _ in range(count):
        async with standing.channel() as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            try:
                await stub.Check(health_pb2.HealthCheckRequest(service="any"), timeout=WAIT_S)
            except grpc.aio.AioRpcError:
                standing.retire(channel)
    return [peer.called - was for peer, was in zip(known, before, strict=True)]


async def until_called(standing: FailoverConnection, known: list[Peer], wanted: list[int]) -> None:
    async with asyncio.timeout(WAIT_S):
        while await calls(standing, known) != wanted:
            await asyncio.sleep(0.02)


async def test_calls_go_to_the_first_one_that_serves() -> None:
    async with peers(2) as (known, _, standing):
        known[0].serving = False
        await until_called(standing, known, [0, 8])
        known[0].serving = True
        await until_called(standing, known, [8, 0])


async def test_who_is_gone_is_left_at_once_and_its_call_keeps_its_channel() -> None:
    async with peers(2) as (known, servers, standing):
        known[1].serving = False
        await until_called(standing, known, [8, 0])
        known[1].serving = True
        held = standing.acquire()
        await servers[0].stop(None)
        await until_called(standing, known, [0, 8])
        standing.retire(held)
        await standing.release(held)
        assert await calls(standing, known) == [0, 8]


async def test_a_check_that_fails_in_our_own_code_is_logged_and_the_checks_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    checks_done = 0

    def checked(address: str) -> None:
        nonlocal checks_done
        checks_done += 1
        if checks_done == 1:
            raise ValueError("a fault of ours")

    async with peers(1) as (_, _, standing):
        connection = Connection(standing.target, 2**16, ClientAccess())
        order = Failover([standing.target])
        checks = HealthChecks(order, checked=checked)
        checks.begin(standing.target, connection)
        try:
            await until(lambda: checks_done >= 3)
        finally:
            await checks.close()
            await connection.close()
    assert "health check failed" in caplog.text
    assert order.is_healthy(standing.target)


async def test_channels_that_were_left_are_not_kept_while_others_are_in_use() -> None:
    async with peers(1) as (_, _, standing):
        held, left = standing.acquire(), []
        standing.retire(held)
        for _ in range(3):
            channel = standing.acquire()
            left.append(weakref.ref(channel))
            standing.retire(channel)
            await standing.release(channel)
        del channel
        async with asyncio.timeout(WAIT_S):
            while any(each() is not None for each in left):
                await asyncio.sleep(0.02)
                gc.collect()
        await standing.release(held)
