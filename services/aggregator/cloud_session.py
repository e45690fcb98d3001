"""One answer from two sides at the cloud: a `SideMachine` between its decoder and the device.

Invariant: a stream costs nothing before its opening frame was checked; however it ends, the decoder
is let go. The cloud keeps nothing for a device that is gone. Must not import torch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc

from services.aggregator.decoder_link import DecoderEvents, DecoderLink
from tandem.core.errors import InvalidArgument, ProtocolError, ResourceExhausted
from tandem.protocol.aggregating import SideMachine
from tandem.protocol.aggregation_messages import (
    CloudSideMessage,
    CollaborationOpen,
    CollaborationOpened,
    DeviceMessage,
)
from tandem.protocol.aggregation_outputs import SideOutput, ToDecoder, ToPeer
from tandem.protocol.decoding_messages import DecodingDraft, DecodingOpened
from tandem.protocol.messages import Cancel, GoingAway, Ping, Pong
from tandem.protocol.prefixes import PrefixedTokens
from tandem.rpc.convert_aggregation import CloudSideEnd
from tandem.rpc.frame_stream import FRAME_HEADER_BYTES, MAX_QUEUED_FRAMES
from tandem.rpc.status import Rejected
from tandem_api.aggregator.v1 import aggregator_pb2 as pb

Context = grpc.aio.ServicerContext[pb.CollaborateRequest, pb.CollaborateResponse]
OPEN_TIMEOUT_S = 10.0
LAST_WRITE_S = 1.0

OpenDecoder = Callable[[CollaborationOpen, DecoderEvents], Awaitable[DecoderLink]]
MakeMachine = Callable[[CollaborationOpen, DecodingOpened], SideMachine]


class CloudSession:
    """The conversation after `open`."""

    def __init__(
        self,
        opening: CollaborationOpen,
        codec: CloudSideEnd,
        context: Context,
        open_decoder: OpenDecoder,
        make_machine: MakeMachine,
    ) -> None:
        self._opening = opening
        self._codec = codec
        self._context = context
        self._open_decoder = open_decoder
        self._make_machine = make_machine
        self._outgoing: asyncio.Queue[CloudSideMessage | None] = asyncio.Queue()
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._decoder: DecoderLink | None = None
        self._machine: SideMachine | None = None
        self._early: list[tuple[DeviceMessage, int]] = []
        self._decoder_opened: DecodingOpened | None = None

    async def run(self) -> None:
        """Serve until the device cancels or half-closes; raises what ended it otherwise."""
        writing = asyncio.create_task(self._write())
        tasks = [writing]
        try:
            events = DecoderEvents(
                self._begin, self._drafted, lambda text: None, self._restarted, self._fail
            )
            listening = asyncio.create_task(self._listen())
            opening = asyncio.create_task(self._open(events))
            tasks += (listening, opening)
            ends = [writing, listening, self._over]
            await asyncio.wait([*ends, opening], return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                opening.result()
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for ended in filter(asyncio.Future.done, ends):
                ended.result()
        finally:
            if self._decoder is not None:
                self._decoder.close()
            await self._finish_writing(writing)
            for task in tasks:
                task.cancel()
            self._over.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def going_away(self, grace_s: float) -> None:
        """Ask the device to go on elsewhere."""
        if self._machine is not None:
            self._apply(self._machine.going_away(grace_s, time.monotonic()))
        else:
            opening = self._opening
            head = (opening.session, 0, opening.base, opening.prefix)
            self._outgoing.put_nowait(GoingAway(*head, grace_s=grace_s))

    async def _open(self, events: DecoderEvents) -> None:
        self._decoder = await self._open_decoder(self._opening, events)

    async def _listen(self) -> None:
        while True:
            frame = await self._context.read()
            if not isinstance(frame, pb.CollaborateRequest):  # EOF
                return
            message = self._codec.decode(frame)
            size_bytes = frame.ByteSize() + FRAME_HEADER_BYTES
            if self._machine is not None:
                self._receive(message, size_bytes)
            elif not isinstance(message, Cancel):
                self._receive_early(message, size_bytes)
            if isinstance(message, Cancel):
                return

    def _receive_early(self, message: DeviceMessage, size_bytes: int) -> None:
        """Finding and reading documents may take longer than a silent cloud is waited for, so pings
        are answered meanwhile; the rest waits for the machine."""
        if message.session != self._opening.session:
            raise InvalidArgument("message", f"is of session {message.session:08x}")
        if isinstance(message, Ping):
            head = (self._opening.session, 0, self._opening.base, self._opening.prefix)
            self._put(Pong(*head, nonce=message.nonce))
        elif len(self._early) >= MAX_QUEUED_FRAMES:
            raise ResourceExhausted(f"frames: {MAX_QUEUED_FRAMES} came before `opened`")
        else:
            self._early.append((message, size_bytes))

    def _receive(self, message: DeviceMessage, size_bytes: int) -> None:
        if isinstance(message, CollaborationOpen):
            raise InvalidArgument("open", "the stream is open already")
        assert self._machine is not None, "the decoder has opened"
        try:
            outputs = self._machine.receive(message, time.monotonic(), size_bytes)
        except ProtocolError as error:  # the device's fault, not ours
            raise InvalidArgument("message", str(error)) from None
        self._apply(outputs)

    async def _finish_writing(self, writing: asyncio.Task[None]) -> None:
        """Let the frame that is being written leave: cancelled in the middle, it would take the
        place of the call's status, which then never reaches the device."""
        while not self._outgoing.empty():
            self._outgoing.get_nowait()
        self._outgoing.put_nowait(None)
        await asyncio.wait([writing], timeout=LAST_WRITE_S)

    async def _write(self) -> None:
        while True:
            message = await self._outgoing.get()
            if message is None:
                return
            frame = self._codec.encode(message)
            if self._machine is not None:
                self._machine.sized(frame.ByteSize() + FRAME_HEADER_BYTES)
            await self._context.write(frame)

    def _begin(self, opened: DecodingOpened) -> None:
        self._decoder_opened = opened
        try:
            machine = self._make_machine(self._opening, opened)
        except Exception as error:  # ends the stream with its status
            self._fail(error)
            return
        self._machine = machine
        self._apply(machine.opened(opened.log_mass, time.monotonic()))
        early, self._early = self._early, []
        try:
            for message, size_bytes in early:
                self._receive(message, size_bytes)
        except Exception as error:  # ends the stream with its status
            self._fail(error)

    def _drafted(self, draft: DecodingDraft) -> None:
        if self._machine is None:
            return
        try:
            self._apply(self._machine.drafted(draft, time.monotonic()))
        except Exception as error:  # ends the stream with its status
            self._fail(error)

    def _restarted(self) -> None:
        if self._machine is not None:
            self._machine.decoder_restarted()

    def _fail(self, error: Exception) -> None:
        if not self._over.done():
            self._over.set_exception(error)

    def _apply(self, outputs: Sequence[SideOutput]) -> None:
        for output in outputs:
            match output:
                case ToDecoder(message):
                    assert self._decoder is not None, "it has opened"
                    self._decoder.settle(message)
                case ToPeer(message):
                    self._put(self._told(message))

    def _put(self, message: CloudSideMessage) -> None:
        if self._outgoing.qsize() >= MAX_QUEUED_FRAMES:
            self._fail(ResourceExhausted(f"frames: {MAX_QUEUED_FRAMES} wait to be read"))
            return
        self._outgoing.put_nowait(message)

    def _told(self, message: Any) -> CloudSideMessage:
        """`opened` says what the decoder said of documents and model."""
        told: CloudSideMessage = message
        if isinstance(told, CollaborationOpened) and self._decoder_opened is not None:
            return described(told, self._decoder_opened)
        return told


