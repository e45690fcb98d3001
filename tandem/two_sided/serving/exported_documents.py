"""The cloud's documents for a device that generates alone: texts, and their keys and values. Only
what was found for this stream's query can be asked for; parts are relayed as the device reads
them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import grpc

from tandem.core.errors import InvalidArgument
from tandem.net.connection import Connection
from tandem.net.status import Rejected, actual_status, details_of, upstream_rejection
from tandem.specdec.messages import Cancel
from tandem.telemetry.tracing import Sent
from tandem.two_sided.protocol.decoder_messages import ContextDocument
from tandem.two_sided.protocol.document_kv import (
    DocumentPart,
    DocumentRequest,
    KvModel,
    KvUnavailable,
)
from tandem.two_sided.protocol.messages import CollaborationOpen, CollaborationOpened
from tandem.two_sided.serving.cloud_session import Stream
from tandem.two_sided.serving.decoder_codec import document_to_proto
from tandem.two_sided.serving.decoder_link import look_up_documents
from tandem.two_sided.serving.document_kv_codec import (
    model_from_proto,
    model_to_proto,
    part_from_proto,
)
from tandem.two_sided.serving.peer_codec import CloudSideCodec
from tandem_api.aggregator.v1 import aggregator_pb2 as pb
from tandem_api.decoding.v1 import decoding_pb2
from tandem_api.decoding.v1 import decoding_pb2_grpc as pb_grpc


class ExportedDocuments:
    """One device's stream that asks for documents."""

    def __init__(
        self,
        opening: CollaborationOpen,
        codec: CloudSideCodec,
        stream: Stream,
        decoder: Connection,
        deadline_s: float,
        headers: Sent = None,
    ) -> None:
        self._opening, self._codec, self._stream, self._decoder = opening, codec, stream, decoder
        self._deadline_s, self._headers = deadline_s, headers

    async def serve(self, search: Callable[[], Awaitable[tuple[ContextDocument, ...]]]) -> None:
        """Send what `search` finds, until the device cancels or half-closes. Raises Rejected,
        KvModelMismatch, KvUnavailable or InvalidArgument."""
        opening = self._opening
        if opening.document_kv is not None:
            await self._check_model(opening.document_kv)
        found = await search()
        await self._stream.write(self._codec.encode(_opened(opening, found)))
        if opening.document_kv is None:
            return
        try:
            async with asyncio.timeout(self._deadline_s):
                while (index := await self._next_index(len(found))) is not None:
                    await self._relay(found[index], opening.document_kv)
        except TimeoutError:
            why = f"document_kv: not over after {self._deadline_s:g} s"
            raise Rejected(grpc.StatusCode.DEADLINE_EXCEEDED, why) from None

    async def _check_model(self, user: KvModel) -> None:
        here = await look_up_documents(self._decoder, (), self._deadline_s, self._headers)
        if not here.exports:
            raise KvUnavailable("document_kv: the cloud's decoder gives no keys and values out")
        model_from_proto(here.model, "model").check_used_by(user)

    async def _next_index(self, count: int) -> int | None:
        """Which document the device asks for next; None when it is done."""
        frame = await self._stream.read()
        if not isinstance(frame, pb.CollaborateRequest):  # EOF
            return None
        message = self._codec.decode(frame)
        if isinstance(message, Cancel):
            return None
        if not isinstance(message, DocumentRequest):
            raise InvalidArgument("message", "only documents can be asked for on this stream")
        if message.index >= count:
            raise InvalidArgument("index", f"{message.index} is none of {count} documents")
        return message.index

    async def _relay(self, document: ContextDocument, user: KvModel) -> None:
        request = decoding_pb2.ExportDocumentRequest(
            document=document_to_proto(document), model=model_to_proto(user)
        )
        async with self._decoder.channel() as channel:
            call = pb_grpc.DecodingServiceStub(channel).ExportDocument(
                request, timeout=self._deadline_s, metadata=self._headers
            )
            try:
                async for answer in call:
                    part = DocumentPart(*self._opening.head, part=part_from_proto(answer.part))
                    await self._stream.write(self._codec.encode(part))
            except grpc.aio.AioRpcError as error:
                code, details = actual_status(error.code(), details_of(error))
                raise upstream_rejection(code, f"decoder: {details}") from None
            finally:
                call.cancel()


def _opened(
    opening: CollaborationOpen, documents: Sequence[ContextDocument]
) -> CollaborationOpened:
    return CollaborationOpened(
        *opening.head,
        log_mass=-float("inf"),
        max_tokens=opening.request.max_tokens,
        documents=len(documents),
        texts=tuple(documents),
    )
