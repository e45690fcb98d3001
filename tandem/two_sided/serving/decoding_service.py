"""The gRPC service of a decoder, the same at both ends: sessions of decoding after documents, and
the transfer of documents' keys and values.

One stream is one session. It costs nothing before its opening frame was checked and admitted;
however it ends, its run is cancelled. A transfer counts in the service's sessions and KV budget
too, and no peer, however slow, holds these longer than `MAX_TRANSFER_S`."""

from __future__ import annotations

from typing import Any

import grpc

from tandem.core.errors import FailedPrecondition, InvalidArgument, Unavailable
from tandem.net.admission import Admission
from tandem.net.scopes import current_caller
from tandem.net.served_sessions import FrameWriter, converse
from tandem.net.status import errors_as_status
from tandem.net.stream_limits import ServedStream, StreamLimits, served
from tandem.net.tenant import paying_tenant
from tandem.telemetry.logging import get_logger, log_context
from tandem.telemetry.metric import OTHER
from tandem.telemetry.metrics import MethodSeries, Metrics
from tandem.telemetry.tracing import NO_TRACING, Tracing
from tandem.two_sided.decoding.document_decoder import DecodingRun, DocumentDecoder
from tandem.two_sided.decoding.kv_transfer import KvTransfer
from tandem.two_sided.protocol.messages import (
    KV_PART_BYTES,
    ContextDocument,
    DecodeResponseMessage,
    DecodingOpen,
    SideDraftFrame,
)
from tandem.two_sided.protocol.presets import AGGREGATION_PRESETS
from tandem.two_sided.serving.decoder_codec import (
    MAX_DOCUMENTS,
    DecoderCodec,
    document_from_proto,
    model_from_proto,
    model_to_proto,
    part_from_proto,
    part_to_proto,
)
from tandem.two_sided.serving.document_transfer import in_time, sequences_of
from tandem_api.decoding.v1 import decoding_pb2 as pb
from tandem_api.decoding.v1 import decoding_pb2_grpc as pb_grpc

log = get_logger(__name__)

Stream = ServedStream[pb.DecodeRequest, pb.DecodeResponse]
MAX_FORGOTTEN = 1024
"""Documents in one call."""
MAX_WAITING = 256
"""Frames to be written; while there are more, no further frame of the aggregator is read."""


