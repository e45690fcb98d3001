"""An answer from two sides at the cloud: a `SideMachine` between its decoder and the device. A
stream costs nothing before its opening frame was checked, and leaves nothing behind."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tandem.core.errors import InvalidArgument, ProtocolError, ResourceExhausted
from tandem.core.tokens import EMPTY_PREFIX, PrefixMismatch, extend_prefix
from tandem.net.frame_stream import FRAME_HEADER_BYTES, MAX_QUEUED_FRAMES
from tandem.net.served_sessions import FrameWriter, converse
from tandem.net.stream_limits import ServedStream
from tandem.specdec.messages import GoingAway, Pong
from tandem.two_sided.protocol.decoder_messages import DecodingDraft, DecodingOpened
from tandem.two_sided.protocol.messages import (
    CloudSideMessage,
    CollaborationOpen,
    CollaborationOpened,
    SideOutput,
    ToDecoder,
    ToPeer,
)
from tandem.two_sided.protocol.side_machine import SideMachine
from tandem.two_sided.serving.decoder_link import DecoderEvents, DecoderLink
from tandem.two_sided.serving.peer_codec import CloudSideCodec
from tandem_api.aggregator.v1 import aggregator_pb2 as pb

CollaborationStream = ServedStream[pb.CollaborateRequest, pb.CollaborateResponse]

HASHED_TOGETHER = 4096
MAX_EARLY_BYTES = 4 * 2**20
"""Of frames that wait for the decoder: a device drafts a few tokens ahead, with distributions that
may be large."""

OpenDecoder = Callable[[CollaborationOpen, DecoderEvents], Awaitable[DecoderLink]]
MakeMachine = Callable[[CollaborationOpen, DecodingOpened], SideMachine]


@dataclass(frozen=True, slots=True)
class Collaboration:
    """A device's stream that is open, and its opening frame."""

    stream: CollaborationStream
    codec: CloudSideCodec
    opening: CollaborationOpen


