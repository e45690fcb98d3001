"""A call that is given up while it is read leaves no memory behind. grpc.aio frees none of an
operation whose waiter is cancelled: 96 bytes of glibc's heap, which no figure of Python's shows."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import grpc
import pytest

from tandem.generation.conversation import answers_to, cancelled, read_start
from tandem.net.access import ClientAccess
from tandem.net.connection import Connection
from tandem.net.frame_stream import FrameStream, Traffic
from tandem.net.stream_limits import StreamLimits, served
from tandem_api.aggregator.v1 import aggregator_pb2_grpc
from tandem_api.common.v1 import generation_pb2 as pb
from tests.long_runs import with_long_cases
from tests.native_memory import bytes_in_use

CALLS = 400
TIMES = 4
MOST_BYTES = 40.0
"""A call, in the mean of one of several times: less than half of what one operation takes. A table
that grows does so in one of them; what is never freed is in each."""

ENDS = "ends"

pytestmark = pytest.mark.skipif(bytes_in_use() is None, reason="only glibc counts its heap")

Give = Callable[[grpc.aio.Channel, Connection], Awaitable[None]]


class Service(aggregator_pb2_grpc.AggregatorServiceServicer):
    """Answers once, and listens for a cancel: until its caller leaves, or, where that asks for the
    preset `ENDS`, for a moment."""

    async def Generate(  # type: ignore[override]  # noqa: N802  # the RPC's name
        self, request_iterator: object, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        async with served(context, StreamLimits()) as stream:
            start = (await read_start(stream)).start
            listening = asyncio.create_task(cancelled(stream))
            try:
                await stream.write(pb.GenerateResponse())
                await asyncio.sleep(0.001)
                if start.preset != ENDS:
                    await listening
            finally:
                listening.cancel()


class Whole:
    def encode(self, message: pb.GenerateRequest) -> pb.GenerateRequest:
        return message

    def decode(self, frame: pb.GenerateResponse) -> pb.GenerateResponse:
        return frame


@asynccontextmanager
async def service() -> AsyncIterator[tuple[grpc.aio.Channel, Connection]]:
    server = grpc.aio.server()
    aggregator_pb2_grpc.add_AggregatorServiceServicer_to_server(
        Service(),  # type: ignore[abstract]  # the other RPCs are not called
        server,
    )
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    connection = Connection(address, 2**16, ClientAccess())
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            yield channel, connection
    finally:
        await connection.close()
        await server.stop(0)


def asked(preset: str = "") -> pb.GenerateRequest:
    return pb.GenerateRequest(start=pb.Generation(preset=preset))


def call_on(channel: grpc.aio.Channel) -> Any:
    return aggregator_pb2_grpc.AggregatorServiceStub(channel).Generate(timeout=60.0)


async def unheard() -> None:
    raise AssertionError("the status is known")


async def ended_by_the_service(channel: grpc.aio.Channel, connection: Connection) -> None:
    async for _ in answers_to(call_on(channel), asked(ENDS), unheard):
        pass


async def left_while_it_reads(channel: grpc.aio.Channel, connection: Connection) -> None:
    call, answered = call_on(channel), asyncio.Event()

    async def ask() -> None:
        try:
            async for _ in answers_to(call, asked(), unheard):
                answered.set()
        finally:
            call.cancel()

    asking = asyncio.create_task(ask())
    await answered.wait()
    await asyncio.sleep(0.001)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def a_closed_stream(channel: grpc.aio.Channel, connection: Connection) -> None:
    answered = asyncio.Event()
    stream: FrameStream[Any, Any] = FrameStream(
        connection,
        call_on,
        Whole(),
        Traffic(),
        on_frame=lambda message, size_bytes: answered.set(),
        on_end=lambda error: None,
    )
    stream.send(asked())
    await answered.wait()
    await asyncio.sleep(0.001)
    await stream.close()


@pytest.mark.parametrize(
    "give_up",
    with_long_cases(
        [ended_by_the_service, left_while_it_reads, a_closed_stream], (left_while_it_reads,)
    ),
)
async def test_a_call_leaves_no_memory_behind(give_up: Give) -> None:
    async def calls(count: int) -> int:
        for _ in range(count):
            await give_up(*ends)
        await asyncio.sleep(0.2)  # what the service does at the end of the last ones
        gc.collect()
        return bytes_in_use() or 0

    async with service() as ends:
        held = [await calls(CALLS) for _ in range(TIMES)]
    grown = [(after - before) / CALLS for before, after in pairwise(held)]
    assert min(grown) < MOST_BYTES, grown
