"""Documents' keys and values between decoders: the three RPCs of the decoder's end.

Invariant: nothing leaves a decoder that was not told to give documents out; what leaves or comes
counts in the service's sessions and KV budget while it is under way, and no peer, however slow,
holds that longer than `MAX_TRANSFER_S`. Must not import torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import grpc

from tandem.core.errors import InvalidArgument
from tandem.protocol.decoding_messages import Document
from tandem.protocol.document_kv import KV_PART_BYTES, DocumentKv, KvModel, KvPart, KvUnavailable
from tandem.rpc.admission import Admission
from tandem.rpc.convert_decoding import MAX_DOCUMENTS, document_from_proto
from tandem.rpc.convert_document_kv import (
    model_from_proto,
    model_to_proto,
    part_from_proto,
    part_to_proto,
)
from tandem.rpc.status import Rejected
from tandem.telemetry.logging import get_logger
from tandem_api.decoding.v1 import decoding_pb2 as pb

log = get_logger(__name__)

ExportContext = grpc.aio.ServicerContext[pb.ExportDocumentRequest, pb.ExportDocumentResponse]
ImportContext = grpc.aio.ServicerContext[pb.ImportDocumentRequest, pb.ImportDocumentResponse]
MAX_TRANSFER_S = 600.0


class Exported(Protocol):
    """A description, and the bytes that it describes."""

    @property
    def kv(self) -> DocumentKv: ...
    @property
    def packed(self) -> bytes: ...


class Exchange(Protocol):
    """What gives and takes; see `tandem.engine.document_exchange.DocumentExchange`."""

    async def model(self) -> KvModel: ...
    async def at_hand(self, documents: Sequence[Document]) -> list[bool]: ...
    async def token_count(self, document: Document) -> int: ...
    def size_bytes(self, tokens: int) -> int: ...
    async def exported(self, document: Document, user: KvModel) -> Exported: ...
    def importing(
        self, document: Document, kv: DocumentKv
    ) -> AbstractAsyncContextManager[Callable[[bytes], Awaitable[None]]]: ...


class DocumentTransfer:
    """One decoder's end; `exports`: whether it gives documents out."""

    def __init__(self, exchange: Exchange, admission: Admission, exports: bool) -> None:
        self._exchange = exchange
        self._admission = admission
        self._exports = exports

    async def look_up(self, request: pb.LookUpDocumentsRequest) -> pb.LookUpDocumentsResponse:
        if len(request.documents) > MAX_DOCUMENTS:
            raise InvalidArgument("documents", f"at most {MAX_DOCUMENTS}")
        model = await self._exchange.model()
        documents = [document_from_proto(each) for each in request.documents]
        return pb.LookUpDocumentsResponse(
            model=model_to_proto(model),
            exports=self._exports,
            at_hand=await self._exchange.at_hand(documents),
        )

    async def give(self, request: pb.ExportDocumentRequest, context: ExportContext) -> None:
        """Write the document's parts."""
        if not self._exports:
            raise KvUnavailable(
                "document_kv: this decoder gives no documents' keys and values out; see"
                " TANDEM_DOCUMENT_KV_EXPORT of the verifier"
            )
        user = model_from_proto(request.model, "model")
        document = document_from_proto(request.document)
        (await self._exchange.model()).check_used_by(user)
        most = self._exchange.size_bytes(await self._exchange.token_count(document))
        with self._admission.reserve(most):
            async with _in_time():
                found = await self._exchange.exported(document, user)
                for part in parts_of(found.kv, found.packed):
                    answer = pb.ExportDocumentResponse(part=part_to_proto(part))
                    await context.write(answer)
        log.info("document exported", tokens=found.kv.tokens, bytes=found.kv.size_bytes)

    async def take(self, context: ImportContext) -> None:
        """Read a document's parts, and answer when there is room and when it is stored."""
        async with _in_time():
            first, announced = await _next(context, "document"), await _next(context, "part")
            kv = part_from_proto(announced.part)
            if not isinstance(kv, DocumentKv):
                raise InvalidArgument("kv", "must come before the chunks")
            document = document_from_proto(first.document)
            async with self._exchange.importing(document, kv) as received:
                with self._admission.reserve(kv.size_bytes):
                    await context.write(pb.ImportDocumentResponse(accepted=pb.ImportAccepted()))
                    await received(await _chunks(context, kv.size_bytes))
            await context.write(pb.ImportDocumentResponse(stored=pb.ImportStored()))
        log.info("document imported", tokens=kv.tokens, bytes=kv.size_bytes)


def parts_of(kv: DocumentKv, packed: bytes) -> list[KvPart]:
    """What a document travels as."""
    starts = range(0, len(packed), KV_PART_BYTES)
    return [kv, *(packed[start : start + KV_PART_BYTES] for start in starts)]


async def _chunks(context: ImportContext, size_bytes: int) -> bytes:
    """All of them; InvalidArgument for more or fewer bytes than were announced."""
    packed = bytearray()
    while len(packed) < size_bytes:
        chunk = part_from_proto((await _next(context, "part")).part)
        if not isinstance(chunk, bytes):
            raise InvalidArgument("kv", "came among the chunks")
        packed += chunk
    if len(packed) > size_bytes:
        raise InvalidArgument("chunk", f"more than the {size_bytes} bytes that were announced")
    return bytes(packed)


async def _next(context: ImportContext, wanted: str) -> pb.ImportDocumentRequest:
    frame: Any = await context.read()
    if not isinstance(frame, pb.ImportDocumentRequest):
        raise InvalidArgument(wanted, "the stream ended before it")
    if frame.WhichOneof("message") != wanted:
        raise InvalidArgument(wanted, "must come next")
    return frame


@asynccontextmanager
async def _in_time() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(MAX_TRANSFER_S):
            yield
    except TimeoutError:
        why = f"document_kv: not over after {MAX_TRANSFER_S:g} s"
        raise Rejected(grpc.StatusCode.DEADLINE_EXCEEDED, why) from None