def described(told: CollaborationOpened, opened: DecodingOpened) -> CollaborationOpened:
    """With the model's name, and how many documents there are."""
    return CollaborationOpened(
        told.session,
        told.epoch,
        told.base,
        told.prefix,
        log_mass=told.log_mass,
        max_tokens=told.max_tokens,
        model_name=opened.model_name,
        documents=len(opened.documents),
        document_tokens=sum(use.tokens for use in opened.documents),
    )


async def first_frame(context: Context, codec: CloudSideEnd) -> CollaborationOpen:
    """The opening frame; InvalidArgument if the device says anything else, or nothing."""
    try:
        frame = await asyncio.wait_for(context.read(), OPEN_TIMEOUT_S)
    except TimeoutError:
        raise InvalidArgument("open", f"no frame within {OPEN_TIMEOUT_S:g} s") from None
    if not isinstance(frame, pb.CollaborateRequest):
        raise InvalidArgument("open", "the stream ended before it")
    opening = codec.decode(frame)
    if not isinstance(opening, CollaborationOpen):
        raise InvalidArgument("open", "must be the first message of a stream")
    text = PrefixedTokens((*opening.prompt_ids, *opening.committed_ids))
    if opening.base != len(text):
        raise InvalidArgument("base", f"{opening.base} is not the resume point {len(text)}")
    text.check(opening.base, opening.prefix)
    return opening


def wrong_side(here: str, wanted: str) -> Rejected:
    """The call is for the other side's aggregator."""
    why = f"side: this aggregator runs at the {here}; this call is for the {wanted}'s"
    return Rejected(grpc.StatusCode.FAILED_PRECONDITION, why)
