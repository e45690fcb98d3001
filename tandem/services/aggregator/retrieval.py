"""This side's documents for a request, from this side's retriever. Invariant: what is found goes to
this side's decoder and nowhere else, unless the preset has the cloud's documents transferred."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc

from tandem.core.errors import FailedPrecondition, InvalidArgument, Unavailable
from tandem.index.names import shown
from tandem.index.owners import DocumentQuotaExceeded
from tandem.index.relevance import falling, relevance
from tandem.net.connection import Connection
from tandem.net.retriever_client import Upload, messages_of
from tandem.net.status import actual_status, details_of, upstream_rejection
from tandem.settings import variable_of
from tandem.telemetry.tracing import Sent
from tandem.two_sided.interface import ContextDocument
from tandem_api.retriever.v1 import retriever_pb2 as pb
from tandem_api.retriever.v1 import retriever_pb2_grpc as pb_grpc

SEARCH_TIMEOUT_S = 10.0
INGEST_TIMEOUT_S = 600.0
EMBED_TIMEOUT_S = 60.0
DESCRIBE_TIMEOUT_S = 1.0
NO_EMBEDDING_AGE_S = 30.0
"""So long is a retriever that has no embedding model, or hangs, not asked for one again."""
EMBEDDED_AT_ONCE = 128
EMBEDDED_CHARACTERS_AT_ONCE = 2**18
"""Texts of one call, and their characters: some ten seconds of one core with MiniLM. A longer text
goes alone."""
CHARACTERS_PER_TOKEN = 4
"""Roughly, for texts that come as token ids."""


class Retrieval:
    """Searches one retriever; without one there are no documents."""

    def __init__(
        self, connection: Connection | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._embedding = ("", 0)
        self._no_embedding_until_s = -math.inf

    async def search(
        self, query: str, count: int, headers: Sent = None, owner: str = ""
    ) -> tuple[ContextDocument, ...]:
        """Return the best documents that `owner` may find, at most `count`. `headers` are those of
        the span that asks. Raises Rejected."""
        if self._connection is None or not query.strip() or count < 1:
            return ()
        request = pb.SearchRequest(query=query, count=count, tenant=owner)
        async with self._retriever() as retriever:
            call = retriever.Search(iter((request,)), timeout=SEARCH_TIMEOUT_S, metadata=headers)
            (response,) = [each async for each in call]
        return documents_of(response.hits)

    async def embed(
        self,
        texts: Sequence[str] | Sequence[Sequence[int]],
        most_tokens: int = 0,
        tenant: str = "",
    ) -> pb.EmbedResponse:
        """Return the vectors of `texts`, or of their token ids, by the retriever's model, in the
        turn of `tenant`. Many are sent in several calls, one after the other. `most_tokens`: read
        only that many of the first tokens of each; 0: all. Raises Rejected, or FailedPrecondition
        if there is no retriever."""
        if self._connection is None:
            raise FailedPrecondition(f"embedding: needs {variable_of('retriever')}")
        whole = pb.EmbedResponse()
        for group in embedding_groups(texts):
            request = pb.EmbedRequest(tenant=tenant, truncate_tokens=most_tokens)
            for text in group:
                if isinstance(text, str):
                    request.texts.append(text)
                else:
                    request.token_ids.add(ids=text)
            async with self._retriever() as retriever:
                answer = await retriever.Embed(request, timeout=EMBED_TIMEOUT_S)
            whole.vectors += answer.vectors
            whole.tokens.extend(answer.tokens)
            whole.windows.extend(answer.windows)
        return whole

    async def embedding(self) -> tuple[str, int]:
        """Return the name of the retriever's embedding model and the length of its vectors; "" and
        0 if there is none, or while the retriever does not answer."""
        if self._connection is None or self._embedding[0]:
            return self._embedding
        if self._clock() < self._no_embedding_until_s:
            return self._embedding
        try:
            async with self._connection.channel() as channel:
                call = pb_grpc.RetrieverServiceStub(channel).Describe
                response = await call(pb.DescribeRequest(), timeout=DESCRIBE_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            # One that cannot be reached costs no time, and may be about to start.
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                return self._embedding
        else:
            if response.dimension:
                self._embedding = (response.embedding.partition(":")[0], response.dimension)
        self._no_embedding_until_s = self._clock() + NO_EMBEDDING_AGE_S
        return self._embedding

    async def add(self, upload: Upload) -> None:
        """Store a document. Raises InvalidArgument for one that cannot be read,
        DocumentQuotaExceeded and Rejected; this side's retriever must know our key for
        documents:write."""
        async with self._retriever() as retriever:
            call = retriever.Ingest(timeout=INGEST_TIMEOUT_S)
            with suppress(asyncio.InvalidStateError):  # it is over; its status says why
                for message in messages_of(0, upload):
                    await call.write(message)
                await call.done_writing()
            async for answer in call:
                if answer.over_quota:
                    raise DocumentQuotaExceeded(answer.reason)
                if answer.reason:
                    raise InvalidArgument("content", answer.reason.removeprefix("content: "))

    async def delete(self, name: str, owner: str) -> bool:
        """Delete a document; whether the owner had it. Raises as `add`."""
        request = pb.DeleteRequest(ids=[name], owner=owner)
        async with self._retriever() as retriever:
            answer: pb.DeleteResponse = await retriever.Delete(request, timeout=INGEST_TIMEOUT_S)
        return answer.deleted[0]

    async def listed(self, request: pb.ListRequest) -> pb.ListResponse:
        """List some of an owner's documents; needs documents:read. Raises Rejected."""
        async with self._retriever() as retriever:
            answer: pb.ListResponse = await retriever.List(request, timeout=SEARCH_TIMEOUT_S)
        return answer

    @asynccontextmanager
    async def _retriever(self) -> AsyncIterator[Any]:
        """Yield the retriever to call. A failed call raises Rejected. What is wrong with a request
        is named by its field, which the caller knows; anything else is named as the
        retriever's."""
        if self._connection is None:
            raise Unavailable("no retriever: this side has no documents")
        try:
            async with self._connection.channel() as channel:
                yield pb_grpc.RetrieverServiceStub(channel)
        except grpc.aio.AioRpcError as error:
            code, details = actual_status(error.code(), details_of(error))
            named = details if code is grpc.StatusCode.INVALID_ARGUMENT else f"retriever: {details}"
            raise upstream_rejection(code, named) from None

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()


