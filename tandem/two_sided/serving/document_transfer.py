"""The cloud's documents for a device that generates alone: their texts, and for a decoder of the
same model their keys and values too.

`FetchedDocuments` asks, on the device: it sends the query alone, and names documents by the cloud's
list; the decoder gets those that it has room for and has not cached. `give_documents` answers, in
the cloud: only what was found for this stream's query can be asked for, and parts are relayed as
the device reads them.

Invariant: only documents of a request that fetches keys and values are marked `imported`, and never
by the cloud: an answer from the device's own documents uses nothing that came from there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

import grpc

from tandem.core.errors import FailedPrecondition, InvalidArgument, check_count
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
from tandem.net.stream_limits import ServedStream
from tandem.net.uncancelled import uncancelled
from tandem.telemetry.logging import get_logger
from tandem.telemetry.tracing import Sent
from tandem.two_sided.protocol.messages import ContextDocument, KvModel
from tandem.two_sided.protocol.presets import MAX_QUERY_CHARACTERS
from tandem.two_sided.serving.decoder_codec import (
    MAX_DOCUMENTS,
    document_from_proto,
    document_to_proto,
    model_from_proto,
    model_to_proto,
    part_from_proto,
    part_to_proto,
)
from tandem_api.aggregator.v1 import aggregator_pb2 as pb
from tandem_api.aggregator.v1 import aggregator_pb2_grpc as pb_grpc
from tandem_api.decoding.v1 import decoding_pb2, decoding_pb2_grpc

log = get_logger(__name__)

Part = TypeVar("Part", int, bytes)
FetchStream = ServedStream[pb.FetchDocumentsRequest, pb.FetchDocumentsResponse]
Search = Callable[[str, int, Sent], Awaitable[tuple[ContextDocument, ...]]]
"""Finds the cloud's documents for a query, so many at most, within the span of these headers."""


class FetchedDocuments:
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
        joined: bool = False,
    ) -> None:
        """Prepare to fetch documents from the cloud for the decoder.

        Args:
            traffic: counts the bytes between the sides.
            patience_s: how long an unreachable cloud is given.
            tenant: whose keys and values these are; which documents it had fetched is nothing to
                another tenant.
            in_conversation: whether the documents stand in a conversation, since keys and values
                depend on what stands before a document.
            joined: whether all of them are one sequence."""
        self._cloud = cloud
        self._decoder = decoder
        self._traffic = traffic
        self._deadline_s = deadline_s
        self._patience_s = patience_s
        self._headers = headers
        self._tenant = tenant
        self._in_conversation = in_conversation
        self._joined = joined

    async def fetch(
        self, query: str, count: int, *, with_kv: bool = False
    ) -> tuple[ContextDocument, ...]:
        """Return the documents that the cloud finds, `count` at most; the decoder has their keys
        and values by then, if it is `with_kv`. Raises Rejected with the status of whoever
        refused."""
        find = pb.FindDocuments(query=query, documents=count)
        if with_kv:
            find.document_kv.CopyFrom((await self._look_up(())).model)
        async with self._cloud.channel() as channel:
            await self._reach(channel)
            call: Any = pb_grpc.AggregatorServiceStub(channel).FetchDocuments(
                timeout=self._deadline_s, metadata=self._headers
            )
            stream = _CloudStream(call, self._traffic, f"the cloud at {self._cloud.target}")
            try:
                await stream.write(pb.FetchDocumentsRequest(find=find))
                documents = [
                    replace(
                        document,
                        imported=with_kv,
                        imported_for=self._tenant,
                        in_conversation=self._in_conversation,
                    )
                    for document in await stream.found()
                ]
                if with_kv and documents:
                    await self._import_missing(stream, documents)
                await call.done_writing()
            except Rejected as error:
                if error.code is grpc.StatusCode.UNAVAILABLE:
                    self._cloud.retire(channel)
                raise
            finally:
                call.cancel()
        return tuple(documents)

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

    async def _look_up(
        self, documents: Sequence[ContextDocument]
    ) -> decoding_pb2.LookUpDocumentsResponse:
        return await look_up_documents(
            self._decoder, documents, self._deadline_s, self._headers, joined=self._joined
        )

    async def _import_missing(
        self, stream: _CloudStream, documents: Sequence[ContextDocument]
    ) -> None:
        """Fetch the sequences that the decoder lacks; asked for together, they cost one round
        trip."""
        cached = (await self._look_up(documents)).cached
        missing = [index for index, present in enumerate(cached) if not present]
        want = pb.WantSequences(
            sequences=missing, joined=self._joined, in_conversation=self._in_conversation
        )
        await stream.write(pb.FetchDocumentsRequest(want=want))
        sequences = sequences_of(documents, joined=self._joined)
        for index in missing:
            await self._import(stream, sequences[index])

    async def _import(self, stream: _CloudStream, sequence: Sequence[ContextDocument]) -> None:
        """Copy the keys and values that come next from the cloud to this side's decoder."""
        size_bytes = await stream.part(int)
        documents = map(document_to_proto, sequence)
        request = decoding_pb2.ImportDocumentsRequest
        async with self._decoder.channel() as channel:
            call: Any = decoding_pb2_grpc.DecodingServiceStub(channel).ImportDocuments(
                timeout=self._deadline_s, metadata=self._headers
            )
            try:
                await call.write(request(documents=documents, part=part_to_proto(size_bytes)))
                if await uncancelled(call.read()) is not grpc.aio.EOF:  # there is room
                    left = size_bytes
                    while left > 0:
                        chunk = await stream.part(bytes)
                        left -= len(chunk)
                        await call.write(request(part=part_to_proto(chunk)))
                    await uncancelled(call.read())
                if (code := await call.code()) is not grpc.StatusCode.OK:
                    raise _refused(code, await call.details() or "ended the call")
            except grpc.aio.AioRpcError as error:
                raise _refused(error.code(), details_of(error)) from None
            finally:
                call.cancel()
        log.info("documents fetched", bytes=size_bytes)


