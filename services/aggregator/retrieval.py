"""This side's documents for a request, from this side's retriever.

Invariant: what is found here goes to this side's decoder and nowhere else, unless the preset has
the cloud's documents travel. Must not import torch.
"""

from __future__ import annotations

import hashlib
import math

import grpc

from tandem.protocol.decoding_messages import Document
from tandem.rpc.connection import Connection
from tandem.rpc.status import details_of, refused_below
from tandem.telemetry.tracing import Sent
from tandem_api.retriever.v1 import retriever_pb2 as pb
from tandem_api.retriever.v1 import retriever_pb2_grpc as pb_grpc

SEARCH_TIMEOUT_S = 10.0
RELEVANCE_SCALE = 10.0
"""What a whole unit of cosine similarity counts in the exponent of a document's weight."""


class Retrieval:
    """Searches one retriever; without one there are no documents."""

    def __init__(self, connection: Connection | None) -> None:
        self._connection = connection

    async def search(self, query: str, count: int, headers: Sent = None) -> tuple[Document, ...]:
        """The best documents, at most `count`; `headers`: of the span that asks. Raises Rejected
        with the retriever's status."""
        if self._connection is None or not query.strip() or count < 1:
            return ()
        request = pb.SearchRequest(query=query, count=count)
        try:
            async with self._connection.channel() as channel:
                found = await pb_grpc.RetrieverServiceStub(channel).Search(
                    request, timeout=SEARCH_TIMEOUT_S, metadata=headers
                )
        except grpc.aio.AioRpcError as error:
            raise refused_below(error.code(), f"retriever: {details_of(error)}") from None
        return tuple(
            _document(hit, rank) for rank, hit in enumerate(found.hits, start=1) if hit.text
        )

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()


def _document(hit: pb.Hit, rank: int) -> Document:
    """R(d, query) must mean the same on both sides: similarity where there is an embedding, else
    the rank alone, by which the two sides' best documents weigh the same."""
    similar = hit.HasField("similarity") and math.isfinite(hit.similarity)
    relevance = RELEVANCE_SCALE * hit.similarity if similar else -math.log(rank)
    return Document(hit.text, relevance, hashlib.sha256(hit.text.encode()).hexdigest())