class CloudSession:
    """The conversation after `open`."""

    def __init__(
        self, collaboration: Collaboration, *, open_decoder: OpenDecoder, make_machine: MakeMachine
    ) -> None:
        self._opening = collaboration.opening
        self._codec = collaboration.codec
        self._stream = collaboration.stream
        self._open_decoder = open_decoder
        self._make_machine = make_machine
        self._writer = FrameWriter(self._write, MAX_QUEUED_FRAMES)
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._decoder: DecoderLink | None = None
        self._machine: SideMachine | None = None
        self._early: list[pb.CollaborateRequest] = []
        self._early_bytes = 0

    async def run(self) -> None:
        """Serve until the device cancels or half-closes; raises what ended it otherwise."""
        work = (self._writer.run(), self._listen(), self._decode(), self._raise_failure())
        await converse(work, self._writer.end)

    def going_away(self, grace_s: float) -> None:
        """Ask the device to go on elsewhere."""
        if self._machine is not None:
            self._apply(self._machine.going_away(grace_s, time.monotonic()))
        else:
            self._put(GoingAway(**self._opening.answer_header, grace_s=grace_s))

    async def _decode(self) -> None:
        self._decoder = await self._open_decoder(
            self._opening,
            DecoderEvents(
                opened=lambda opened: self._take(lambda: self._begin(opened)),
                drafted=lambda draft: self._take(lambda: self._drafted(draft)),
                text=lambda text: None,
                restarted=self._restarted,
                failed=self._fail,
            ),
        )
        try:
            await self._raise_failure()
        finally:
            self._decoder.close()

    async def _raise_failure(self) -> None:
        """Wait for a failure and raise it."""
        await asyncio.shield(self._failed)

    async def _listen(self) -> None:
        while True:
            frame = await self._stream.read()
            if not isinstance(frame, pb.CollaborateRequest):  # EOF
                return
            if self._machine is not None:
                self._apply(self._receive(frame, self._machine))
            elif not frame.HasField("cancel"):
                self._receive_early(frame)
            if frame.HasField("cancel"):
                return

    def _receive_early(self, frame: pb.CollaborateRequest) -> None:
        """Answer a ping while retrieval and prefill take their time; keep any other frame as it
        came, since its meaning depends on the decoder's vocabulary."""
        if frame.session != self._opening.session:
            raise InvalidArgument("message", f"is of session {frame.session:08x}")
        if frame.HasField("ping"):
            self._put(Pong(**self._opening.answer_header, nonce=frame.ping.nonce))
            return
        if len(self._early) >= MAX_QUEUED_FRAMES:
            raise ResourceExhausted(f"frames: {MAX_QUEUED_FRAMES} came before `opened`")
        self._early_bytes += frame.ByteSize() + FRAME_HEADER_BYTES
        if self._early_bytes > MAX_EARLY_BYTES:
            raise ResourceExhausted(f"frames: {MAX_EARLY_BYTES} bytes came before `opened`")
        self._early.append(frame)

    def _receive(self, frame: pb.CollaborateRequest, machine: SideMachine) -> list[SideOutput]:
        message = self._codec.decode(frame)
        size_bytes = frame.ByteSize() + FRAME_HEADER_BYTES
        try:
            return machine.receive(message, time.monotonic(), size_bytes)
        except ProtocolError as error:  # the device's fault, not ours
            raise InvalidArgument("message", str(error)) from None

    async def _write(self, message: CloudSideMessage) -> None:
        frame = self._codec.encode(message)
        if self._machine is not None:
            self._machine.sized(frame.ByteSize() + FRAME_HEADER_BYTES)
        await self._stream.write(frame)

    def _take(self, event: Callable[[], Sequence[SideOutput]]) -> None:
        """Take an event of the decoder in; what it raises ends the stream with its status."""
        try:
            self._apply(event())
        except Exception as error:
            self._fail(error)

    def _begin(self, opened: DecodingOpened) -> list[SideOutput]:
        machine = self._machine = self._make_machine(self._opening, opened)
        self._codec.opened(opened.vocabulary_size)
        frames = machine.opened(opened.log_mass, time.monotonic())
        outputs = [_with_documents(output, opened) for output in frames]
        early, self._early = self._early, []
        for frame in early:
            outputs += self._receive(frame, machine)
        return outputs

    def _drafted(self, draft: DecodingDraft) -> list[SideOutput]:
        return [] if self._machine is None else self._machine.drafted(draft, time.monotonic())

    def _restarted(self) -> None:
        if self._machine is not None:
            self._machine.decoder_restarted()

    def _fail(self, error: Exception) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)
            self._failed.exception()  # heard, even if nobody waits for it any more

    def _apply(self, outputs: Sequence[SideOutput]) -> None:
        for output in outputs:
            match output:
                case ToDecoder(message):
                    assert self._decoder is not None, "it has opened"
                    self._decoder.send_target(message)
                case ToPeer(message):
                    self._put(message)

    def _put(self, message: Any) -> None:
        if len(self._writer) >= MAX_QUEUED_FRAMES:
            self._fail(ResourceExhausted(f"frames: {MAX_QUEUED_FRAMES} wait to be read"))
            return
        self._writer.put([message])


def _with_documents(output: SideOutput, decoder: DecodingOpened) -> SideOutput:
    """Return `opened` with the decoder's documents."""
    if not isinstance(output, ToPeer) or not isinstance(output.message, CollaborationOpened):
        return output
    complete = replace(
        output.message,
        documents=len(decoder.document_tokens),
        document_tokens=sum(decoder.document_tokens),
    )
    return ToPeer(complete)


async def open_collaboration(stream: CollaborationStream) -> Collaboration:
    """Read a stream's opening frame, checked. Raises InvalidArgument if the device says anything
    else, or nothing, and PrefixMismatch where its hash is not that of its text."""
    codec = CloudSideCodec()
    opening = codec.decode(await stream.first(pb.CollaborateRequest))
    if not isinstance(opening, CollaborationOpen):
        raise InvalidArgument("open", "must be the first message of a stream")
    text = (*opening.request.prompt_ids, *opening.request.committed_ids)
    if opening.base != len(text):
        raise InvalidArgument("base", f"{opening.base} is not the resume point {len(text)}")
    prefix = EMPTY_PREFIX
    for start in range(0, len(text), HASHED_TOGETHER):
        prefix = extend_prefix(prefix, text[start : start + HASHED_TOGETHER])
        await asyncio.sleep(0)  # no context length is known here: other streams go on meanwhile
    if prefix != opening.prefix_hash:
        raise PrefixMismatch(opening.base)
    return Collaboration(stream, codec, opening)
