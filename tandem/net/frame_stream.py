"""A long stream of frames to another service, over a standing connection. Invariant: sending never
blocks the caller; frames and the stream's end arrive through callbacks on the event loop, and none
arrives after `close`. A stream that was lost leaves its connection to the streams still on it and
takes a fresh one."""

import asyncio
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import grpc
from grpc import StatusCode

from tandem.core.errors import InvalidArgument, ResourceExhausted
from tandem.net.connection import Connection
from tandem.net.status import actual_status, engine_silent_s, plain_details, retry_after_s
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

FRAME_HEADER_BYTES = 5
"""gRPC's length prefix, counted with every message."""

MAX_QUEUED_FRAMES = 4096
"""More than any machine's window: a peer that asks for more than it takes is left."""

Sent = TypeVar("Sent", contravariant=True)
Received = TypeVar("Received", covariant=True)
Out = TypeVar("Out")
In = TypeVar("In")


class Traffic:
    """Bytes of messages of one request, over all its streams."""

    def __init__(self) -> None:
        self.uplink_bytes = 0
        self.downlink_bytes = 0


class Codec(Protocol[Sent, Received]):
    """Writes and reads the frames of one end; `decode` raises InvalidArgument."""

    def encode(self, message: Sent) -> Any: ...
    def decode(self, frame: Any) -> Received: ...


class FrameStream(Generic[Out, In]):
    """An open stream; calls `on_frame(message, bytes)` and `on_end(error or None)` on the loop."""

    def __init__(
        self,
        connection: Connection,
        begin: Callable[[grpc.aio.Channel], Any],
        codec: Codec[Out, In],
        traffic: Traffic,
        on_frame: Callable[[In, int], None],
        on_end: Callable[[BaseException | None], None],
        stranger: str = "",
    ) -> None:
        """Open the stream and start to read and write.

        Args:
            begin: makes the call on a channel.
            on_frame: called with each message and its size in bytes.
            on_end: called once when the stream ends, with the error if there is one.
            stranger: what to call a service of another side, whose words must not be taken for
                ours; see `plain_details`."""
        self._stranger = stranger
        self._codec = codec
        self._traffic = traffic
        self._on_frame = on_frame
        self._on_end = on_end
        self._refused = False
        self._outgoing: asyncio.Queue[Any | None] = asyncio.Queue()
        self._connection = connection
        self._channel = connection.acquire()
        self._call = begin(self._channel)
        self._tasks = (asyncio.create_task(self._write()), asyncio.create_task(self._read()))

    def send(self, message: Out) -> int:
        """Queue a frame and return its size in bytes; a machine's window bounds how many wait."""
        frame = self._codec.encode(message)
        if self._outgoing.qsize() >= MAX_QUEUED_FRAMES:
            full = ResourceExhausted(f"{MAX_QUEUED_FRAMES} frames wait for the stream")
            asyncio.get_running_loop().call_soon(self._end, full)
        size_bytes: int = frame.ByteSize() + FRAME_HEADER_BYTES
        self._traffic.uplink_bytes += size_bytes
        self._outgoing.put_nowait(frame)
        return size_bytes

    async def close(self, flush_s: float = 0.0, lost: bool = False) -> None:
        """End the stream, after `flush_s` at most for what is queued; `lost` drops its channel."""
        self._abandon(lost)
        if flush_s:
            self._outgoing.put_nowait(None)
            await asyncio.wait(self._tasks[:1], timeout=flush_s)
            await asyncio.wait(self._tasks[1:], timeout=flush_s)
        self._tasks[0].cancel()
        self._call.cancel()  # so the reader ends: cancelled while it reads, it would lose memory
        await self._connection.release(self._channel)

    def close_in_background(
        self, closing_tasks: set[asyncio.Task[None]], flush_s: float = 0.0, lost: bool = False
    ) -> None:
        """Run `close` as a task, which is in `closing_tasks` until it is done."""
        self._abandon(lost)  # now: a frame may be on its way here when that task begins
        task = asyncio.create_task(self.close(flush_s))
        closing_tasks.add(task)
        task.add_done_callback(closing_tasks.discard)

    def _abandon(self, lost: bool) -> None:
        """Report nothing from now on. A lost stream's channel is not used for new calls; whether
        the service is lost too, its last word says."""
        if lost and self._refused:
            self._connection.refused(self._channel)
        elif lost:
            self._connection.retire(self._channel)
        self._on_frame = lambda message, size_bytes: None
        self._on_end = lambda error: None

    async def _write(self) -> None:
        try:
            while (frame := await self._outgoing.get()) is not None:
                await self._call.write(frame)
            await self._call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # the reader sees the status

    async def _read(self) -> None:
        try:
            while (frame := await self._call.read()) is not grpc.aio.EOF:
                if frame is None:  # how grpc.aio says that the bytes were no such message
                    raise InvalidArgument("message", "the bytes are not a protobuf message")
                size_bytes = frame.ByteSize() + FRAME_HEADER_BYTES
                self._traffic.downlink_bytes += size_bytes
                self._on_frame(self._codec.decode(frame), size_bytes)
        except Exception as error:  # the stream's end too, or a failure of `on_frame`
            if isinstance(error, grpc.aio.AioRpcError):
                metadata = error.trailing_metadata()
                self._end(self._ended(error.code(), error.details() or "", metadata))
                return
            if not isinstance(error, InvalidArgument):
                log.exception("stream abandoned")
            self._end(error)
            return
        code = await self._call.code()
        details = await self._call.details() or ""
        metadata = await self._call.trailing_metadata()
        self._end(None if code is StatusCode.OK else self._ended(code, details, metadata))

    def _ended(self, code: StatusCode, details: str, metadata: Any) -> "StreamEnded":
        code, details = actual_status(code, details)
        again_s = retry_after_s(metadata)
        words = plain_details(code, details, self._stranger, again_s)
        return StreamEnded(code, words, engine_silent_s(metadata), again_s)

    def _end(self, error: BaseException | None) -> None:
        """Report the end, once: after `close` or an earlier end there is nobody to report it to."""
        self._refused = end_status(error)[0] in FATAL | BROKEN
        on_end, self._on_end = self._on_end, lambda error: None
        on_end(error)


