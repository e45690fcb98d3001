"""The cloud's documents at a device that generates alone: their texts, and for a decoder of the
same model their keys and values too.

`ImportedDocuments` asks, on the device: it sends the query alone, and names documents by the
cloud's list; the decoder gets those that it has room for and has not cached. `ExportedDocuments`
answers, in the cloud: only what was found for this stream's query can be asked for, and parts are
relayed as the device reads them.

Invariant: only documents of a request that fetches keys and values are marked `imported`, and never
by the cloud: an answer from the device's own documents uses nothing that came from there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import grpc

from tandem.core.errors import InvalidArgument
from tandem.core.foreign_words import cleaned
from tandem.net.connection import DIAGNOSIS_TIMEOUT_S, Connection
from tandem.net.frame_stream import BROKEN, FATAL, FRAME_HEADER_BYTES, Traffic
from tandem.net.status import (
    Rejected,
    actual_status,
    details_of,
    plain_details,
    retry_after_s,
    upstream_rejection,
)
from tandem.specdec.messages import Cancel
from tandem.telemetry.logging import get_logger
from tandem.telemetry.tracing import Sent
from tandem.two_sided.protocol.decoder_messages import ContextDocument
from tandem.two_sided.protocol.messages import (
    CloudSideMessage,
    CollaborationOpen,
    CollaborationOpened,
    DeviceMessage,
    DocumentKv,
    DocumentPart,
    DocumentRequest,
    KvModel,
    KvPart,
    KvUnavailable,
)
from tandem.two_sided.protocol.presets import DocumentContext, DocumentTransfer
from tandem.two_sided.serving.cloud_session import Collaboration
from tandem.two_sided.serving.decoder_codec import (
    document_to_proto,
    model_from_proto,
    model_to_proto,
    part_from_proto,
    part_to_proto,
)
from tandem.two_sided.serving.decoder_link import look_up_documents
from tandem.two_sided.serving.peer_codec import DeviceCodec
from tandem_api.aggregator.v1 import aggregator_pb2, aggregator_pb2_grpc
from tandem_api.decoding.v1 import decoding_pb2 as pb
from tandem_api.decoding.v1 import decoding_pb2_grpc as pb_grpc

log = get_logger(__name__)


class ImportedDocuments:
    """The documents that one request fetches from the cloud."""

    def __init__(
        self,
        *,
        cloud: Connection,
        decoder: Connection,
        traffic: Traffic,
        deadline_s: float,
        patience_s: float,
        headers: Sent = None,
        tenant: bytes = b"",
        in_conversation: bool = False,
    ) -> None:
        """Prepare to import documents from the cloud into the decoder.

        Args:
            traffic: counts the bytes between the sides.
            patience_s: how long an unreachable cloud is given.
            tenant: whose keys and values these are; which documents it had fetched is nothing to
                another tenant.
            in_conversation: whether the documents stand in a conversation, since keys and values
                depend on what stands before a document."""
        self._cloud = cloud
        self._decoder = decoder
        self._traffic = traffic
        self._deadline_s = deadline_s
        self._patience_s = patience_s
        self._headers = headers
        self._tenant = tenant
        self._in_conversation = in_conversation

    async def device_model(self) -> KvModel:
        """Return what would use keys and values here. Raises Rejected."""
        return model_from_proto((await self._look_up(())).model, "model")

    async def fetch(self, opening: CollaborationOpen) -> tuple[ContextDocument, ...]:
        """Return the documents that the cloud finds; the decoder has their keys and values by then,
        where these are transferred. Raises Rejected with the status of whoever refused."""
        stub = aggregator_pb2_grpc.AggregatorServiceStub
        async with self._cloud.channel() as channel:
            await self._reach(channel)
            call: Any = stub(channel).Collaborate(timeout=self._deadline_s, metadata=self._headers)
            stranger = f"the cloud at {self._cloud.target}"
            stream = _CloudStream(call, opening, self._traffic, stranger)
            try:
                by_kv = opening.request.preset.transfer is DocumentTransfer.KV
                texts = await stream.opened()
                documents = tuple(
                    replace(
                        document,
                        imported=by_kv,
                        imported_for=self._tenant,
                        in_conversation=self._in_conversation,
                    )
                    for document in texts
                )
                if by_kv and documents:
                    joined = opening.request.preset.context is DocumentContext.JOINED
                    await self._fetch_missing(stream, documents, joined=joined)
                await call.done_writing()
            except Rejected as error:
                if error.code is grpc.StatusCode.UNAVAILABLE:
                    self._cloud.retire(channel)
                raise
            finally:
                call.cancel()
        return documents

    async def _reach(self, channel: grpc.aio.Channel) -> None:
        """Wait for the connection. Raises Rejected with what stands in its way."""
        ready = asyncio.ensure_future(channel.channel_ready())
        try:
            await asyncio.wait({ready}, timeout=max(0.0, self._patience_s - DIAGNOSIS_TIMEOUT_S))
            if ready.done():
                return
            why = await self._cloud.why_silent()
            if not ready.done():
                self._cloud.retire(channel)
                raise _ended(grpc.StatusCode.UNAVAILABLE, why or "no answer")
        finally:
            ready.cancel()

    async def _fetch_missing(
        self, stream: _CloudStream, documents: Sequence[ContextDocument], *, joined: bool
    ) -> None:
        """Fetch the documents that the decoder lacks. `joined`: all of them are one sequence, which
        is there or is fetched as a whole."""
        cached = (await self._look_up(documents, joined=joined)).cached
        missing = [index for index, present in enumerate(cached) if not present]
        await stream.request_documents(
            missing, in_conversation=self._in_conversation, joined=joined
        )
        for index in missing:
            following = documents[index + 1 :] if joined else ()
            await self._import(stream, documents[index], following)

    async def _look_up(
        self, documents: Sequence[ContextDocument], *, joined: bool = False
    ) -> pb.LookUpDocumentsResponse:
        return await look_up_documents(
            self._decoder, documents, self._deadline_s, self._headers, joined=joined
        )

    async def _import(
        self,
        stream: _CloudStream,
        document: ContextDocument,
        following: Sequence[ContextDocument],
    ) -> None:
        """Copy the keys and values that come next from the cloud to this side's decoder: of a
        document and of those `following` it in the same sequence."""
        kv = await stream.begin()
        async with self._decoder.channel() as channel:
            call: Any = pb_grpc.DecodingServiceStub(channel).ImportDocument(
                timeout=self._deadline_s, metadata=self._headers
            )
            try:
                await call.write(
                    pb.ImportDocumentRequest(
                        document=document_to_proto(document),
                        following=map(document_to_proto, following),
                    )
                )
                await call.write(_part(kv))
                await _answer(call, "accepted")
                left = kv.size_bytes
                while left > 0:
                    chunk = await stream.chunk()
                    left -= len(chunk)
                    await call.write(_part(chunk))
                await _answer(call, "stored")
            except grpc.aio.AioRpcError as error:
                raise _refused(error.code(), details_of(error)) from None
            finally:
                call.cancel()
        log.info("document fetched", tokens=kv.tokens, bytes=kv.size_bytes)


class _CloudStream:
    """The conversation with the cloud. Raises Rejected, with DATA_LOSS if the cloud breaks it."""

    def __init__(
        self, call: Any, opening: CollaborationOpen, traffic: Traffic, stranger: str
    ) -> None:
        """Prepare the conversation on an open call. For `stranger` see `plain_details`."""
        self._call = call
        self._stranger = stranger
        self._codec = DeviceCodec(opening.request.vocabulary_size, opening.request.preset.probs)
        self._opening = opening
        self._traffic = traffic

    async def opened(self) -> tuple[ContextDocument, ...]:
        await self._write(self._opening)
        message = await self._read()
        if not isinstance(message, CollaborationOpened):
            raise _broken(f"{type(message).__name__} instead of opened")
        return message.texts

    async def request_documents(
        self, indices: Sequence[int], *, in_conversation: bool, joined: bool
    ) -> None:
        """Ask for documents, all before the first comes: it costs one round trip together."""
        for index in indices:
            header = self._opening.answer_header
            await self._write(
                DocumentRequest(
                    **header, index=index, in_conversation=in_conversation, joined=joined
                )
            )

    async def begin(self) -> DocumentKv:
        """Return the header of the next document that was asked for; its chunks follow."""
        part = await self._part()
        if not isinstance(part, DocumentKv):
            raise _broken("a chunk before it was said of what")
        return part

    async def chunk(self) -> bytes:
        part = await self._part()
        if not isinstance(part, bytes):
            raise _broken("another document among the chunks")
        return part

    async def _part(self) -> KvPart:
        message = await self._read()
        if not isinstance(message, DocumentPart):
            raise _broken(f"{type(message).__name__} instead of a document's part")
        return message.part

    async def _write(self, message: DeviceMessage) -> None:
        frame = self._codec.encode(message)
        self._traffic.uplink_bytes += frame.ByteSize() + FRAME_HEADER_BYTES
        # Where it can no longer be written the reader sees the status.
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._call.write(frame)

    async def _read(self) -> CloudSideMessage:
        try:
            frame = await self._call.read()
            if frame is grpc.aio.EOF:
                raise self._ended(
                    await self._call.code(),
                    await self._call.details() or "",
                    await self._call.trailing_metadata(),
                )
        except grpc.aio.AioRpcError as error:
            words = error.details() or ""
            metadata = error.trailing_metadata()
            raise self._ended(error.code(), words, metadata) from None
        if frame is None:  # how grpc.aio says that the bytes were no such message
            raise _broken("the bytes are no protobuf message")
        self._traffic.downlink_bytes += frame.ByteSize() + FRAME_HEADER_BYTES
        try:
            return self._codec.decode(frame)
        except InvalidArgument as error:
            raise _broken(str(error)) from None

    def _ended(self, code: grpc.StatusCode, details: str, metadata: Any) -> Rejected:
        code, details = actual_status(code, details)
        again_s = retry_after_s(metadata)
        words = plain_details(code, details, self._stranger, again_s)
        return _ended(code, words, again_s)


async def _answer(call: Any, expected: str) -> None:
    """Wait for the decoder's next answer; raise its status where it ended the call instead."""
    answer = await call.read()
    if isinstance(answer, pb.ImportDocumentResponse) and answer.WhichOneof("message") == expected:
        return
    if answer is not grpc.aio.EOF:
        raise Rejected(grpc.StatusCode.DATA_LOSS, f"decoder: did not say {expected}")
    raise _refused(await call.code(), await call.details() or "ended the call")