def documents_of(hits: Sequence[pb.Hit]) -> tuple[ContextDocument, ...]:
    """Return the hits of one search, best first, with their relevances. Where a search tells of
    neither vectors nor words the rank alone counts, by which the two sides' best weigh the
    same."""
    relevances = falling([_relevance(hit, rank) for rank, hit in enumerate(hits, 1)])
    return tuple(
        ContextDocument(
            hit.text,
            score,
            name=shown(hit.document_id),
            owner=hit.owner,
        )
        for hit, score in zip(hits, relevances, strict=True)
        if hit.text
    )


def _relevance(hit: pb.Hit, rank: int) -> float:
    cosine, coverage = (
        getattr(hit, field) if hit.HasField(field) and math.isfinite(getattr(hit, field)) else None
        for field in ("similarity", "coverage")
    )
    score = relevance(cosine, coverage)
    return -math.log(rank) if score is None else score


def embedding_groups(
    texts: Sequence[str] | Sequence[Sequence[int]],
) -> Iterator[Sequence[str] | Sequence[Sequence[int]]]:
    """Yield the texts, in order, in groups that one call may have."""
    first = size = 0
    for place, text in enumerate(texts):
        length = len(text) if isinstance(text, str) else CHARACTERS_PER_TOKEN * len(text)
        full = place - first == EMBEDDED_AT_ONCE or size + length > EMBEDDED_CHARACTERS_AT_ONCE
        if full and place > first:
            yield texts[first:place]
            first = place
            size = 0
        size += length
    if first < len(texts):
        yield texts[first:]