FATAL = frozenset(
    {
        *(StatusCode.INVALID_ARGUMENT, StatusCode.FAILED_PRECONDITION, StatusCode.UNIMPLEMENTED),
        *(StatusCode.RESOURCE_EXHAUSTED, StatusCode.DEADLINE_EXCEEDED),
        *(StatusCode.UNAUTHENTICATED, StatusCode.PERMISSION_DENIED),
    }
)
"""Statuses that another stream would meet again."""

LASTING = FATAL - {
    *(StatusCode.INVALID_ARGUMENT, StatusCode.DEADLINE_EXCEEDED, StatusCode.RESOURCE_EXHAUSTED)
}
"""Of these, refusals that are no fault of the request, and do not go away by waiting."""

BROKEN = frozenset(
    {
        StatusCode.OK,  # this end had not said that it is done
        *(StatusCode.DATA_LOSS, StatusCode.INTERNAL, StatusCode.UNKNOWN),
    }
)
"""Ends of a stream that are a fault of the conversation, not of the link."""


class StreamEnded(Exception):
    """A stream ended with another status than OK. `silent_s`: how long the service's engine had
    been stuck; `retry_after_s`: when to try again, where it says so."""

    def __init__(
        self,
        code: StatusCode,
        details: str,
        silent_s: float = 0.0,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(details)
        self.code = code
        self.silent_s = silent_s
        self.retry_after_s = retry_after_s


def end_status(error: BaseException | None) -> tuple[StatusCode, str]:
    """Return the code and the details of a stream's end; `error` is what its `on_end` was called
    with."""
    if error is None:
        return StatusCode.OK, ""
    if isinstance(error, StreamEnded):
        return error.code, str(error)
    return StatusCode.INTERNAL, str(error)


def stuck_s(error: BaseException | None) -> float:
    """Return how long the service's engine had been stuck, as it says at a stream's end."""
    return error.silent_s if isinstance(error, StreamEnded) else 0.0


def retry_s(error: BaseException | None) -> float | None:
    """Return when the service says, at a stream's end, that it may be worth another try."""
    return error.retry_after_s if isinstance(error, StreamEnded) else None