def _refused(code: grpc.StatusCode, details: str) -> Rejected:
    """Return why the decoder did not take a document in. What is wrong with it is the cloud's
    fault."""
    code, details = actual_status(code, cleaned(details))
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return _broken(details)
    return upstream_rejection(code, f"decoder: {details}")


def _part(part: KvPart) -> pb.ImportDocumentRequest:
    return pb.ImportDocumentRequest(part=part_to_proto(part))


def _ended(code: grpc.StatusCode, details: str, again_s: float | None = None) -> Rejected:
    """Return why the cloud ended the stream, or what became of it."""
    if code in FATAL:
        return upstream_rejection(code, details or "the cloud refused", again_s)
    if code in BROKEN:
        return _broken(f"{code.name}: {details}")
    return Rejected(grpc.StatusCode.UNAVAILABLE, f"the cloud is lost: {details}")


def _broken(why: str) -> Rejected:
    return Rejected(grpc.StatusCode.DATA_LOSS, f"the cloud violated the protocol: {why}")


class ExportedDocuments:
    """One device's stream that asks for documents."""

    def __init__(
        self,
        collaboration: Collaboration,
        *,
        decoder: Connection,
        deadline_s: float,
        headers: Sent = None,
    ) -> None:
        self._opening = collaboration.opening
        self._codec = collaboration.codec
        self._stream = collaboration.stream
        self._decoder = decoder
        self._deadline_s = deadline_s
        self._headers = headers

    async def serve(self, search: Callable[[], Awaitable[tuple[ContextDocument, ...]]]) -> None:
        """Send what `search` finds, until the device cancels or half-closes. Raises Rejected,
        KvModelMismatch, KvUnavailable or InvalidArgument."""
        opening = self._opening
        if opening.document_kv is not None:
            await self._check_model(opening.document_kv)
        documents = await search()
        await self._stream.write(self._codec.encode(_opened(opening, documents)))
        if opening.document_kv is None:
            return
        try:
            async with asyncio.timeout(self._deadline_s):
                while (wanted := await self._next_wanted(len(documents))) is not None:
                    end = len(documents) if wanted.joined else wanted.index + 1
                    sequence = [
                        replace(document, in_conversation=wanted.in_conversation)
                        for document in documents[wanted.index : end]
                    ]
                    await self._relay(sequence, opening.document_kv)
        except TimeoutError:
            why = f"document_kv: not over after {self._deadline_s:g} s"
            raise Rejected(grpc.StatusCode.DEADLINE_EXCEEDED, why) from None

    async def _check_model(self, user: KvModel) -> None:
        here = await look_up_documents(self._decoder, (), self._deadline_s, self._headers)
        if not here.exports:
            raise KvUnavailable("document_kv: the cloud's decoder gives no keys and values out")
        model_from_proto(here.model, "model").check_used_by(user)

    async def _next_wanted(self, count: int) -> DocumentRequest | None:
        """Return the device's next request for a document; None when it is done."""
        frame = await self._stream.read()
        if not isinstance(frame, aggregator_pb2.CollaborateRequest):  # EOF
            return None
        message = self._codec.decode(frame)
        if isinstance(message, Cancel):
            return None
        if not isinstance(message, DocumentRequest):
            raise InvalidArgument("message", "only documents can be asked for on this stream")
        if message.index >= count:
            raise InvalidArgument("index", f"{message.index} is none of {count} documents")
        return message

    async def _relay(self, sequence: Sequence[ContextDocument], user: KvModel) -> None:
        """Send the keys and values of documents that stand in one sequence."""
        document, *following = map(document_to_proto, sequence)
        request = pb.ExportDocumentRequest(
            document=document, following=following, model=model_to_proto(user)
        )
        async with self._decoder.channel() as channel:
            call = pb_grpc.DecodingServiceStub(channel).ExportDocument(
                request, timeout=self._deadline_s, metadata=self._headers
            )
            try:
                async for answer in call:
                    part = DocumentPart(
                        **self._opening.answer_header, part=part_from_proto(answer.part)
                    )
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
        **opening.answer_header,
        log_mass=-float("inf"),
        max_tokens=opening.request.max_tokens,
        documents=len(documents),
        texts=tuple(documents),
    )
