"""The edge's long streams to a verifier, over one connection for all requests.

Invariant: sending never blocks the caller; frames and the stream's end arrive through callbacks on
the event loop, and none arrives after `close`. A stream that was lost leaves its connection to the
streams still on it and takes a fresh one. Must not import torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc

from tandem.core.errors import InvalidArgument
from tandem.protocol.messages import CloudMessage, EdgeMessage
from tandem.rpc.connection import Connection
from tandem.rpc.convert_verifier import EdgeCodec
from tandem.rpc.status import advised, details_of, known_status
from tandem.telemetry.tracing import Sent
from tandem_api.verifier.v1 import verifier_pb2 as pb
from tandem_api.verifier.v1 import verifier_pb2_grpc as pb_grpc

FRAME_HEADER_BYTES = 5
"""gRPC's length prefix, counted with every message."""

FATAL = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
"""Statuses that another stream would meet again."""


class Traffic:
    """Bytes of messages of one request, over all its streams."""

    def __init__(self) -> None:
        self.uplink_bytes = 0
        self.downlink_bytes = 0


class VerifierStream:
    """An open stream. `on_frame(message)`, `on_end(error or None)` are called on the event loop."""

    def __init__(
        self,
        connection: Connection,
        codec: EdgeCodec,
        traffic: Traffic,
        on_frame: Callable[[CloudMessage], None],
        on_end: Callable[[BaseException | None], None],
        deadline_s: float,
        headers: Sent = None,
    ) -> None:
        """`headers` is metadata for the cloud: the trace that this stream is part of."""
        self._codec = codec
        self._traffic = traffic
        self._on_frame = on_frame
        self._on_end = on_end
        self._outgoing: asyncio.Queue[pb.VerifyRequest | None] = asyncio.Queue()
        self._connection = connection
        self._channel = connection.acquire()
        stub = pb_grpc.VerifierServiceStub(self._channel)
        self._call = stub.Verify(timeout=deadline_s, wait_for_ready=True, metadata=headers)
        self._tasks = (
            asyncio.create_task(self._write()),
            asyncio.create_task(self._read()),
        )

    def send(self, message: EdgeMessage) -> None:
        """Queue a frame; a stop-and-wait edge never has more than a round's frames here."""
        frame = self._codec.encode(message)
        self._traffic.uplink_bytes += frame.ByteSize() + FRAME_HEADER_BYTES
        self._outgoing.put_nowait(frame)

    async def close(self, flush_s: float = 0.0, lost: bool = False) -> None:
        """End the stream; with `flush_s` let what is queued leave first, for that long at most.
        `lost`: its connection is not to be used again."""
        if lost:
            self._connection.distrust(self._channel)
        self._on_frame = lambda message: None
        self._on_end = lambda error: None
        if flush_s:
            self._outgoing.put_nowait(None)
            await asyncio.wait(self._tasks[:1], timeout=flush_s)
            await asyncio.wait(self._tasks[1:], timeout=flush_s)
        for task in self._tasks:
            task.cancel()
        self._call.cancel()
        await self._connection.release(self._channel)

    async def _write(self) -> None:
        try:
            while (frame := await self._outgoing.get()) is not None:
                await self._call.write(frame)
            await self._call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # the reader sees the status

    async def _read(self) -> None:
        try:
            while True:
                frame = await self._call.read()
                if frame is None:  # how grpc.aio says that the bytes were no such message
                    raise InvalidArgument("message", "the bytes are no protobuf message")
                if not isinstance(frame, pb.VerifyResponse):
                    break
                self._traffic.downlink_bytes += frame.ByteSize() + FRAME_HEADER_BYTES
                self._on_frame(self._codec.decode(frame))
        except (grpc.aio.AioRpcError, InvalidArgument) as error:
            self._on_end(error)
            return
        code = await self._call.code()
        ok = code is grpc.StatusCode.OK
        details = await self._call.details()
        self._on_end(None if ok else StreamEnded(code, advised(code, details or "")))


class StreamEnded(Exception):
    """A stream ended with another status than OK."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code


def end_status(error: BaseException | None) -> tuple[grpc.StatusCode, str]:
    """Code and details of a stream's end."""
    if error is None:
        return grpc.StatusCode.OK, ""
    if isinstance(error, StreamEnded):
        return known_status(error.code, str(error))
    if isinstance(error, grpc.aio.AioRpcError):
        return known_status(error.code(), details_of(error))
    return grpc.StatusCode.INTERNAL, str(error)
