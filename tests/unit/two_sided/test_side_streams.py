"""Streams to several other sides over real gRPC: each hears what is meant for it, the last to open
is named, and none stays open where another cannot be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from tandem.net.access import ClientAccess
from tandem.net.connection import Connection
from tandem.net.frame_stream import FrameStream, StreamEnded, Traffic
from tandem.specdec.messages import Cancel, Ping, Pong
from tandem.two_sided.many_sides import FromLink, LastOpened, SideStreams, ToLink
from tandem.two_sided.protocol.messages import (
    CloudSideMessage,
    CollaborationOpen,
    CollaborationOpened,
    DeviceMessage,
)
from tandem.two_sided.serving.device_session import OpenSideStream
from tandem.two_sided.serving.peer_codec import CloudSideCodec, DeviceCodec
from tandem_api.aggregator.v1 import aggregator_pb2_grpc as pb_grpc
from tests.unit.two_sided.test_peer_codec import HEAD, OPEN, V

TIMEOUT_S = 30.0
OPENED = CollaborationOpened(*HEAD, log_mass=0.5, max_tokens=4)


class OtherSide(pb_grpc.AggregatorServiceServicer):
    """Another side's aggregator: says twice that it is open, answers pings, refuses `Cancel`."""

    def __init__(self) -> None:
        self.heard: list[DeviceMessage] = []
        self.left = asyncio.Event()

    async def Collaborate(  # noqa: N802  # named by gRPC
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[Any]:
        codec = CloudSideCodec()
        try:
            async for frame in request_iterator:
                self.heard.append(message := codec.decode(frame))
                match message:
                    case CollaborationOpen():
                        codec.opened(V)
                        yield codec.encode(OPENED)
                        yield codec.encode(OPENED)
                    case Ping():
                        yield codec.encode(Pong(*HEAD, nonce=message.nonce))
                    case Cancel():
                        await context.abort(grpc.StatusCode.UNAVAILABLE, "goes away")
        finally:
            self.left.set()


class Device:
    """Streams from a device to sides that serve on this machine, and what came of them."""

    def __init__(self, targets: list[str]) -> None:
        self.connections = [Connection(target, 2**16, ClientAccess()) for target in targets]
        self.traffics = [Traffic() for _ in targets]
        self.openers = [self._opener(link) for link in range(len(targets))]
        self.received: asyncio.Queue[tuple[FromLink, int]] = asyncio.Queue()
        self.ended: asyncio.Queue[BaseException | None] = asyncio.Queue()
        self.closing: set[asyncio.Task[None]] = set()

    def _opener(self, link: int) -> OpenSideStream:
        def opens(on_frame: Any, on_end: Any) -> FrameStream[DeviceMessage, CloudSideMessage]:
            return FrameStream(
                self.connections[link],
                lambda channel: pb_grpc.AggregatorServiceStub(channel).Collaborate(
                    timeout=TIMEOUT_S, wait_for_ready=True
                ),
                codec=DeviceCodec(V, OPEN.request.preset.probs),
                traffic=self.traffics[link],
                on_frame=on_frame,
                on_end=on_end,
            )

        return opens

    def open(self) -> SideStreams:
        return SideStreams(
            self.openers,
            self.closing,
            on_frame=lambda frame, size_bytes: self.received.put_nowait((frame, size_bytes)),
            on_end=self.ended.put_nowait,
        )

    async def next_frames(self, count: int) -> list[FromLink]:
        return [(await self.received.get())[0] for _ in range(count)]


@asynccontextmanager
async def device_and_sides() -> AsyncIterator[tuple[Device, list[OtherSide]]]:
    """A device and two other sides."""
    # Nobody calls what else an aggregator serves.
    sides = [OtherSide(), OtherSide()]  # type: ignore[abstract]
    servers = [grpc.aio.server() for _ in sides]
    targets = []
    for side, server in zip(sides, servers, strict=True):
        pb_grpc.add_AggregatorServiceServicer_to_server(side, server)
        targets.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
        await server.start()
    device = Device(targets)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            yield device, sides
    finally:
        for connection in device.connections:
            await connection.close()
        for server in servers:
            await server.stop(0)


async def test_each_side_hears_its_own_frames_and_the_last_to_open_is_named() -> None:
    async with device_and_sides() as (device, sides):
        streams = device.open()
        ping = Ping(*HEAD, nonce=3)
        sent = [0, 0]
        sent[1] += streams.send(ToLink(1, OPEN))
        assert await device.next_frames(2) == [FromLink(1, OPENED)] * 2
        sent[1] += streams.send(ToLink(1, ping))
        assert await device.next_frames(1) == [FromLink(1, Pong(*HEAD, nonce=3))]
        sent[0] += streams.send(ToLink(0, OPEN))
        frames = await device.next_frames(2)
        assert frames == [LastOpened(0, OPENED), FromLink(0, OPENED)]
        assert [type(frame) for frame in frames] == [LastOpened, FromLink], "once"
        assert [side.heard for side in sides] == [[OPEN], [OPEN, ping]]
        assert [traffic.uplink_bytes for traffic in device.traffics] == sent
        streams.close_in_background(device.closing)
        await asyncio.gather(*(side.left.wait() for side in sides), *device.closing)
        assert device.ended.empty(), "the device left by itself"


async def test_the_size_of_each_frame_and_the_end_of_any_side_are_told() -> None:
    async with device_and_sides() as (device, _):
        streams = device.open()
        streams.send(ToLink(0, OPEN))
        sizes = [(await device.received.get())[1] for _ in range(2)]
        assert sum(sizes) == device.traffics[0].downlink_bytes > 0
        streams.send(ToLink(1, Cancel(*HEAD)))
        error = await device.ended.get()
        assert isinstance(error, StreamEnded)
        assert error.code is grpc.StatusCode.UNAVAILABLE
        streams.close_in_background(device.closing)
        await asyncio.gather(*device.closing)


async def test_what_was_open_is_closed_where_another_side_cannot_be_reached() -> None:
    """And nothing else: an answer beside it goes on."""
    async with device_and_sides() as (device, sides):
        beside = device.open()
        beside.send(ToLink(0, OPEN))
        await device.next_frames(2)

        def fails(on_frame: Any, on_end: Any) -> Any:
            raise OSError("no certificate")

        device.openers[1] = fails
        with pytest.raises(OSError, match="no certificate"):
            device.open()
        (closes,) = device.closing
        await closes
        beside.send(ToLink(0, Ping(*HEAD, nonce=4)))
        assert await device.next_frames(1) == [FromLink(0, Pong(*HEAD, nonce=4))]
        assert sides[0].heard == [OPEN, Ping(*HEAD, nonce=4)]
        beside.close_in_background(device.closing)
        await asyncio.gather(*device.closing)
        assert device.ended.empty()
