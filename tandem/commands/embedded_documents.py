"""Retrievers and the cloud's aggregator inside this process, for answers from two sides.

Invariant: as for the rest of the embedded suite, nothing is left once the context is. Must not
import torch; the indexes may, for an embedding.
"""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from services.aggregator.config import AggregatorSettings
from services.aggregator.servicer import AggregatorServicer
from services.retriever.forgetting import Forgetting
from services.retriever.servicer import RetrieverLimits, RetrieverServicer
from tandem.commands.suite_documents import SuiteDocuments, fill
from tandem.rpc.access import ClientAccess
from tandem.rpc.connection import Connection
from tandem.rpc.lifecycle import Service
from tandem.rpc.retriever_client import MAX_MESSAGE_BYTES
from tandem.telemetry.metrics import Metrics, Side, new_registry

Serve = Callable[[Service], Awaitable[str]]
"""Starts a service and gives its address."""


@dataclass(frozen=True, slots=True)
class DocumentServices:
    """Where the device's aggregator finds its documents and the other side."""

    retriever: str
    cloud: str


async def serve_documents(
    stack: AsyncExitStack, serve: Serve, documents: SuiteDocuments, decoders: Mapping[Side, str]
) -> DocumentServices:
    """Both retrievers, filled, and the cloud's aggregator; `decoders`: of both sides."""
    documents.check()
    temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="tandem-index-"))
    folder = documents.folder or Path(temporary)
    sides: tuple[Side, ...] = ("device", "cloud")
    addresses = {
        str(side): await serve(_retriever(side, folder, documents, decoders[side]))
        for side in sides
    }
    await fill(documents, addresses)
    settings = AggregatorSettings.model_construct(
        side="cloud", decoder=decoders["cloud"], retriever=addresses["cloud"]
    )
    aggregator = AggregatorServicer(settings, Metrics(new_registry(), "cloud"))
    return DocumentServices(addresses["device"], await serve(aggregator))


def _retriever(
    side: Side, folder: Path, documents: SuiteDocuments, decoder: str
) -> RetrieverServicer:
    from tandem.index.document_index import open_index  # others need not wait for it

    index = open_index(folder / side, documents.embedding)
    forgetting = Forgetting([Connection(decoder, MAX_MESSAGE_BYTES, ClientAccess())])
    metrics, limits = Metrics(new_registry(), side), RetrieverLimits()
    return RetrieverServicer(index, side, (), limits, metrics, forgetting=forgetting)
