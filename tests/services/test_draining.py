"""A service that stops while a call is open, and when a verifier asks its sessions to leave."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from tandem.net.access import ServerAccess
from tandem.net.lifecycle import RunningService
from tandem.services.verifier.servicer import leaving_times

TURNS = 300
DEADLINE_S = 60.0


class Waiting:
    """A service with one method, which ends only with its call, and then takes a while to free what
    it holds."""

    full_name = "tests.Waiting"

    def __init__(self) -> None:
        self.open_requests = 0
        self.began = asyncio.Event()
        self.open_when_closed: list[int] = []

    def register(self, server: grpc.aio.Server) -> None:
        handler: Any = grpc.unary_unary_rpc_method_handler(self._wait)
        handlers = grpc.method_handlers_generic_handler(self.full_name, {"Wait": handler})
        server.add_generic_rpc_handlers((handlers,))

    async def _wait(self, request: bytes, context: object) -> bytes:
        self.open_requests += 1
        self.began.set()
        try:
            await asyncio.Event().wait()
            return b""
        finally:
            for _ in range(TURNS):
                await asyncio.sleep(0)
            self.open_requests -= 1

    def going_away(self, grace_s: float) -> None:
        pass

    async def close(self) -> None:
        self.open_when_closed.append(self.open_requests)


async def test_a_service_is_closed_once_its_handlers_have_freed_what_they_held() -> None:
    service = Waiting()
    running = RunningService(service, "127.0.0.1", 0, 2**16, ServerAccess())
    await running.start()
    async with grpc.aio.insecure_channel(running.target) as channel, asyncio.timeout(DEADLINE_S):
        method: Any = channel.unary_unary("/tests.Waiting/Wait")
        call = method(b"")
        await service.began.wait()
        await running.drain(0.0)
        assert service.open_when_closed == [0]
        assert await call.code() != grpc.StatusCode.OK


def test_sessions_are_asked_to_leave_while_others_compute_their_texts() -> None:
    """In half of their time; and all before the end."""
    assert leaving_times([100, 200, 50], 0.001, 10.0) == pytest.approx([0.0, 0.2, 0.6])
    assert leaving_times([100, 200, 50], 0.001, 0.35) == pytest.approx([0.0, 0.1, 0.3])


def test_sessions_leave_at_once_where_that_costs_nothing() -> None:
    assert leaving_times([100, 200], 0.0, 10.0) == [0.0, 0.0]
    assert leaving_times([100, 200], 0.001, 0.0) == [0.0, 0.0]
    assert leaving_times([100], 0.001, 10.0) == [0.0]
    assert leaving_times([], 0.001, 10.0) == []
