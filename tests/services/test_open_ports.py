"""Strangers at the port that asks nobody for a key, and what they take from the others."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import grpc
import pytest
from grpc_health.v1 import health_pb2

from tandem.net import lifecycle
from tandem.net.access import ServerAccess
from tandem.net.lifecycle import RunningService, raise_descriptor_limit
from tests.services.scripted_suite import TIMEOUT_S, health_of, health_stub

STRANGERS = 400
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""HTTP/2's preface and empty settings: a connection that is ready, and asks nothing."""


class Empty:
    """A service without a method."""

    full_name = "tests.Empty"
    open_requests = 0

    def register(self, server: grpc.aio.Server) -> None:
        pass

    def going_away(self, grace_s: float) -> None:
        pass

    async def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "HEALTH_HANDSHAKE_MS", 700)
    monkeypatch.setattr(lifecycle, "HEALTH_IDLE_MS", 300)
    monkeypatch.setattr(lifecycle, "HEALTH_AGE_MS", 300)


@asynccontextmanager
async def served() -> AsyncIterator[RunningService]:
    running = RunningService(Empty(), "127.0.0.1", 0, 2**16, ServerAccess(), health_port=0)
    await running.start()
    try:
        yield running
    finally:
        await running.drain(0.0)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def connected(target: str) -> socket.socket:
    host, port = target.split(":")
    caller = socket.create_connection((host, int(port)))
    caller.setblocking(False)
    return caller


async def test_silent_strangers_take_few_descriptors_and_only_for_a_while() -> None:
    async with served() as running:
        before = descriptors()
        strangers = [connected(running.health_target) for _ in range(STRANGERS)]
        taken = await asyncio.to_thread(most_taken, before + STRANGERS)
        assert taken <= lifecycle.HEALTH_CONNECTIONS + 32
        assert await health_of(running.target) == "SERVING", "the main port has its own"
        for stranger in strangers:
            assert await closed(stranger)
        assert await health_of(running.health_target) == "SERVING"


def most_taken(beside: int) -> int:
    """Descriptors beyond `beside`, once connections come no more."""
    seen = [descriptors()]
    while len(seen) < 4 or seen[-1] != seen[-4]:
        time.sleep(0.02)
        seen.append(descriptors())
    return max(seen[-4:]) - beside


async def test_strangers_who_ask_nothing_or_stay_for_ever_are_sent_away() -> None:
    async with served() as running:
        stranger = connected(running.health_target)
        stranger.sendall(GREETING)
        assert await closed(stranger)
        async with grpc.aio.insecure_channel(running.health_target) as channel:
            watched = health_stub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                async for _ in watched:
                    pass
            assert ended.value.code() is grpc.StatusCode.UNAVAILABLE


async def closed(caller: socket.socket) -> bool:
    """Once the other end has closed it."""
    loop = asyncio.get_running_loop()
    with suppress(ConnectionError):
        async with asyncio.timeout(TIMEOUT_S):
            while await loop.sock_recv(caller, 2**16):
                pass
    caller.close()
    return True


def test_the_limit_of_descriptors_is_raised_as_far_as_may_be() -> None:
    found = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = min(1024, found[1]) if found[1] != resource.RLIM_INFINITY else 1024
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, found[1]))
    try:
        raise_descriptor_limit()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert hard == found[1]
        assert soft == (
            lifecycle.DESCRIPTORS
            if hard == resource.RLIM_INFINITY
            else min(hard, lifecycle.DESCRIPTORS)
        )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, found)
