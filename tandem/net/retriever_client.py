"""Client of a retriever. Invariants: a document counts as ingested when its answer came, not
before; leaving an ingest early cancels it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import grpc

from tandem.net.access import ClientAccess
from tandem.net.channels import open_channel
from tandem.net.status import Rejected, details_of, plain_details, refusal
from tandem.net.uncancelled import uncancelled
from tandem_api.retriever.v1 import retriever_pb2 as pb
from tandem_api.retriever.v1 import retriever_pb2_grpc as pb_grpc

MAX_MESSAGE_BYTES = 16 * 2**20
PART_BYTES = 2**20
"""Content of one message; a longer document takes several."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Upload:
    """A document to send; `format` is a name such as "markdown". `owner` is empty for the
    operator's; `max_documents` and `max_bytes` are the owner's quota where it has one of its own,
    0 where the retriever's settings say."""

    id: str
    content: bytes
    format: str = "text"
    title: str = ""
    owner: str = ""
    shared: bool = False
    max_documents: int = 0
    max_bytes: int = 0


class RetrieverClient:
    """Use as an async context manager. Everything raises Rejected with the status."""

    def __init__(self, target: str, access: ClientAccess | None = None) -> None:
        """Prepare a connection to the retriever at `target`, a plain one without `access`."""
        self.target = target
        self._channel = open_channel(target, MAX_MESSAGE_BYTES, access)
        self._stub = pb_grpc.RetrieverServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *reason: object) -> None:
        await self._channel.close()

    async def ingest(
        self, uploads: Iterable[Upload], timeout_s: float = 3600.0
    ) -> AsyncIterator[pb.IngestResponse]:
        """Yield the answers as they come; `number` counts `uploads`, read as they are taken, from
        0."""
        call = self._stub.Ingest(timeout=timeout_s)
        sending = asyncio.create_task(_send(call, uploads))
        try:
            while isinstance(answer := await uncancelled(call.read()), pb.IngestResponse):
                yield answer
            code = await call.code()
            details = await call.details()
            if code is not grpc.StatusCode.OK:
                raise Rejected(code, plain_details(code, details or ""))
            await sending
        except grpc.aio.AioRpcError as error:
            raise await refusal(error, self.describe) from None
        finally:
            sending.cancel()
            call.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await sending

    async def search(
        self,
        query: str,
        count: int = 5,
        mode: str = "hybrid",
        *,
        rerank: bool = False,
        timeout_s: float = 30.0,
        tenant: str = "",
    ) -> pb.SearchResponse:
        """Return the best chunks that `tenant` may find; `mode` is hybrid, dense or lexical."""
        wanted = pb.SearchMode.Value(f"SEARCH_MODE_{mode.upper()}")
        request = pb.SearchRequest(
            query=query, count=count, mode=wanted, rerank=rerank, tenant=tenant
        )
        (response,) = [response async for response in self.searches([request], timeout_s)]
        return response

    async def searches(
        self, requests: Iterable[pb.SearchRequest], timeout_s: float = 30.0
    ) -> AsyncIterator[pb.SearchResponse]:
        """Yield the answers to several queries, in order, over one stream."""
        call = self._stub.Search(iter(requests), timeout=timeout_s)
        try:
            async for response in call:
                yield response
        except grpc.aio.AioRpcError as error:
            raise await refusal(error, self.describe) from None
        finally:
            call.cancel()

    async def delete(
        self, ids: Sequence[str], timeout_s: float = 60.0, owner: str = ""
    ) -> list[bool]:
        """Delete documents; return, for each id, whether the owner had it."""
        call = self._stub.Delete(pb.DeleteRequest(ids=ids, owner=owner), timeout=timeout_s)
        return list((await _answered(call)).deleted)

    async def listed(
        self, owner: str = "", after: str = "", count: int = 0, timeout_s: float = 30.0
    ) -> pb.ListResponse:
        """Return at most `count` of the owner's documents (0: 100), those whose ids come after
        `after`."""
        request = pb.ListRequest(owner=owner, after=after, count=count)
        return await _answered(self._stub.List(request, timeout=timeout_s))

    async def stats(self, timeout_s: float = 10.0) -> pb.StatsResponse:
        """Return the size of the index."""
        return await _answered(self._stub.Stats(pb.StatsRequest(), timeout=timeout_s))

    async def snapshot(self, timeout_s: float = 600.0) -> pb.SnapshotResponse:
        """Free the space of deleted documents."""
        return await _answered(self._stub.Snapshot(pb.SnapshotRequest(), timeout=timeout_s))

    async def describe(self, timeout_s: float = 10.0) -> pb.DescribeResponse:
        """Describe this retriever."""
        return await _answered(self._stub.Describe(pb.DescribeRequest(), timeout=timeout_s))


def messages_of(number: int, upload: Upload) -> Iterator[pb.IngestRequest]:
    """Yield one document as messages of bounded size."""
    parts = range(0, max(1, len(upload.content)), PART_BYTES)
    for start in parts:
        content = upload.content[start : start + PART_BYTES]
        message = pb.IngestRequest(number=number, content=content, more=start != parts[-1])
        if start == 0:
            message.id = upload.id
            message.title = upload.title
            message.owner = upload.owner
            message.shared = upload.shared
            message.max_documents = upload.max_documents
            message.max_bytes = upload.max_bytes
            message.format = pb.Format.Value(f"FORMAT_{upload.format.upper()}")
        yield message


async def _send(call: Any, uploads: Iterable[Upload]) -> None:
    iterator = enumerate(uploads)
    # Reading files is left to a thread: answers are shown meanwhile.
    while (entry := await asyncio.to_thread(next, iterator, None)) is not None:
        number, upload = entry
        for message in messages_of(number, upload):
            try:
                await call.write(message)
            except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
                return  # the call is over; its status says why
    await call.done_writing()


async def _answered(call: Awaitable[Answer]) -> Answer:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise Rejected(error.code(), details_of(error)) from None