class DecodingServicer(pb_grpc.DecodingServiceServicer):
    """Serves one decoder; sessions count in the `admission` that it shares with its service."""

    full_name = pb.DESCRIPTOR.services_by_name["DecodingService"].full_name

    def __init__(
        self,
        decoder: DocumentDecoder,
        *,
        admission: Admission,
        metrics: Metrics,
        device: str = "cpu",
        dtype: str = "float32",
        tracing: Tracing = NO_TRACING,
        exports: bool = False,
        imports: bool = False,
        streams: StreamLimits | None = None,
    ) -> None:
        """Set up the service.

        Args:
            exports: whether to give out documents' keys and values, from which a text can be
                guessed.
            imports: whether to accept keys and values, which then serve their importer alone."""
        self._decoder = decoder
        self._transfer = KvTransferService(decoder.kv_transfer, admission, exports, imports)
        self._admission = admission
        self._metrics = metrics
        self._tracing = tracing
        self._device = device
        self._dtype = dtype
        self._limits = streams or StreamLimits()
        self._sessions: set[_Session] = set()
        self._leaving = False

    def register(self, server: grpc.aio.Server) -> None:
        pb_grpc.add_DecodingServiceServicer_to_server(self, server)

    def going_away(self) -> None:
        """Refuse new sessions, and ask those there are to leave."""
        self._leaving = True
        for session in self._sessions:
            session.going_away()

    async def close(self) -> None:
        """Free the documents; after the last session."""
        await self._decoder.close()

    # The generated stubs know generators only; grpc.aio serves read/write handlers as well.
    async def Decode(  # type: ignore[override]  # noqa: N802  # the RPC's name
        self, request_iterator: object, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        async with served(context, self._limits) as stream:
            await self._converse(stream)

    async def ForgetDocuments(  # noqa: N802  # the RPC's name
        self, request: pb.ForgetDocumentsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ForgetDocumentsResponse:
        async with errors_as_status(context):
            if len(request.texts) > MAX_FORGOTTEN:
                why = f"{len(request.texts)}; at most {MAX_FORGOTTEN} at once"
                raise InvalidArgument("texts", why)
            forgotten = await self._decoder.forget(request.texts, request.owner)
            log.info("documents forgotten", asked=len(request.texts), there=forgotten)
            return pb.ForgetDocumentsResponse(forgotten=forgotten)
        raise AssertionError("abort ends the call")

    async def LookUpDocuments(  # noqa: N802  # the RPC's name
        self, request: pb.LookUpDocumentsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.LookUpDocumentsResponse:
        async with errors_as_status(context):
            return await self._transfer.look_up(request)
        raise AssertionError("abort ends the call")

    async def ExportDocuments(  # type: ignore[override]  # noqa: N802  # the RPC's name
        self, request: pb.ExportDocumentsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        async with served(context, self._limits) as stream:
            self._check_staying()
            await self._transfer.export(request, stream)

    async def ImportDocuments(  # type: ignore[override]  # noqa: N802  # the RPC's name
        self, request_iterator: object, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        async with served(context, self._limits) as stream:
            self._check_staying()
            await self._transfer.import_documents(stream)

    def _check_staying(self) -> None:
        if self._leaving:
            raise Unavailable("the decoder is stopping")

    async def _converse(self, stream: Stream) -> None:
        model = self._decoder.model
        codec = DecoderCodec(model.vocabulary_size, model.context_length, self._device, self._dtype)
        opening = codec.decode(await stream.first(pb.DecodeRequest))
        if not isinstance(opening, DecodingOpen):
            raise InvalidArgument("open", "must be the first message of a stream")
        self._check_staying()
        caller = current_caller().holder
        tenant = paying_tenant()
        preset = opening.preset if opening.preset in AGGREGATION_PRESETS else OTHER
        series = self._metrics.method(preset, model.model_name)
        with (
            self._admission.reserve(
                tenant=tenant, grammar=opening.processors.grammar is not None
            ) as reservation,
            log_context(session=f"{opening.session:08x}", preset=preset),
            self._tracing.span(
                "decode",
                stream.invocation_metadata(),
                session=f"{opening.session:08x}",
                preset=preset,
                documents=len(opening.documents),
            ) as span,
        ):
            # Only from here on may the session cost anything.
            spend = reservation.spend_grammar
            run = await self._decoder.prepare(opening, caller, tenant, spend)
            reservation.take_more(run.kv_bytes)
            session = _Session(run, codec, stream, series)
            self._sessions.add(session)
            log.info("decoding begun", documents=len(opening.documents))
            try:
                await session.serve()
            finally:
                self._sessions.discard(session)
                drafted = run.machine.drafted_tokens
                accepted = run.machine.accepted_tokens
                reservation.tokens = drafted
                series.draft_tokens.inc(drafted)
                series.accepted_tokens.inc(accepted)
                span.note(drafted=drafted, accepted=accepted)
                log.info("decoding ended", drafted=drafted, accepted=accepted)


class _Session:
    """The conversation after `open`. Drafts that have become void are dropped unsent."""

    def __init__(
        self, run: DecodingRun, codec: DecoderCodec, stream: Stream, series: MethodSeries
    ) -> None:
        self._run = run
        self._codec = codec
        self._stream = stream
        self._series = series
        self._writer = FrameWriter(self._write, MAX_WAITING)

    async def serve(self) -> None:
        """Serve until the aggregator cancels or half-closes."""
        self._writer.put([self._run.machine.opened()])
        work = (self._listen(), self._run.run(self._drafted), self._writer.run())
        await converse(work, self._writer.end)

    def going_away(self) -> None:
        self._writer.put([self._run.machine.going_away()])

    async def _listen(self) -> None:
        while not self._run.ended:
            await self._writer.room()
            frame = await self._stream.read()
            if not isinstance(frame, pb.DecodeRequest):  # EOF
                return
            self._writer.put(self._run.receive(self._codec.decode(frame)))

    def _drafted(self, draft: SideDraftFrame, queue_s: float) -> None:
        self._series.draft_step.observe(draft.decode_s)
        self._series.queue.observe(queue_s)
        self._writer.put([draft])

    async def _write(self, message: DecodeResponseMessage) -> None:
        if not isinstance(message, SideDraftFrame) or self._run.machine.stands(message):
            await self._stream.write(self._codec.encode(message))


ExportStream = ServedStream[pb.ExportDocumentsRequest, pb.ExportDocumentsResponse]
ImportStream = ServedStream[pb.ImportDocumentsRequest, pb.ImportDocumentsResponse]
MAX_TRANSFER_S = 3600.0
"""A large model on a laptop computes a long document for minutes before it is sent."""


class KvTransferService:
    """One decoder's end of transfers; `exports`, `imports`: whether it exports and imports
    documents."""

    def __init__(
        self, transfer: KvTransfer, admission: Admission, exports: bool, imports: bool
    ) -> None:
        self._transfer = transfer
        self._admission = admission
        self._exports = exports
        self._imports = imports

    async def look_up(self, request: pb.LookUpDocumentsRequest) -> pb.LookUpDocumentsResponse:
        model = model_to_proto(await self._transfer.model())
        documents = _documents_of(request)
        sequences = sequences_of(documents, joined=request.joined)
        cached = await self._transfer.cached(sequences, current_caller().holder)
        return pb.LookUpDocumentsResponse(model=model, exports=self._exports, cached=cached)

    async def export(self, request: pb.ExportDocumentsRequest, stream: ExportStream) -> None:
        """Write the parts of the documents, which stand in one sequence."""
        if not self._exports:
            raise FailedPrecondition(
                "document_kv: this decoder gives no documents' keys and values out; see"
                " TANDEM_DOCUMENT_KV_EXPORT of the verifier"
            )
        user = model_from_proto(request.model, "model")
        documents = _documents_of(request, fewest=1)
        (await self._transfer.model()).check_used_by(user)
        with self._admission.reserve(await self._transfer.size_bytes(documents)):
            async with in_time(MAX_TRANSFER_S):
                packed = await self._transfer.exported(documents)
                await stream.write(part_to_proto(len(packed)))
                for start in range(0, len(packed), KV_PART_BYTES):
                    await stream.write(part_to_proto(packed[start : start + KV_PART_BYTES]))
        log.info("documents exported", bytes=len(packed))

    async def import_documents(self, stream: ImportStream) -> None:
        """Read the parts of documents, and answer when there is room; the stream's end says that
        they are stored."""
        if not self._imports:
            raise FailedPrecondition("document_kv: this decoder takes no keys and values in")
        async with in_time(MAX_TRANSFER_S):
            first = await stream.first(pb.ImportDocumentsRequest, "documents")
            documents = _documents_of(first, fewest=1)
            size_bytes = part_from_proto(first.part)
            if not isinstance(size_bytes, int):
                raise InvalidArgument("size_bytes", "must come before the chunks")
            holder = current_caller().holder
            async with self._transfer.importing(documents, size_bytes, holder) as received:
                with self._admission.reserve(size_bytes):
                    await stream.write(pb.ImportDocumentsResponse())
                    await received(await _chunks(stream, size_bytes))
        log.info("documents imported", bytes=size_bytes)


def _documents_of(request: Any, fewest: int = 0) -> list[ContextDocument]:
    """Return the documents of a request that has so many at least."""
    if not fewest <= len(request.documents) <= MAX_DOCUMENTS:
        why = f"{len(request.documents)} are not in {fewest}…{MAX_DOCUMENTS}"
        raise InvalidArgument("documents", why)
    return list(map(document_from_proto, request.documents))


async def _chunks(stream: ImportStream, size_bytes: int) -> bytes:
    """Return all chunks, joined. Raises InvalidArgument for more or fewer bytes than were
    announced."""
    packed = bytearray()
    while len(packed) < size_bytes:
        frame = await stream.read()
        if not isinstance(frame, pb.ImportDocumentsRequest):  # EOF
            raise InvalidArgument("part", "the stream ended before it")
        chunk = part_from_proto(frame.part)
        if not isinstance(chunk, bytes):
            raise InvalidArgument("size_bytes", "came among the chunks")
        packed += chunk
    if len(packed) > size_bytes:
        raise InvalidArgument("chunk", f"more than the {size_bytes} bytes that were announced")
    return bytes(packed)
