"""KV transfer between decoders: the three RPCs of the decoder's end. A transfer counts in the
service's sessions and KV budget, and no peer, however slow, holds these longer than
`MAX_TRANSFER_S`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from tandem.core.errors import InvalidArgument
from tandem.net.scopes import current_caller
from tandem.net.served_sessions import Admission
from tandem.net.status import Rejected
from tandem.net.stream_limits import ServedStream
from tandem.telemetry.logging import get_logger
from tandem.two_sided.decoding.kv_transfer import KvTransfer
from tandem.two_sided.protocol.document_kv import KV_PART_BYTES, DocumentKv, KvPart, KvUnavailable
from tandem.two_sided.serving.decoder_codec import MAX_DOCUMENTS, document_from_proto
from tandem.two_sided.serving.document_kv_codec import (
    model_from_proto,
    model_to_proto,
    part_from_proto,
    part_to_proto,
)
from tandem_api.decoding.v1 import decoding_pb2 as pb

log = get_logger(__name__)

ExportStream = ServedStream[pb.ExportDocumentRequest, pb.ExportDocumentResponse]
ImportStream = ServedStream[pb.ImportDocumentRequest, pb.ImportDocumentResponse]
MAX_TRANSFER_S = 600.0


class KvTransferService:
    """One decoder's end; `exports`, `imports`: whether it exports and imports documents."""

    def __init__(
        self, transfer: KvTransfer, admission: Admission, exports: bool, imports: bool
    ) -> None:
        self._transfer, self._admission = transfer, admission
        self._exports, self._imports = exports, imports

    async def look_up(self, request: pb.LookUpDocumentsRequest) -> pb.LookUpDocumentsResponse:
        if len(request.documents) > MAX_DOCUMENTS:
            raise InvalidArgument("documents", f"at most {MAX_DOCUMENTS}")
        model = model_to_proto(await self._transfer.model())
        documents = list(map(document_from_proto, request.documents))
        cached = await self._transfer.cached(documents, current_caller().holder)
        return pb.LookUpDocumentsResponse(model=model, exports=self._exports, cached=cached)

    async def export(self, request: pb.ExportDocumentRequest, stream: ExportStream) -> None:
        """Write the document's parts."""
        if not self._exports:
            raise KvUnavailable(
                "document_kv: this decoder gives no documents' keys and values out; see"
                " TANDEM_DOCUMENT_KV_EXPORT of the verifier"
            )
        user = model_from_proto(request.model, "model")
        document = document_from_proto(request.document)
        (await self._transfer.model()).check_used_by(user)
        most = self._transfer.size_bytes(await self._transfer.token_count(document))
        with self._admission.reserve(most):
            async with _in_time():
                found = await self._transfer.exported(document, user)
                for part in parts_of(found.kv, found.packed):
                    await stream.write(pb.ExportDocumentResponse(part=part_to_proto(part)))
        log.info("document exported", tokens=found.kv.tokens, bytes=found.kv.size_bytes)

    async def import_document(self, stream: ImportStream) -> None:
        """Read a document's parts, and answer when there is room and when it is stored."""
        if not self._imports:
            raise KvUnavailable("document_kv: this decoder takes no keys and values in")
        async with _in_time():
            first = await stream.first(pb.ImportDocumentRequest, "document")
            _check(first, "document")
            announced = await _next(stream, "part")
            kv = part_from_proto(announced.part)
            if not isinstance(kv, DocumentKv):
                raise InvalidArgument("kv", "must come before the chunks")
            document, holder = document_from_proto(first.document), current_caller().holder
            async with self._transfer.importing(document, kv, holder) as received:
                with self._admission.reserve(kv.size_bytes):
                    await stream.write(pb.ImportDocumentResponse(accepted=pb.ImportAccepted()))
                    await received(await _chunks(stream, kv.size_bytes))
            await stream.write(pb.ImportDocumentResponse(stored=pb.ImportStored()))
        log.info("document imported", tokens=kv.tokens, bytes=kv.size_bytes)


def parts_of(kv: DocumentKv, packed: bytes) -> list[KvPart]:
    """What is sent of a document."""
    starts = range(0, len(packed), KV_PART_BYTES)
    return [kv, *(packed[start : start + KV_PART_BYTES] for start in starts)]


async def _chunks(stream: ImportStream, size_bytes: int) -> bytes:
    """All of them; InvalidArgument for more or fewer bytes than were announced."""
    packed = bytearray()
    while len(packed) < size_bytes:
        chunk = part_from_proto((await _next(stream, "part")).part)
        if not isinstance(chunk, bytes):
            raise InvalidArgument("kv", "came among the chunks")
        packed += chunk
    if len(packed) > size_bytes:
        raise InvalidArgument("chunk", f"more than the {size_bytes} bytes that were announced")
    return bytes(packed)


async def _next(stream: ImportStream, expected: str) -> pb.ImportDocumentRequest:
    frame: Any = await stream.read()
    if not isinstance(frame, pb.ImportDocumentRequest):
        raise InvalidArgument(expected, "the stream ended before it")
    _check(frame, expected)
    return frame


def _check(frame: pb.ImportDocumentRequest, expected: str) -> None:
    if frame.WhichOneof("message") != expected:
        raise InvalidArgument(expected, "must come next")


@asynccontextmanager
async def _in_time() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(MAX_TRANSFER_S):
            yield
    except TimeoutError:
        why = f"document_kv: not over after {MAX_TRANSFER_S:g} s"
        raise Rejected(grpc.StatusCode.DEADLINE_EXCEEDED, why) from None
