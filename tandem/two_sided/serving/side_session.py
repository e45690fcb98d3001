"""A request's `SideMachine` between this side's decoder and the other side: what the sessions of
both sides share. Whatever fails, here or at the decoder, is raised to whoever runs the session."""

import asyncio
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc

from tandem.core.errors import InvalidArgument, ProtocolError
from tandem.core.tokens import PrefixMismatch
from tandem.net.connection import Connection
from tandem.net.frame_stream import FATAL
from tandem.net.session_runner import OpenStream, SessionRunner
from tandem.net.status import Rejected
from tandem.telemetry.tracing import Sent
from tandem.two_sided.profiling.profile_sources import Profiling
from tandem.two_sided.protocol.messages import (
    AggregationRequest,
    CollaborationOpened,
    DecodingOpen,
    DecodingOpened,
    DecodingText,
    PeerMessage,
    SideDraftFrame,
    SideOutput,
    ToDecoder,
    ToPeer,
)
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.side_machine import SideMachine
from tandem.two_sided.serving.decoder_link import DecoderAnswer, DecoderLink

CLOSING_S = 1.0

In = TypeVar("In")


class SideDecoding:
    """The decoder of one side, and `profiling`, which chooses the aggregating side of its answers;
    both stay the caller's to close."""

    def __init__(self, connection: Connection, profiling: Profiling) -> None:
        self.connection = connection
        self.profiling = profiling
        self.closing_tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Wait for streams that are being closed, a little."""
        if self.closing_tasks:
            await asyncio.wait(self.closing_tasks, timeout=CLOSING_S)


async def never_silent() -> str:
    return ""


class SideSession(SessionRunner[Any, In, SideOutput]):
    """One side of an answer. `opened`: the decoder's, once it has taken the request."""

    def __init__(
        self,
        decoding: SideDecoding,
        open_stream: OpenStream[In, Any] | None = None,
        *,
        why_silent: Callable[[], Awaitable[str]] = never_silent,
        spread: int = 0,
        fatal: frozenset[grpc.StatusCode] = FATAL,
    ) -> None:
        """Prepare the session, whose decoder is to be opened. For the other parameters see
        `SessionRunner`."""
        super().__init__(
            open_stream,
            CollaborationOpened,
            closing_tasks=decoding.closing_tasks,
            why_silent=why_silent,
            spread=spread,
            fatal=fatal,
        )
        self.opened: DecodingOpened | None = None
        self._decoding = decoding
        self._decoder: DecoderLink | None = None
        self._machine: SideMachine | None = None
        self._wake = asyncio.Event()

    @property
    def machine(self) -> SideMachine:
        assert self._machine is not None, "the decoder has opened"
        return self._machine

    @abstractmethod
    def make_machine(self, opened: DecodingOpened) -> SideMachine:
        """Return the machine of the request, which the decoder has taken."""

    @abstractmethod
    def send_to_peer(self, message: PeerMessage) -> None:
        """Put a frame on the stream to the other side."""

    def open_decoder(self, opening: DecodingOpen, deadline_s: float, headers: Sent) -> None:
        """Open a session at this side's decoder."""
        self._decoder = DecoderLink(
            self._decoding.connection,
            opening,
            on_answer=self._decoder_answered,
            on_restart=lambda: self.machine.decoder_restarted(),
            on_failure=self._decoder_failed,
            deadline_s=deadline_s,
            closing_tasks=self._decoding.closing_tasks,
            headers=headers,
        )

    def machine_of(
        self, side: Side, request: AggregationRequest, opened: DecodingOpened, **more: Any
    ) -> SideMachine:
        """Return the machine of a request with what it is measured by; `more`: as of
        `SideMachine`."""
        profiling = self._decoding.profiling
        profiler = profiling.profiler(opened.model_name, len(opened.document_tokens))
        policy = profiling.placement_policy(request, profiler)
        return SideMachine(side, request, placement_policy=policy, measurements=profiler, **more)

    def begin(self, opened: DecodingOpened) -> list[SideOutput]:
        """Make the machine: the decoder has opened."""
        self.opened = opened
        self._machine = self.make_machine(opened)
        return []

    def text(self, text: DecodingText) -> None:
        """Take the text of a target, where it was asked for."""

    def receive(self, message: In, size_bytes: int, now: float) -> list[SideOutput]:
        peer_message: Any = message
        return self.machine.receive(peer_message, now, size_bytes)

    def perform(self, output: SideOutput) -> None:
        match output:
            case ToDecoder(message):
                assert self._decoder is not None, "it has opened"
                self._decoder.send_target(message)
            case ToPeer(message):
                self.send_to_peer(message)

    def cancel_machine(self) -> list[SideOutput]:
        return [] if self._machine is None else self._machine.cancel()

    def notify(self) -> None:
        self._wake.set()

    async def woken(self) -> None:
        """Wait until something has happened since the last time."""
        await self._wake.wait()
        self._wake.clear()

    def close(self) -> None:
        super().close()
        if self._decoder is not None:
            self._decoder.close()

    def _decoder_answered(self, answer: DecoderAnswer) -> None:
        match answer:
            case DecodingOpened():
                self.dispatch(lambda: self.begin(answer))
                self.connect()
            case SideDraftFrame():
                self.dispatch(lambda: self._drafted(answer))
            case DecodingText():
                self.text(answer)

    def _drafted(self, draft: SideDraftFrame) -> list[SideOutput]:
        try:
            return self.machine.drafted(draft, time.monotonic())
        except (ProtocolError, InvalidArgument, PrefixMismatch) as error:
            why = f"decoder: broke the conversation: {error}"
            raise Rejected(grpc.StatusCode.DATA_LOSS, why) from None

    def _decoder_failed(self, error: Exception) -> None:
        self.failure = error
        self.notify()