class _CloudStream:
    """The conversation with the cloud. Raises Rejected, with DATA_LOSS if the cloud breaks it."""

    def __init__(self, call: Any, traffic: Traffic, stranger: str) -> None:
        """Prepare the conversation on an open call. For `stranger` see `plain_details`."""
        self._call = call
        self._stranger = stranger
        self._traffic = traffic

    async def found(self) -> list[ContextDocument]:
        answer = await self._read("found")
        try:
            check_count(len(answer.found.documents), MAX_DOCUMENTS, "documents")
            return [document_from_proto(document) for document in answer.found.documents]
        except InvalidArgument as error:
            raise _broken(str(error)) from None

    async def part(self, kind: type[Part]) -> Part:
        """Return the next part, which is of this kind."""
        try:
            part = part_from_proto((await self._read("part")).part)
        except InvalidArgument as error:
            raise _broken(str(error)) from None
        if not isinstance(part, kind):
            raise _broken(f"{type(part).__name__} instead of {kind.__name__}")
        return part

    async def write(self, request: pb.FetchDocumentsRequest) -> None:
        self._traffic.uplink_bytes += request.ByteSize() + FRAME_HEADER_BYTES
        # Where it can no longer be written the reader sees the status.
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._call.write(request)

    async def _read(self, expected: str) -> pb.FetchDocumentsResponse:
        try:
            answer = await uncancelled(self._call.read())
            if answer is grpc.aio.EOF:
                raise self._ended(
                    await self._call.code(),
                    await self._call.details() or "",
                    await self._call.trailing_metadata(),
                )
        except grpc.aio.AioRpcError as error:
            words = error.details() or ""
            raise self._ended(error.code(), words, error.trailing_metadata()) from None
        if not isinstance(answer, pb.FetchDocumentsResponse):  # how grpc.aio says what it was not
            raise _broken("the bytes are no protobuf message")
        self._traffic.downlink_bytes += answer.ByteSize() + FRAME_HEADER_BYTES
        if (name := answer.WhichOneof("message")) != expected:
            raise _broken(f"{name} instead of {expected}")
        return answer

    def _ended(self, code: grpc.StatusCode, details: str, metadata: Any) -> Rejected:
        code, details = actual_status(code, details)
        again_s = retry_after_s(metadata)
        words = plain_details(code, details, self._stranger, again_s)
        return _ended(code, words, again_s)


def _refused(code: grpc.StatusCode, details: str) -> Rejected:
    """Return why the decoder did not take documents in. What is wrong with them is the cloud's
    fault."""
    code, details = actual_status(code, cleaned(details))
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return _broken(details)
    return upstream_rejection(code, f"decoder: {details}")


def _ended(code: grpc.StatusCode, details: str, again_s: float | None = None) -> Rejected:
    """Return why the cloud ended the stream, or what became of it."""
    if code in FATAL:
        return upstream_rejection(code, details or "the cloud refused", again_s)
    if code in BROKEN:
        return _broken(f"{code.name}: {details}")
    return Rejected(grpc.StatusCode.UNAVAILABLE, f"the cloud is lost: {details}")


def _broken(why: str) -> Rejected:
    return Rejected(grpc.StatusCode.DATA_LOSS, f"the cloud violated the protocol: {why}")


