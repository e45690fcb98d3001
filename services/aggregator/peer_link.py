"""The device's stream to the cloud's aggregator, opened anew after a loss.

Invariant: frames of a stream that was given up never arrive. Must not import torch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from tandem.protocol.aggregation_messages import CloudSideMessage, DeviceMessage
from tandem.rpc.connection import Connection
from tandem.rpc.convert_aggregation import DeviceEnd
from tandem.rpc.diagnosis import Diagnosis
from tandem.rpc.frame_stream import FrameStream, Traffic
from tandem.rpc.status import refused_below
from tandem.rpc.stream_end import BROKEN, FATAL, end_status
from tandem.telemetry.logging import get_logger
from tandem.telemetry.tracing import Sent
from tandem_api.aggregator.v1 import aggregator_pb2_grpc as pb_grpc

log = get_logger(__name__)

CANCEL_FLUSH_S = 0.2
MAX_BACKOFF_S = 1.0


@dataclass(frozen=True, slots=True)
class PeerEvents:
    """What the link calls, on the event loop."""

    ready: Callable[[], None]
    received: Callable[[CloudSideMessage, int], None]
    lost: Callable[[], None]
    broken: Callable[[str], None]
    failed: Callable[[Exception], None]


class PeerLink:
    """One request's way to the cloud."""

    def __init__(
        self,
        connection: Connection,
        codec: DeviceEnd,
        events: PeerEvents,
        traffic: Traffic,
        deadline_s: float,
        farewells: set[asyncio.Task[None]],
        headers: Sent = None,
    ) -> None:
        self._connection = connection
        self._codec = codec
        self._events = events
        self._traffic = traffic
        self._deadline_s = deadline_s
        self._headers = headers
        self._farewells = farewells
        self._stream: FrameStream[DeviceMessage, CloudSideMessage] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._losses = 0
        self._last_error = ""
        self._diagnosis = Diagnosis(connection.why_silent, time.monotonic())

    def begin(self) -> None:
        """Open a stream; `ready` is called when frames may be sent."""
        self._stream = FrameStream(
            self._connection,
            lambda channel: pb_grpc.AggregatorServiceStub(channel).Collaborate(
                timeout=self._deadline_s, wait_for_ready=True, metadata=self._headers
            ),
            self._codec,
            self._traffic,
            self._receive,
            self._ended,
        )
        self._events.ready()

    def send(self, message: DeviceMessage) -> int:
        """The frame's size; 0 where there is no stream for it."""
        return 0 if self._stream is None else self._stream.send(message)

    def reconnect(self) -> None:
        """Give this stream up, and open another after a moment that grows."""
        self._drop(lost=True)
        backoff_s = min(MAX_BACKOFF_S, 0.01 * 2**self._losses)
        self._losses += 1
        loop = asyncio.get_running_loop()
        self._retry = loop.call_later(backoff_s, self.begin)

    def close(self) -> None:
        self._diagnosis.close()
        if self._retry is not None:
            self._retry.cancel()
        self._drop(flush_s=CANCEL_FLUSH_S)

    async def why_lost(self) -> str:
        """What the last stream ended with; where none ever ended, why there is no connection."""
        return self._last_error or await self._diagnosis.answer() or "no answer"

    def tick(self, now: float) -> None:
        """Time passed."""
        self._diagnosis.tick(now)

    def _receive(self, message: CloudSideMessage, size_bytes: int) -> None:
        self._diagnosis.heard(time.monotonic())
        self._losses = 0
        self._events.received(message, size_bytes)

    def _ended(self, error: BaseException | None) -> None:
        code, details = end_status(error)
        self._last_error = f"{code.name}: {details}"
        if code in FATAL and code is not grpc.StatusCode.DEADLINE_EXCEEDED:
            self._events.failed(refused_below(code, details or "the cloud refused"))
            return
        log.info("stream to the cloud ended", code=code.name, details=details)
        if code in BROKEN:
            self._events.broken(self._last_error)
        else:
            self._events.lost()

    def _drop(self, flush_s: float = 0.0, lost: bool = False) -> None:
        stream, self._stream = self._stream, None
        if stream is None:
            return
        task = asyncio.create_task(stream.close(flush_s, lost))
        self._farewells.add(task)
        task.add_done_callback(self._farewells.discard)
