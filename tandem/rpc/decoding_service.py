"""The gRPC side of two-sided decoding, the same at both ends: one stream is one session.

Invariant: a session costs nothing before its opening frame was checked and admitted; however the
stream ends, its run is cancelled, which frees what it holds. Must not import torch; what decodes
comes from outside.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import grpc

from tandem.core.errors import InvalidArgument, Unavailable
from tandem.policy.aggregation_presets import AGGREGATION_PRESETS
from tandem.protocol.decoding_messages import (
    DecodeRequestMessage,
    DecodeResponseMessage,
    DecodingDraft,
    DecodingOpen,
    DecodingOpened,
)
from tandem.protocol.messages import GoingAway
from tandem.rpc.admission import Admission
from tandem.rpc.convert_decoding import DecoderEnd
from tandem.rpc.document_transfer import (
    DocumentTransfer,
    Exchange,
    ExportContext,
    ImportContext,
)
from tandem.rpc.status import errors_as_status
from tandem.telemetry.logging import get_logger, log_context
from tandem.telemetry.metric import OTHER
from tandem.telemetry.metrics import MethodSeries, Metrics
from tandem.telemetry.tracing import NO_TRACING, Tracing
from tandem_api.decoding.v1 import decoding_pb2 as pb
from tandem_api.decoding.v1 import decoding_pb2_grpc as pb_grpc

log = get_logger(__name__)

Context = grpc.aio.ServicerContext[pb.DecodeRequest, pb.DecodeResponse]
OPEN_TIMEOUT_S = 10.0
LAST_WRITE_S = 1.0
MAX_FORGOTTEN = 1024
"""Documents in one call."""
MAX_WAITING = 256
"""Frames to be written; while there are more, no further frame of the aggregator is read."""


class Run(Protocol):
    """One session, checked; see `tandem.engine.decoding_run.DecodingRun`."""

    @property
    def kv_bytes(self) -> int: ...
    @property
    def ended(self) -> bool: ...
    @property
    def drafted_tokens(self) -> int: ...
    @property
    def accepted_tokens(self) -> int: ...
    def opened(self) -> DecodingOpened: ...
    def receive(self, message: DecodeRequestMessage) -> list[DecodeResponseMessage]: ...
    def going_away(self, grace_s: float) -> GoingAway: ...
    def stale(self, draft: DecodingDraft) -> bool: ...
    async def run(self, send: Callable[[DecodingDraft], None]) -> None: ...


class Decoder(Protocol):
    """What makes a run of an opening."""

    @property
    def vocabulary_size(self) -> int: ...
    @property
    def model_name(self) -> str: ...
    @property
    def exchange(self) -> Exchange: ...
    async def prepare(self, opening: DecodingOpen) -> Run: ...
    async def forget(self, texts: Sequence[str]) -> int: ...
    async def close(self) -> None: ...


class DecodingServicer(pb_grpc.DecodingServiceServicer):
    """Serves one decoder; sessions count in the `admission` that it shares with its service."""

    full_name = pb.DESCRIPTOR.services_by_name["DecodingService"].full_name

    def __init__(
        self,
        decoder: Decoder,
        admission: Admission,
        metrics: Metrics,
        device: str = "cpu",
        dtype: str = "float32",
        tracing: Tracing = NO_TRACING,
        exports: bool = False,
    ) -> None:
        """`exports`: whether documents' keys and values are given out. Public ones only: a text can
        be guessed from them."""
        self._decoder = decoder
        self._transfer = DocumentTransfer(decoder.exchange, admission, exports)
        self._admission = admission
        self._metrics = metrics
        self._tracing = tracing
        self._device, self._dtype = device, dtype
        self._streams: set[_Stream] = set()
        self._leaving = False

    def register(self, server: grpc.aio.Server) -> None:
        pb_grpc.add_DecodingServiceServicer_to_server(self, server)

    def going_away(self, grace_s: float) -> None:
        """Refuse new sessions, and ask those there are to leave."""
        self._leaving = True
        for stream in self._streams:
            stream.going_away(grace_s)

    async def close(self) -> None:
        """Free the documents; after the last session."""
        await self._decoder.close()

    # The generated stubs know generators only; grpc.aio serves read/write handlers as well.
    async def Decode(  # type: ignore[override]  # noqa: N802  # the RPC's name
        self, request_iterator: object, context: Context
    ) -> None:
        async with errors_as_status(context):
            await self._converse(context)

    async def ForgetDocuments(  # noqa: N802  # the RPC's name
        self, request: pb.ForgetDocumentsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ForgetDocumentsResponse:
        async with errors_as_status(context):
            if len(request.texts) > MAX_FORGOTTEN:
                why = f"{len(request.texts)}; at most {MAX_FORGOTTEN} at once"
                raise InvalidArgument("texts", why)
            forgotten = await self._decoder.forget(request.texts)
            log.info("documents forgotten", asked=len(request.texts), there=forgotten)
            return pb.ForgetDocumentsResponse(forgotten=forgotten)
        raise AssertionError("abort ends the call")

    async def LookUpDocuments(  # noqa: N802  # the RPC's name
        self,
        request: pb.LookUpDocumentsRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> pb.LookUpDocumentsResponse:
        async with errors_as_status(context):
            return await self._transfer.look_up(request)
        raise AssertionError("abort ends the call")

    async def ExportDocument(  # type: ignore[override]  # noqa: N802  # the RPC's name
        self, request: pb.ExportDocumentRequest, context: ExportContext
    ) -> None:
        async with errors_as_status(context):
            self._check_staying()
            await self._transfer.give(request, context)

    async def ImportDocument(  # type: ignore[override]  # noqa: N802  # the RPC's name
        self, request_iterator: object, context: ImportContext
    ) -> None:
        async with errors_as_status(context):
            self._check_staying()
            await self._transfer.take(context)

    def _check_staying(self) -> None:
        if self._leaving:
            raise Unavailable("the decoder is stopping")

    async def _converse(self, context: Context) -> None:
        codec = DecoderEnd(self._decoder.vocabulary_size, self._device, self._dtype)
        opening = codec.decode(await _first_frame(context))
        if not isinstance(opening, DecodingOpen):
            raise InvalidArgument("open", "must be the first message of a stream")
        self._check_staying()
        run = await self._decoder.prepare(opening)
        preset = opening.preset if opening.preset in AGGREGATION_PRESETS else OTHER
        series = self._metrics.method(preset, self._decoder.model_name)
        with (
            self._admission.reserve(run.kv_bytes),
            log_context(session=f"{opening.session:08x}", preset=preset),
            self._tracing.span(
                "decode",
                context.invocation_metadata(),
                session=f"{opening.session:08x}",
                preset=preset,
                documents=len(opening.documents),
            ) as span,
        ):
            stream = _Stream(run, codec, context, series)
            self._streams.add(stream)
            log.info("decoding begun", documents=len(opening.documents))
            try:
                await stream.serve()
            finally:
                self._streams.discard(stream)
                series.draft_tokens.inc(run.drafted_tokens)
                series.accepted_tokens.inc(run.accepted_tokens)
                span.note(drafted=run.drafted_tokens, accepted=run.accepted_tokens)
                log.info("decoding ended", drafted=run.drafted_tokens, kept=run.accepted_tokens)


class _Stream:
    """The conversation after `open`. Drafts that have become void are dropped unsent."""

    def __init__(self, run: Run, codec: DecoderEnd, context: Context, series: MethodSeries) -> None:
        self._run = run
        self._codec = codec
        self._context = context
        self._series = series
        self._waiting: deque[DecodeResponseMessage] = deque()
        self._due = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._ending = False

    async def serve(self) -> None:
        """Until the aggregator cancels or half-closes."""
        self._put([self._run.opened()])
        writing = asyncio.create_task(self._write())
        working = [
            asyncio.create_task(self._listen()),
            asyncio.create_task(self._run.run(self._hear)),
        ]
        try:
            done, _ = await asyncio.wait([*working, writing], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in working:
                task.cancel()
            await self._finish(writing)
            await asyncio.gather(*working, writing, return_exceptions=True)

    async def _finish(self, writing: asyncio.Task[None]) -> None:
        """Let the frame that is being written leave: cancelled in the middle, it would take the
        place of the call's status, which then never reaches the aggregator."""
        self._ending = True
        self._due.set()
        await asyncio.wait([writing], timeout=LAST_WRITE_S)
        writing.cancel()

    def going_away(self, grace_s: float) -> None:
        self._put([self._run.going_away(grace_s)])

    async def _listen(self) -> None:
        while not self._run.ended:
            await self._room.wait()
            frame = await self._context.read()
            if not isinstance(frame, pb.DecodeRequest):  # EOF
                return
            self._put(self._run.receive(self._codec.decode(frame)))

    def _hear(self, draft: DecodingDraft) -> None:
        self._series.draft_step.observe(draft.cost.decode_s)
        self._put([draft])

    def _put(self, messages: Sequence[DecodeResponseMessage]) -> None:
        self._waiting.extend(messages)
        self._due.set()
        if len(self._waiting) > MAX_WAITING:
            self._room.clear()

    async def _write(self) -> None:
        while not self._ending:
            while self._waiting and not self._ending:
                message = self._waiting.popleft()
                if not (isinstance(message, DecodingDraft) and self._run.stale(message)):
                    await self._context.write(self._codec.encode(message))
            self._due.clear()
            self._room.set()
            if not self._ending:
                await self._due.wait()


async def _first_frame(context: Context) -> pb.DecodeRequest:
    """The opening frame, or InvalidArgument if the aggregator says nothing or hangs up."""
    try:
        frame: Any = await asyncio.wait_for(context.read(), OPEN_TIMEOUT_S)
    except TimeoutError:
        raise InvalidArgument("open", f"no frame within {OPEN_TIMEOUT_S:g} s") from None
    if not isinstance(frame, pb.DecodeRequest):
        raise InvalidArgument("open", "the stream ended before it")
    return frame
