"""Answers from documents on two sides, at the cloud: devices' streams, each admitted, traced, and
served with the cloud's documents by a `SideMachine` between the cloud's decoder and the device.
Invariant: a stream costs nothing before its opening frame was checked, and leaves nothing
behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from tandem.core.errors import InvalidArgument, ProtocolError, ResourceExhausted, Unavailable
from tandem.core.tokens import EMPTY_PREFIX, PrefixMismatch, extend_prefix
from tandem.net.admission import Admission
from tandem.net.connection import Connection
from tandem.net.frame_stream import FRAME_HEADER_BYTES, MAX_QUEUED_FRAMES
from tandem.net.served_sessions import FrameWriter, converse
from tandem.net.stream_limits import ServedStream
from tandem.specdec.messages import GoingAway, Pong
from tandem.telemetry.logging import get_logger, log_context
from tandem.telemetry.metric import OTHER
from tandem.telemetry.tracing import Headers, Sent, Span, Tracing
from tandem.two_sided.profiling.profile_sources import Profiling
from tandem.two_sided.protocol.messages import (
    CloudSideMessage,
    CollaborationOpen,
    ContextDocument,
    DecodingOpened,
    SideOutput,
)
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import AGGREGATION_PRESETS, Sources
from tandem.two_sided.protocol.side_machine import SideMachine
from tandem.two_sided.serving.document_transfer import (
    FetchStream,
    Search,
    documents_asked,
    give_documents,
)
from tandem.two_sided.serving.peer_codec import CloudSideCodec
from tandem.two_sided.serving.side_session import SideDecoding, SideSession
from tandem_api.aggregator.v1 import aggregator_pb2 as pb

log = get_logger(__name__)

CollaborationStream = ServedStream[pb.CollaborateRequest, pb.CollaborateResponse]

HASHED_TOGETHER = 4096
MAX_EARLY_BYTES = 4 * 2**20
"""Of frames that wait for the decoder: a device drafts a few tokens ahead, with distributions that
may be large."""


class CloudAnswers:
    """The cloud's part in all answers; used on the event loop only."""

    def __init__(
        self,
        *,
        decoder: Connection,
        profiling: Profiling,
        search: Search,
        admission: Admission,
        tracing: Tracing,
        request_timeout_s: float,
    ) -> None:
        """Begin to serve; `decoder`, the one beside the cloud, and `profiling` stay the caller's to
        close. Streams count as sessions of the `admission`."""
        self._decoding = SideDecoding(decoder, profiling)
        self._search = search
        self._admission = admission
        self._tracing = tracing
        self._request_timeout_s = request_timeout_s
        self._sessions: set[CloudSession] = set()
        self._leaving = False

    @property
    def open_streams(self) -> int:
        return self._admission.sessions

    def going_away(self) -> None:
        """Refuse new streams, and ask the devices of open sessions to go on elsewhere."""
        self._leaving = True
        for session in self._sessions:
            session.going_away()

    async def close(self) -> None:
        """Wait for streams that are being closed, a little."""
        await self._decoding.close()

    async def collaborate(self, stream: CollaborationStream) -> None:
        """Serve one device's answer until the device cancels or half-closes; raises what ended it
        otherwise. It costs nothing before its opening frame was checked."""
        codec = CloudSideCodec()
        opening = await read_opening(stream, codec)
        preset = opening.request.preset.name  # the device's; any text
        label = preset if preset in AGGREGATION_PRESETS else OTHER
        headers = stream.invocation_metadata()
        with self._admitted(
            "collaborate", headers, session=f"{opening.session:08x}", preset=label
        ) as span:
            session = CloudSession(
                stream,
                codec,
                opening,
                decoding=self._decoding,
                search=self._search,
                deadline_s=self._request_timeout_s,
                headers=span.headers(),
            )
            self._sessions.add(session)
            try:
                await session.run()
            finally:
                self._sessions.discard(session)

    async def fetch_documents(self, stream: FetchStream) -> None:
        """Serve one device's stream that asks for documents; raises what ended it."""
        find = await documents_asked(stream)
        with self._admitted("fetch documents", stream.invocation_metadata()) as span:
            await give_documents(
                stream,
                find,
                self._search,
                decoder=self._decoding.connection,
                deadline_s=self._request_timeout_s,
                headers=span.headers(),
            )

    @contextmanager
    def _admitted(self, what: str, headers: Headers | None, **named: str) -> Iterator[Span]:
        """Hold a place for a device's stream. Raises ResourceExhausted, or Unavailable while the
        service stops."""
        if self._leaving:
            raise Unavailable("the aggregator is stopping")
        with (
            self._admission.reserve(),
            log_context(**named),
            self._tracing.span(what, headers, **named) as span,
        ):
            log.info(f"{what}: begun")
            try:
                yield span
            finally:
                log.info(f"{what}: ended")