async def documents_asked(stream: FetchStream) -> pb.FindDocuments:
    """Read what a device's stream begins with, which costs nothing yet. Raises InvalidArgument."""
    find = (await stream.first(pb.FetchDocumentsRequest, "find")).find
    if len(find.query) > MAX_QUERY_CHARACTERS:
        raise InvalidArgument("query", f"at most {MAX_QUERY_CHARACTERS} characters")
    check_count(find.documents, MAX_DOCUMENTS, "documents")
    if find.HasField("document_kv"):
        model_from_proto(find.document_kv, "document_kv")  # checked before anything is looked for
    return find


async def give_documents(
    stream: FetchStream,
    find: pb.FindDocuments,
    search: Search,
    *,
    decoder: Connection,
    deadline_s: float,
    headers: Sent = None,
) -> None:
    """Send the documents that `search` finds, and of those that the device then wants keys and
    values from the cloud's `decoder`. Raises Rejected, FailedPrecondition or
    InvalidArgument."""
    user = None
    if find.HasField("document_kv"):
        user = model_from_proto(find.document_kv, "document_kv")
        here = await look_up_documents(decoder, (), deadline_s, headers)
        if not here.exports:
            raise FailedPrecondition(
                "document_kv: the cloud's decoder gives no keys and values out"
            )
        model_from_proto(here.model, "model").check_used_by(user)
    documents = await search(find.query, find.documents, headers)
    found = pb.FoundDocuments(documents=map(document_to_proto, documents))
    await stream.write(pb.FetchDocumentsResponse(found=found))
    if user is None:
        return
    async with in_time(deadline_s):
        for sequence in await _wanted(stream, documents):
            await _relay(stream, sequence, user, decoder, deadline_s, headers)


@asynccontextmanager
async def in_time(limit_s: float) -> AsyncIterator[None]:
    """Raise Rejected where what runs inside is not over in time."""
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError:
        why = f"document_kv: not over after {limit_s:g} s"
        raise Rejected(grpc.StatusCode.DEADLINE_EXCEEDED, why) from None


async def _wanted(
    stream: FetchStream, documents: Sequence[ContextDocument]
) -> list[Sequence[ContextDocument]]:
    """Return the sequences that the device wants; none if it half-closes instead."""
    request = await stream.read()
    if not isinstance(request, pb.FetchDocumentsRequest):  # EOF
        return []
    if not request.HasField("want"):
        raise InvalidArgument("message", "keys and values must be asked for next")
    want = request.want
    in_place = [replace(each, in_conversation=want.in_conversation) for each in documents]
    sequences = sequences_of(in_place, joined=want.joined)
    check_count(len(want.sequences), len(sequences), "sequences")
    for index in want.sequences:
        if index >= len(sequences):
            raise InvalidArgument("sequences", f"{index} is none of {len(sequences)}")
    return [sequences[index] for index in want.sequences]


async def _relay(
    stream: FetchStream,
    sequence: Sequence[ContextDocument],
    user: KvModel,
    decoder: Connection,
    deadline_s: float,
    headers: Sent,
) -> None:
    """Send the keys and values of documents that stand in one sequence."""
    request = decoding_pb2.ExportDocumentsRequest(
        documents=map(document_to_proto, sequence), model=model_to_proto(user)
    )
    async with _called(decoder) as stub:
        call = stub.ExportDocuments(request, timeout=deadline_s, metadata=headers)
        try:
            async for part in call:
                await stream.write(pb.FetchDocumentsResponse(part=part))
        finally:
            call.cancel()


def sequences_of(
    documents: Sequence[ContextDocument], *, joined: bool
) -> list[Sequence[ContextDocument]]:
    """Return what is decoded, and sent, together."""
    return [documents] if joined and documents else [[document] for document in documents]


async def look_up_documents(
    decoder: Connection,
    documents: Sequence[ContextDocument],
    deadline_s: float,
    headers: Sent,
    *,
    joined: bool = False,
) -> decoding_pb2.LookUpDocumentsResponse:
    """Return a decoder's model, and which documents it has cached; `joined`: whether it has the one
    sequence of all of them. Raises Rejected."""
    request = decoding_pb2.LookUpDocumentsRequest(
        documents=map(document_to_proto, documents), joined=joined
    )
    async with _called(decoder) as stub:
        found: decoding_pb2.LookUpDocumentsResponse = await stub.LookUpDocuments(
            request, timeout=deadline_s, metadata=headers
        )
    return found


@asynccontextmanager
async def _called(decoder: Connection) -> AsyncIterator[Any]:
    """Yield the decoder to call; a failed call raises Rejected."""
    try:
        async with decoder.channel() as channel:
            yield decoding_pb2_grpc.DecodingServiceStub(channel)
    except grpc.aio.AioRpcError as error:
        code, details = actual_status(error.code(), details_of(error))
        raise upstream_rejection(code, f"decoder: {details}") from None
