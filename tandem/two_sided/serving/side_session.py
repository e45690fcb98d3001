"""A request's `SideMachine` between this side's decoder and the other side: what the sessions of
both sides share. Whatever fails, here or at the decoder, is raised to whoever runs the session."""

import asyncio
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc

from tandem.net.connection import Connection
from tandem.net.frame_stream import FATAL
from tandem.net.session_runner import OpenStream, SessionRunner
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
from tandem.two_sided.serving.decoder_link import DecoderEvents, DecoderLink

CLOSING_S = 1.0

In = TypeVar("In")


class SideDecoding:
    """The decoder of one side, and what chooses the aggregating side of its answers."""

    def __init__(self, connection: Connection, profiling: Profiling) -> None:
        """Begin to serve; `connection` and `profiling` stay the caller's to close."""
        self.connection = connection
        self.closing_tasks: set[asyncio.Task[None]] = set()
        self._profiling = profiling

    def link(
        self, opening: DecodingOpen, events: DecoderEvents, deadline_s: float, headers: Sent
    ) -> DecoderLink:
        """Open a session at the decoder."""
        return DecoderLink(
            self.connection,
            opening,
            events=events,
            deadline_s=deadline_s,
            closing_tasks=self.closing_tasks,
            headers=headers,
        )

    def machine(
        self, side: Side, request: AggregationRequest, opened: DecodingOpened, **more: Any
    ) -> SideMachine:
        """Make the machine of a request that the decoder has taken; `more`: as of
        `SideMachine`."""
        profiler = self._profiling.profiler(opened.model_name, len(opened.document_tokens))
        policy = self._profiling.placement_policy(request, profiler)
        return SideMachine(side, request, placement_policy=policy, measurements=profiler, **more)

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
        """Prepare the session; its decoder is opened with `events`. For the other parameters see
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
        self.decoder: DecoderLink | None = None
        self._decoding = decoding
        self._machine: SideMachine | None = None
        self._wake = asyncio.Event()
        self.events = DecoderEvents(
            opened=lambda opened: self.dispatch(lambda: self.begin(opened)),
            drafted=lambda draft: self.dispatch(lambda: self.drafted(draft)),
            text=self.text,
            restarted=lambda: self.machine.decoder_restarted(),
            failed=self.fail,
        )

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

    def begin(self, opened: DecodingOpened) -> list[SideOutput]:
        """Make the machine: the decoder has opened."""
        self.opened = opened
        self._machine = self.make_machine(opened)
        return []

    def drafted(self, draft: SideDraftFrame) -> list[SideOutput]:
        return self.machine.drafted(draft, time.monotonic())

    def text(self, text: DecodingText) -> None:
        """Take the text of a target, where it was asked for."""

    def fail(self, error: Exception) -> None:
        self.failure = error
        self.notify()

    def receive(self, message: In, size_bytes: int, now: float) -> list[SideOutput]:
        peer_message: Any = message
        return self.machine.receive(peer_message, now, size_bytes)

    def perform(self, output: SideOutput) -> None:
        match output:
            case ToDecoder(message):
                assert self.decoder is not None, "it has opened"
                self.decoder.send_target(message)
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
        if self.decoder is not None:
            self.decoder.close()
