"""An aggregator's stream to the decoder of its side, reopened where it broke.

Invariant: a target is answered by one text, in order, where text is wanted; what a lost stream left
unanswered is put again to the next. Must not import torch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import grpc

from tandem.protocol.decoding_messages import (
    DecodeRequestMessage,
    DecodeResponseMessage,
    DecodingDraft,
    DecodingOpen,
    DecodingOpened,
    DecodingTarget,
    DecodingText,
)
from tandem.protocol.messages import Cancel, GoingAway, Pong
from tandem.rpc.connection import Connection
from tandem.rpc.convert_decoding import AggregatorEnd
from tandem.rpc.frame_stream import FrameStream, Traffic
from tandem.rpc.status import refused_below
from tandem.rpc.stream_end import FATAL, end_status
from tandem.telemetry.logging import get_logger
from tandem.telemetry.tracing import Sent
from tandem_api.decoding.v1 import decoding_pb2_grpc as pb_grpc

log = get_logger(__name__)

MAX_REOPENS = 3
CANCEL_FLUSH_S = 0.2


@dataclass(frozen=True, slots=True)
class DecoderEvents:
    """What the link calls, on the event loop."""

    opened: Callable[[DecodingOpened], None]
    drafted: Callable[[DecodingDraft], None]
    text: Callable[[DecodingText], None]
    restarted: Callable[[], None]
    failed: Callable[[Exception], None]


class DecoderLink:
    """One request's decoding at this side."""

    def __init__(
        self,
        connection: Connection,
        opening: DecodingOpen,
        events: DecoderEvents,
        deadline_s: float,
        farewells: set[asyncio.Task[None]],
        headers: Sent = None,
    ) -> None:
        """`farewells` holds the closing of streams, which may outlast the link."""
        self._connection = connection
        self._opening = opening
        self._events = events
        self._deadline_s = deadline_s
        self._headers = headers
        self._farewells = farewells
        self._opened: DecodingOpened | None = None
        self._unanswered: deque[DecodingTarget] = deque()
        self._settled = list(opening.committed_ids)
        self._reopens = 0
        self._closed = False
        self._stream = self._open()

    def settle(self, target: DecodingTarget) -> None:
        """Tell the decoder what was decided."""
        if self._opening.wants_text:
            self._unanswered.append(target)
        else:
            self._settled.extend(target.token_ids)
        self._stream.send(target)

    def close(self) -> None:
        """The request is over here."""
        if self._closed:
            return
        self._closed = True
        self._stream.send(Cancel(self._opening.session, 0, 0, 0))
        self._farewell(self._stream, CANCEL_FLUSH_S)

    def _open(self) -> FrameStream[DecodeRequestMessage, DecodeResponseMessage]:
        stream: FrameStream[DecodeRequestMessage, DecodeResponseMessage] = FrameStream(
            self._connection,
            lambda channel: pb_grpc.DecodingServiceStub(channel).Decode(
                timeout=self._deadline_s, metadata=self._headers
            ),
            AggregatorEnd(self._opening.law),
            Traffic(),
            self._receive,
            self._ended,
        )
        stream.send(self._opening)
        return stream

    def _receive(self, message: DecodeResponseMessage, size_bytes: int) -> None:
        match message:
            case DecodingOpened():
                if self._opened is None:
                    self._opened = message
                    self._events.opened(message)
            case DecodingDraft():
                self._events.drafted(message)
            case DecodingText():
                if self._unanswered:
                    self._settled.extend(self._unanswered.popleft().token_ids)
                self._events.text(message)
            case GoingAway():
                self._reopen("the decoder is about to stop")
            case Pong():
                pass

    def _ended(self, error: BaseException | None) -> None:
        code, details = end_status(error)
        if code in FATAL or self._opened is None:
            self._events.failed(refused_below(code, details or "the decoder ended the stream"))
            return
        self._reopen(f"{code.name}: {details}")

    def _reopen(self, reason: str) -> None:
        """Begin again from what is settled, unless that was tried often enough."""
        self._reopens += 1
        log.warning("decoder lost", reason=reason, reopens=self._reopens)
        if self._reopens > MAX_REOPENS or self._opened is None:
            why = f"decoder: lost {self._reopens} times; the last time: {reason}"
            self._events.failed(refused_below(grpc.StatusCode.UNAVAILABLE, why))
            return
        self._farewell(self._stream, 0.0, lost=True)
        self._opening = replace(
            self._opening, prompt=self._opened.prompt_ids, committed_ids=tuple(self._settled)
        )
        self._events.restarted()
        self._stream = self._open()
        for target in self._unanswered:
            self._stream.send(replace(target, epoch=0))

    def _farewell(
        self,
        stream: FrameStream[DecodeRequestMessage, DecodeResponseMessage],
        flush_s: float,
        lost: bool = False,
    ) -> None:
        task = asyncio.create_task(stream.close(flush_s, lost))
        self._farewells.add(task)
        task.add_done_callback(self._farewells.discard)
