"""The cloud's documents at a device that generates alone: their texts, and for a decoder of the
same model their keys and values too.

Invariant: the device names the documents that it wants by the cloud's own list; of its own it sends
the query alone. Keys and values pass on to the decoder a part at a time, and only where it has room
and does not have them already. Must not import torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import grpc

from tandem.core.errors import InvalidArgument
from tandem.policy.aggregation_presets import Travel
from tandem.protocol.aggregation_messages import (
    CloudSideMessage,
    CollaborationOpen,
    CollaborationOpened,
    DeviceMessage,
)
from tandem.protocol.decoding_messages import Document
from tandem.protocol.document_kv import DocumentKv, DocumentPart, DocumentWanted, KvModel, KvPart
from tandem.rpc.connection import DIAGNOSIS_TIMEOUT_S, Connection
from tandem.rpc.convert_aggregation import DeviceEnd
from tandem.rpc.convert_decoding import document_to_proto
from tandem.rpc.convert_document_kv import model_from_proto, part_to_proto
from tandem.rpc.frame_stream import FRAME_HEADER_BYTES, Traffic
from tandem.rpc.status import Rejected, details_of, known_status, refused_below
from tandem.rpc.stream_end import BROKEN, FATAL
from tandem.telemetry.logging import get_logger
from tandem.telemetry.tracing import Sent
from tandem_api.aggregator.v1 import aggregator_pb2_grpc
from tandem_api.decoding.v1 import decoding_pb2 as pb
from tandem_api.decoding.v1 import decoding_pb2_grpc as pb_grpc

log = get_logger(__name__)


class FetchedDocuments:
    """What one request fetches."""

    def __init__(
        self,
        cloud: Connection,
        decoder: Connection,
        traffic: Traffic,
        deadline_s: float,
        patience_s: float,
        headers: Sent = None,
    ) -> None:
        """`traffic` counts what travels between the sides; a cloud that cannot be reached is waited
        for so long as `patience_s`."""
        self._cloud = cloud
        self._decoder = decoder
        self._traffic = traffic
        self._deadline_s = deadline_s
        self._patience_s = patience_s
        self._headers = headers

    async def device_model(self) -> KvModel:
        """What would use keys and values here. Raises Rejected."""
        return model_from_proto((await self._look_up(())).model, "model")

    async def fetch(self, opening: CollaborationOpen) -> tuple[Document, ...]:
        """The documents that the cloud finds. Where keys and values travel, they are at hand at the
        decoder when this returns. Raises Rejected with the status of whoever refused."""
        stub = aggregator_pb2_grpc.AggregatorServiceStub
        async with self._cloud.channel() as channel:
            await self._reach(channel)
            call: Any = stub(channel).Collaborate(timeout=self._deadline_s, metadata=self._headers)
            stream = _CloudStream(call, opening, self._traffic)
            try:
                found = await stream.opened()
                if opening.preset.travel is Travel.KV and found:
                    await self._fetch_missing(stream, found)
                await call.done_writing()
            except Rejected as error:
                if error.code is grpc.StatusCode.UNAVAILABLE:
                    self._cloud.distrust(channel)
                raise
            finally:
                call.cancel()
        return found

    async def _reach(self, channel: grpc.aio.Channel) -> None:
        """Wait for the connection. Raises Rejected with what stands in its way."""
        ready = asyncio.ensure_future(channel.channel_ready())
        try:
            await asyncio.wait({ready}, timeout=max(0.0, self._patience_s - DIAGNOSIS_TIMEOUT_S))
            if ready.done():
                return
            why = await self._cloud.why_silent()
            if not ready.done():
                self._cloud.distrust(channel)
                raise _ended(grpc.StatusCode.UNAVAILABLE, why or "no answer")
        finally:
            ready.cancel()

    async def _fetch_missing(self, stream: _CloudStream, found: Sequence[Document]) -> None:
        known = (await self._look_up(found)).at_hand
        missing = [index for index, there in enumerate(known) if not there]
        await stream.ask(missing)
        for index in missing:
            await self._import(stream, found[index])

    async def _look_up(self, documents: Sequence[Document]) -> pb.LookUpDocumentsResponse:
        request = pb.LookUpDocumentsRequest(documents=map(document_to_proto, documents))
        try:
            async with self._decoder.channel() as channel:
                return await pb_grpc.DecodingServiceStub(channel).LookUpDocuments(
                    request, timeout=self._deadline_s, metadata=self._headers
                )
        except grpc.aio.AioRpcError as error:
            raise refused_below(error.code(), f"decoder: {details_of(error)}") from None

    async def _import(self, stream: _CloudStream, document: Document) -> None:
        """The next document's keys and values, from the cloud to this side's decoder."""
        kv = await stream.begin()
        async with self._decoder.channel() as channel:
            call: Any = pb_grpc.DecodingServiceStub(channel).ImportDocument(
                timeout=self._deadline_s, metadata=self._headers
            )
            try:
                await call.write(pb.ImportDocumentRequest(document=document_to_proto(document)))
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
    """The conversation with the cloud, frame after frame. Raises Rejected: with the cloud's status,
    or with DATA_LOSS where the cloud does not keep to the conversation."""

    def __init__(self, call: Any, opening: CollaborationOpen, traffic: Traffic) -> None:
        self._call = call
        self._codec = DeviceEnd(opening.vocabulary_size, opening.preset.law)
        self._opening = opening
        self._traffic = traffic

    async def opened(self) -> tuple[Document, ...]:
        await self._write(self._opening)
        message = await self._read()
        if not isinstance(message, CollaborationOpened):
            raise _broken(f"{type(message).__name__} in the place of opened")
        return message.texts

    async def ask(self, indices: Sequence[int]) -> None:
        """Ask for documents, all before the first comes: it costs one round trip together."""
        opening = self._opening
        head = (opening.session, 0, opening.base, opening.prefix)
        for index in indices:
            await self._write(DocumentWanted(*head, index=index))

    async def begin(self) -> DocumentKv:
        """What will follow in chunks of the next document that was asked for."""
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
            raise _broken(f"{type(message).__name__} in the place of a document's part")
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
                code, details = await self._call.code(), await self._call.details() or ""
                raise _ended(code, details)
        except grpc.aio.AioRpcError as error:
            raise _ended(error.code(), details_of(error)) from None
        if frame is None:  # how grpc.aio says that the bytes were no such message
            raise _broken("the bytes are no protobuf message")
        self._traffic.downlink_bytes += frame.ByteSize() + FRAME_HEADER_BYTES
        try:
            return self._codec.decode(frame)
        except InvalidArgument as error:
            raise _broken(str(error)) from None


async def _answer(call: Any, wanted: str) -> None:
    """The decoder's next answer; its status where it ended the call in its place."""
    answer = await call.read()
    if isinstance(answer, pb.ImportDocumentResponse) and answer.WhichOneof("message") == wanted:
        return
    if answer is not grpc.aio.EOF:
        raise Rejected(grpc.StatusCode.DATA_LOSS, f"decoder: did not say {wanted}")
    raise _refused(await call.code(), await call.details() or "ended the call")


def _refused(code: grpc.StatusCode, details: str) -> Rejected:
    """Why the decoder did not take a document in. What is wrong with it is the cloud's fault."""
    code, details = known_status(code, details)
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return _broken(details)
    return refused_below(code, f"decoder: {details}")


def _part(part: KvPart) -> pb.ImportDocumentRequest:
    return pb.ImportDocumentRequest(part=part_to_proto(part))


def _ended(code: grpc.StatusCode, details: str) -> Rejected:
    """Why the cloud ended the stream, or what became of it."""
    code, details = known_status(code, details)
    if code in FATAL:
        return refused_below(code, details or "the cloud refused")
    if code in BROKEN:
        return _broken(f"{code.name}: {details}")
    return Rejected(grpc.StatusCode.UNAVAILABLE, f"the cloud is lost: {details}")


def _broken(why: str) -> Rejected:
    return Rejected(grpc.StatusCode.DATA_LOSS, f"the cloud broke the conversation: {why}")
