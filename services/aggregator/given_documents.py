"""The cloud's documents on their way to a device that generates alone: texts, and what was made of
them.

Invariant: what travels was found here for this stream's query, and nothing else can be asked for;
keys and values pass through, a part at a time, as fast as the device takes them. Must not import
torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import grpc

from services.aggregator.cloud_session import Context
from tandem.core.errors import InvalidArgument
from tandem.protocol.aggregation_messages import CollaborationOpen, CollaborationOpened
from tandem.protocol.decoding_messages import Document
from tandem.protocol.document_kv import DocumentPart, DocumentWanted, KvModel, KvUnavailable
from tandem.protocol.messages import Cancel
from tandem.rpc.connection import Connection
from tandem.rpc.convert_aggregation import CloudSideEnd
from tandem.rpc.convert_decoding import document_to_proto
from tandem.rpc.convert_document_kv import model_from_proto, model_to_proto, part_from_proto
from tandem.rpc.status import Rejected, details_of, known_status, refused_below
from tandem.telemetry.tracing import Sent
from tandem_api.aggregator.v1 import aggregator_pb2 as pb
from tandem_api.decoding.v1 import decoding_pb2
from tandem_api.decoding.v1 import decoding_pb2_grpc as pb_grpc


class GivenDocuments:
    """One device's stream that asks for documents."""

    def __init__(
        self,
        opening: CollaborationOpen,
        codec: CloudSideEnd,
        context: Context,
        decoder: Connection,
        deadline_s: float,
        headers: Sent = None,
    ) -> None:
        self._opening = opening
        self._codec = codec
        self._context = context
        self._decoder = decoder
        self._deadline_s = deadline_s
        self._headers = headers

    async def give(self, search: Callable[[], Awaitable[tuple[Document, ...]]]) -> None:
        """What `search` finds, until the device cancels or half-closes. Raises Rejected,
        KvModelMismatch, KvUnavailable or InvalidArgument."""
        opening = self._opening
        if opening.document_kv is not None:
            await self._check_model(opening.document_kv)
        found = await search()
        await self._context.write(self._codec.encode(_opened(opening, found)))
        if opening.document_kv is None:
            return
        try:
            async with asyncio.timeout(self._deadline_s):
                while (wanted := await self._wanted(len(found))) is not None:
                    await self._relay(found[wanted], opening.document_kv)
        except TimeoutError:
            why = f"document_kv: not over after {self._deadline_s:g} s"
            raise Rejected(grpc.StatusCode.DEADLINE_EXCEEDED, why) from None

    async def _check_model(self, user: KvModel) -> None:
        try:
            async with self._decoder.channel() as channel:
                here = await pb_grpc.DecodingServiceStub(channel).LookUpDocuments(
                    decoding_pb2.LookUpDocumentsRequest(),
                    timeout=self._deadline_s,
                    metadata=self._headers,
                )
        except grpc.aio.AioRpcError as error:
            raise refused_below(error.code(), f"decoder: {details_of(error)}") from None
        if not here.exports:
            raise KvUnavailable("document_kv: the cloud's decoder gives no keys and values out")
        model_from_proto(here.model, "model").check_used_by(user)

    async def _wanted(self, count: int) -> int | None:
        """Which document the device asks for next; None when it is done."""
        frame = await self._context.read()
        if not isinstance(frame, pb.CollaborateRequest):  # EOF
            return None
        message = self._codec.decode(frame)
        if isinstance(message, Cancel):
            return None
        if not isinstance(message, DocumentWanted):
            raise InvalidArgument("message", "where documents travel, they are all that is asked")
        if message.index >= count:
            raise InvalidArgument("index", f"{message.index} is none of {count} documents")
        return message.index

    async def _relay(self, document: Document, user: KvModel) -> None:
        opening = self._opening
        head = (opening.session, 0, opening.base, opening.prefix)
        request = decoding_pb2.ExportDocumentRequest(
            document=document_to_proto(document), model=model_to_proto(user)
        )
        async with self._decoder.channel() as channel:
            call = pb_grpc.DecodingServiceStub(channel).ExportDocument(
                request, timeout=self._deadline_s, metadata=self._headers
            )
            try:
                # Reads no further part before the one at hand was written.
                async for answer in call:
                    part = DocumentPart(*head, part=part_from_proto(answer.part))
                    await self._context.write(self._codec.encode(part))
            except grpc.aio.AioRpcError as error:
                code, details = known_status(error.code(), details_of(error))
                raise refused_below(code, f"decoder: {details}") from None
            finally:
                call.cancel()


def _opened(opening: CollaborationOpen, documents: Sequence[Document]) -> CollaborationOpened:
    return CollaborationOpened(
        opening.session,
        0,
        opening.base,
        opening.prefix,
        log_mass=-float("inf"),
        max_tokens=opening.max_tokens,
        documents=len(documents),
        texts=tuple(documents),
    )