class CloudSession(SideSession[pb.CollaborateRequest]):
    """The conversation after `opening`, which `codec` has read."""

    def __init__(
        self,
        stream: CollaborationStream,
        codec: CloudSideCodec,
        opening: CollaborationOpen,
        *,
        decoding: SideDecoding,
        search: Search,
        deadline_s: float,
        headers: Sent,
    ) -> None:
        """Prepare to serve. `search` finds the cloud's documents; `deadline_s`, `headers`: for the
        decoder."""
        super().__init__(decoding)
        self._opening = opening
        self._codec = codec
        self._peer = stream
        self._search = search
        self._deadline_s = deadline_s
        self._headers = headers
        self._writer = FrameWriter(self._write, MAX_QUEUED_FRAMES)
        self._early: list[pb.CollaborateRequest] = []
        self._early_bytes = 0

    async def run(self) -> None:
        """Serve until the device cancels or half-closes; raises what ended it otherwise."""
        try:
            await converse((self._writer.run(), self._listen(), self._decode()), self._writer.end)
        finally:
            self.close()

    def going_away(self) -> None:
        """Ask the device to go on elsewhere."""
        if self._machine is None:
            self.send_to_peer(GoingAway(**self._opening.answer_header))
        else:
            self.dispatch(lambda: self.machine.going_away(time.monotonic()))

    async def _decode(self) -> NoReturn:
        """Open the decoder, and raise what fails."""
        request = self._opening.request
        documents: tuple[ContextDocument, ...] = ()
        if request.preset.sources is not Sources.DEVICE:
            documents = await self._search(request.query, request.documents, self._headers)
        decoding = replace(
            request.decoding_opening(Side.CLOUD, prompt=request.prompt_ids, documents=documents),
            vocabulary_hash=request.vocabulary_hash,
            vocabulary_size=request.vocabulary_size,
            end_ids=tuple(sorted(request.eos_token_ids)),
        )
        self.open_decoder(decoding, self._deadline_s, self._headers)
        while True:
            await self.raise_failure(None)
            await self.woken()

    def make_machine(self, opened: DecodingOpened) -> SideMachine:
        granted = replace(self._opening.request, max_tokens=opened.max_tokens)
        return self.machine_of(Side.CLOUD, granted, opened, peer_log_mass=self._opening.log_mass)

    async def _listen(self) -> None:
        while True:
            frame = await self._peer.read()
            if not isinstance(frame, pb.CollaborateRequest):  # EOF
                return
            if self._machine is not None:
                self.dispatch(partial(self._receive_frame, frame))
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
            self.send_to_peer(Pong(**self._opening.answer_header, nonce=frame.ping.nonce))
            return
        if len(self._early) >= MAX_QUEUED_FRAMES:
            raise ResourceExhausted(f"frames: {MAX_QUEUED_FRAMES} came before `opened`")
        self._early_bytes += frame.ByteSize() + FRAME_HEADER_BYTES
        if self._early_bytes > MAX_EARLY_BYTES:
            raise ResourceExhausted(f"frames: {MAX_EARLY_BYTES} bytes came before `opened`")
        self._early.append(frame)

    def _receive_frame(self, frame: pb.CollaborateRequest) -> list[SideOutput]:
        message = self._codec.decode(frame)
        size_bytes = frame.ByteSize() + FRAME_HEADER_BYTES
        try:
            return self.machine.receive(message, time.monotonic(), size_bytes)
        except ProtocolError as error:  # the device's fault, not ours
            raise InvalidArgument("message", str(error)) from None

    async def _write(self, message: CloudSideMessage) -> None:
        frame = self._codec.encode(message)
        if self._machine is not None:
            self._machine.sized(frame.ByteSize() + FRAME_HEADER_BYTES)
        await self._peer.write(frame)

    def begin(self, opened: DecodingOpened) -> list[SideOutput]:
        super().begin(opened)
        self._codec.opened(opened.vocabulary_size)
        now = time.monotonic()
        outputs = self.machine.opened(opened.log_mass, now, opened.document_tokens)
        early, self._early = self._early, []
        for frame in early:
            outputs += self._receive_frame(frame)
        return outputs

    def send_to_peer(self, message: Any) -> None:
        if len(self._writer) >= MAX_QUEUED_FRAMES:
            raise ResourceExhausted(f"frames: {MAX_QUEUED_FRAMES} wait to be read")
        self._writer.put([message])


async def read_opening(stream: CollaborationStream, codec: CloudSideCodec) -> CollaborationOpen:
    """Read a stream's opening frame, checked. Raises InvalidArgument if the device says anything
    else, or nothing, and PrefixMismatch where its hash is not that of its text."""
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
    return opening
