"""A stream of frames that is left while frames are on their way to whoever listens."""

import asyncio
from typing import Any, cast

import grpc
import pytest

from tandem.net.connection import Connection
from tandem.net.frame_stream import FrameStream, Traffic
from tandem_api.verifier.v1 import verifier_pb2 as pb


class Call:
    """Whose only frame comes when the test says so."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.frame: asyncio.Future[object] = loop.create_future()
        self._frames = [loop.create_future(), self.frame]

    async def read(self) -> object:
        return await self._frames.pop()

    async def write(self, frame: object) -> None: ...

    def cancel(self) -> None: ...

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK

    async def details(self) -> str:
        return ""

    async def trailing_metadata(self) -> tuple[()]:
        return ()


class Standing:
    """A connection with one channel."""

    def __init__(self) -> None:
        self.retired: list[object] = []
        self.released = 0

    def acquire(self) -> str:
        return "channel"

    def retire(self, channel: object) -> None:
        self.retired.append(channel)

    async def release(self, channel: object) -> None:
        self.released += 1


class Whole:
    def encode(self, message: object) -> object:
        return message

    def decode(self, frame: object) -> object:
        return frame


@pytest.mark.parametrize("next_", [pb.VerifyResponse(session=1), grpc.aio.EOF])
@pytest.mark.parametrize("lost", [False, True])
async def test_nothing_arrives_once_a_stream_was_left(next_: object, lost: bool) -> None:
    """Not even what the loop was about to hand over."""
    heard: list[object] = []
    connection, call = Standing(), Call()
    stream: FrameStream[Any, Any] = FrameStream(
        cast(Connection, connection),
        lambda channel: call,
        Whole(),
        Traffic(),
        lambda message, size_bytes: heard.append(message),
        heard.append,
    )
    await asyncio.sleep(0)  # it reads
    call.frame.set_result(next_)
    closing: set[asyncio.Task[None]] = set()
    stream.close_in_background(closing, lost=lost)
    assert connection.retired == (["channel"] if lost else []), "no new call is to begin there"
    await asyncio.gather(*closing)
    assert (heard, connection.released) == ([], 1)
