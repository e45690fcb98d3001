"""One connection to several services of which any will do."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tandem.net.access import ClientAccess
from tandem.net.connection import Connection
from tandem.net.health_checks import HealthChecks, asked_health
from tandem.net.nearest import NearestConnection
from tandem.routing.router import CloudReport, Router

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
        nearest = NearestConnection(targets, 2**16, access or ClientAccess())
        stack.push_async_callback(nearest.close)
        yield known, servers, nearest


async def calls(nearest: NearestConnection, known: list[Peer], count: int = 8) -> list[int]:
    """How many of so many calls each peer got; one that fails leaves its channel."""
    before = [peer.called for peer in known]
    for _ in range(count):
        async with nearest.channel() as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            try:
                await stub.Check(health_pb2.HealthCheckRequest(service="any"), timeout=WAIT_S)
            except grpc.aio.AioRpcError:
                nearest.retire(channel)
    return [peer.called - was for peer, was in zip(known, before, strict=True)]


async def until(nearest: NearestConnection, known: list[Peer], wanted: list[int]) -> None:
    async with asyncio.timeout(WAIT_S):
        while await calls(nearest, known) != wanted:
            await asyncio.sleep(0.02)


async def test_calls_go_to_those_that_serve() -> None:
    async with peers(2) as (known, _, nearest):
        known[0].serving = False
        await until(nearest, known, [0, 8])
        known[0].serving, known[1].serving = True, False
        await until(nearest, known, [8, 0])


async def test_who_is_gone_is_left_at_once_and_its_call_keeps_its_channel() -> None:
    async with peers(2) as (known, servers, nearest):
        known[1].serving = False
        await until(nearest, known, [8, 0])
        known[1].serving = True
        held = nearest.acquire()
        await servers[0].stop(None)
        await until(nearest, known, [0, 8])
        nearest.retire(held)
        await nearest.release(held)
        assert await calls(nearest, known) == [0, 8]


class FailingAccess(ClientAccess):
    """As where a certificate's file is gone just now."""

    failures = 0

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        if self.failures:
            self.failures -= 1
            raise OSError("gone")
        return super().channel_credentials()


async def test_a_question_that_fails_in_an_unforeseen_way_is_asked_again() -> None:
    access = FailingAccess()
    async with peers(2, access) as (known, _, nearest):
        held = nearest.acquire()  # from now on they are asked
        access.failures = 2
        async with asyncio.timeout(WAIT_S):
            while access.failures:
                await asyncio.sleep(0)
        await nearest.release(held)
        known[0].serving = False
        await until(nearest, known, [0, 8])


async def test_a_check_that_fails_in_our_own_code_is_logged_and_the_checks_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    routing, checks_done = Router(1), 0

    def checked(number: int) -> None:
        nonlocal checks_done
        checks_done += 1
        if checks_done == 1:
            raise ValueError("a fault of ours")

    async def ask(number: int, channel: grpc.aio.Channel) -> CloudReport:
        return await asked_health(channel)

    async with peers(1) as (_, _, nearest):
        connection = Connection(nearest.target, 2**16, ClientAccess())
        checks = HealthChecks(routing, ask, Counter(), checked)
        checks.begin(0, connection)
        try:
            async with asyncio.timeout(WAIT_S):
                while checks_done < 3:
                    await asyncio.sleep(0.02)
        finally:
            await checks.close()
            await connection.close()
    assert "health check failed" in caplog.text
    assert routing.clouds[0].usable


async def test_channels_that_were_left_are_not_kept_while_others_are_in_use() -> None:
    async with peers(1) as (_, _, nearest):
        held, left = nearest.acquire(), []
        nearest.retire(held)
        for _ in range(3):
            channel = nearest.acquire()
            left.append(weakref.ref(channel))
            nearest.retire(channel)
            await nearest.release(channel)
        del channel
        async with asyncio.timeout(WAIT_S):
            while any(each() is not None for each in left):
                await asyncio.sleep(0.02)
                gc.collect()
        await nearest.release(held)
