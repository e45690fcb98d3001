"""An aggregator's stream to the decoder of its side, opened anew after a loss, later after each.
Where text is asked for, each target is answered by one text, in order; unanswered targets are sent
again after a loss."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import grpc

from tandem.net.connection import Connection
from tandem.net.frame_stream import FATAL, FrameStream, Traffic, end_status
from tandem.net.session_runner import CANCEL_FLUSH_S, backoff_s
from tandem.net.status import upstream_rejection
from tandem.specdec.messages import Cancel, GoingAway, Ping
from tandem.telemetry.logging import get_logger
from tandem.telemetry.tracing import Sent
from tandem.two_sided.protocol.messages import (
    DecodeRequestMessage,
    DecodeResponseMessage,
    DecodingOpen,
    DecodingOpened,
    DecodingTarget,
    DecodingText,
    SideDraftFrame,
)
from tandem.two_sided.serving.decoder_codec import AggregatorCodec
from tandem_api.decoding.v1 import decoding_pb2_grpc as pb_grpc

log = get_logger(__name__)

MAX_LOSSES = 3
"""In a row, without a draft or a text between them."""
SIGN_OF_LIFE_S = 2.0
"""A decoder leaves aggregators that say nothing; this one may have to wait long for the cloud."""


DecoderAnswer = DecodingOpened | SideDraftFrame | DecodingText


class DecoderLink:
    """One request's decoding at this side."""

    def __init__(
        self,
        connection: Connection,
        opening: DecodingOpen,
        *,
        on_answer: Callable[[DecoderAnswer], None],
        on_restart: Callable[[], None],
        on_failure: Callable[[Exception], None],
        deadline_s: float,
        closing_tasks: set[asyncio.Task[None]],
        headers: Sent = None,
    ) -> None:
        """Open a stream to the decoder. All callbacks are called on the event loop.

        Args:
            on_answer: called with the first `opened`, and with each draft and text.
            on_restart: called when the decoder begins again from the committed text.
            on_failure: called with what ended the decoding.
            closing_tasks: holds the closing of streams, which may outlast the link."""
        self._connection = connection
        self._opening = opening
        self._on_answer = on_answer
        self._on_restart = on_restart
        self._on_failure = on_failure
        self._deadline_s = deadline_s
        self._headers = headers
        self._closing_tasks = closing_tasks
        self._opened: DecodingOpened | None = None
        self._unanswered: deque[DecodingTarget] = deque()
        self._committed_ids = list(opening.committed_ids)
        self._losses = self._attempts = 0
        """Since the decoder last made anything; an attempt is a stream after the first."""
        self._closed = False
        self._retry: asyncio.TimerHandle | None = None
        self._stream: FrameStream[DecodeRequestMessage, DecodeResponseMessage] | None = self._open()
        self._live()

    def send_target(self, target: DecodingTarget) -> None:
        """Send the decoder what was decided."""
        if self._opening.wants_text:
            self._unanswered.append(target)
        else:
            self._committed_ids.extend(target.token_ids)
        if self._stream is not None:
            self._stream.send(target)

    def close(self) -> None:
        """End the request's decoding here."""
        if self._closed:
            return
        self._closed = True
        self._living.cancel()
        if self._retry is not None:
            self._retry.cancel()
        if self._stream is not None:
            self._stream.send(Cancel(self._opening.session, 0, 0))
            self._stream.close_in_background(self._closing_tasks, CANCEL_FLUSH_S)

    def _live(self) -> None:
        loop = asyncio.get_running_loop()
        self._living = loop.call_later(SIGN_OF_LIFE_S, self._live)
        if self._opened is not None and self._stream is not None:
            self._stream.send(Ping(self._opening.session, 0, 0, nonce=0))

    def _open(self) -> FrameStream[DecodeRequestMessage, DecodeResponseMessage]:
        stream: FrameStream[DecodeRequestMessage, DecodeResponseMessage] = FrameStream(
            self._connection,
            lambda channel: pb_grpc.DecodingServiceStub(channel).Decode(
                timeout=self._deadline_s, metadata=self._headers
            ),
            codec=AggregatorCodec(self._opening.probs),
            traffic=Traffic(),
            on_frame=self._receive,
            on_end=self._ended,
        )
        stream.send(self._opening)
        return stream

    def _receive(self, message: DecodeResponseMessage, size_bytes: int) -> None:
        match message:
            case DecodingOpened():
                if self._opened is None:
                    self._opened = message
                    self._on_answer(message)
            case SideDraftFrame():
                self._losses = self._attempts = 0
                self._on_answer(message)
            case DecodingText():
                self._losses = self._attempts = 0
                if self._unanswered:
                    self._committed_ids.extend(self._unanswered.popleft().token_ids)
                self._on_answer(message)
            case GoingAway() if self._opened is not None:  # else it takes the request, or ends
                self._reopen(self._opened, lost=False)

    def _ended(self, error: BaseException | None) -> None:
        code, details = end_status(error)
        if code in FATAL or self._opened is None:
            self._on_failure(upstream_rejection(code, details or "the decoder ended the stream"))
            return
        self._losses += 1
        reason = f"{code.name}: {details}"
        log.warning("decoder lost", reason=reason, losses=self._losses)
        if self._losses > MAX_LOSSES:
            why = f"decoder: lost {self._losses} times; the last time: {reason}"
            self._on_failure(upstream_rejection(grpc.StatusCode.UNAVAILABLE, why))
            return
        self._reopen(self._opened, lost=True)

    def _reopen(self, opened: DecodingOpened, lost: bool) -> None:
        """Begin again from the committed text: at first at once, then after a while, as a decoder
        that restarts has lost all its sessions. Only a stream that is `lost` takes its channel out
        of use: the one of a decoder that is about to stop is shared by other answers, and goes on
        to another replica by itself."""
        if self._stream is not None:
            self._stream.close_in_background(self._closing_tasks, lost=lost)
            self._stream = None
        delay_s = backoff_s(self._attempts, self._opening.session)
        self._attempts += 1
        loop = asyncio.get_running_loop()
        self._retry = loop.call_later(delay_s, self._open_again, opened)

    def _open_again(self, opened: DecodingOpened) -> None:
        self._opening = replace(
            self._opening, prompt=opened.prompt_ids, committed_ids=tuple(self._committed_ids)
        )
        self._on_restart()
        try:
            stream = self._stream = self._open()
        except Exception as error:  # nobody awaits this
            self._on_failure(error)
            return
        for target in self._unanswered:
            stream.send(target)
