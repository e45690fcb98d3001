"""Client of a retriever.

Invariants: a document counts as ingested when its answer came, not before; leaving an ingest early
cancels it. Must not import torch or the index.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc

from tandem.rpc.access import ClientAccess
from tandem.rpc.channels import open_channel
from tandem.rpc.status import Rejected, advised, details_of, refusal
from tandem_api.retriever.v1 import retriever_pb2 as pb
from tandem_api.retriever.v1 import retriever_pb2_grpc as pb_grpc

MAX_MESSAGE_BYTES = 16 * 2**20
PART_BYTES = 2**20
"""Content of one message; a longer document takes several."""


@dataclass(frozen=True, slots=True)
class Upload:
    """A document to send; `format` is a name such as "markdown"."""

    id: str
    content: bytes
    format: str = "text"
    title: str = ""


class RetrieverClient:
    """Use as an async context manager. Everything raises Rejected with the status."""

    def __init__(self, target: str, access: ClientAccess | None = None) -> None:
        """Without `access` the connection is plain."""
        self.target = target
        self._channel = open_channel(target, MAX_MESSAGE_BYTES, access)
        self._stub = pb_grpc.RetrieverServiceStub(self._channel)

    async def __aenter__(self) -> RetrieverClient:
        return self

    async def __aexit__(self, *reason: object) -> None:
        await self._channel.close()

    async def ingest(
        self, uploads: Iterable[Upload], timeout_s: float = 3600.0
    ) -> AsyncIterator[pb.IngestResponse]:
        """The answers as they come; `number` counts `uploads` from 0. `uploads` is read no further
        than the retriever takes them."""
        call = self._stub.Ingest(timeout=timeout_s)
        sending = asyncio.create_task(_send(call, uploads))
        try:
            while isinstance(answer := await call.read(), pb.IngestResponse):
                yield answer
            code, details = await call.code(), await call.details()
            if code is not grpc.StatusCode.OK:
                raise Rejected(code, advised(code, details or ""))
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
    ) -> pb.SearchResponse:
        """The best chunks; `mode` is hybrid, dense or lexical."""
        request = pb.SearchRequest(
            query=query,
            count=count,
            mode=pb.SearchMode.Value(f"SEARCH_MODE_{mode.upper()}"),
            rerank=rerank,
        )
        response: pb.SearchResponse = await _answered(self._stub.Search(request, timeout=timeout_s))
        return response

    async def delete(self, ids: Sequence[str], timeout_s: float = 60.0) -> list[bool]:
        """Which of them were there."""
        request = pb.DeleteRequest(ids=ids)
        response = await _answered(self._stub.Delete(request, timeout=timeout_s))
        return list(response.deleted)

    async def stats(self, timeout_s: float = 10.0) -> pb.StatsResponse:
        """How much there is."""
        request = pb.StatsRequest()
        response: pb.StatsResponse = await _answered(self._stub.Stats(request, timeout=timeout_s))
        return response

    async def snapshot(self, timeout_s: float = 600.0) -> pb.SnapshotResponse:
        """Fold the log into a snapshot."""
        request = pb.SnapshotRequest()
        response: pb.SnapshotResponse = await _answered(
            self._stub.Snapshot(request, timeout=timeout_s)
        )
        return response

    async def describe(self, timeout_s: float = 10.0) -> pb.DescribeResponse:
        """What this retriever is."""
        request = pb.DescribeRequest()
        response: pb.DescribeResponse = await _answered(
            self._stub.Describe(request, timeout=timeout_s)
        )
        return response


def messages_of(number: int, upload: Upload) -> Iterator[pb.IngestRequest]:
    """One document as messages of bounded size."""
    parts = range(0, max(1, len(upload.content)), PART_BYTES)
    for start in parts:
        message = pb.IngestRequest(
            number=number,
            content=upload.content[start : start + PART_BYTES],
            more=start != parts[-1],
        )
        if start == 0:
            message.id, message.title = upload.id, upload.title
            message.format = pb.Format.Value(f"FORMAT_{upload.format.upper()}")
        yield message


async def _send(call: Any, uploads: Iterable[Upload]) -> None:
    iterator = enumerate(uploads)
    # Reading files is left to a thread: answers are shown meanwhile.
    while (entry := await asyncio.to_thread(next, iterator, None)) is not None:
        for message in messages_of(*entry):
            try:
                await call.write(message)
            except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
                return  # the call is over; its status says why
    await call.done_writing()


async def _answered(call: Any) -> Any:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise _rejected(error) from None


def _rejected(error: grpc.aio.AioRpcError) -> Rejected:
    return Rejected(error.code(), details_of(error))
