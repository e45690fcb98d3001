"""Retrievers and the cloud's aggregator of an embedded suite, for answers from two sides."""

import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from tandem.index.extraction import Refusal
from tandem.net.access import ClientAccess
from tandem.net.connection import Connection
from tandem.net.lifecycle import Service
from tandem.net.retriever_client import MAX_MESSAGE_BYTES
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.aggregator.servicer import AggregatorServicer
from tandem.services.retriever.forgetting import Forgetting
from tandem.services.retriever.servicer import RetrieverLimits, RetrieverServicer
from tandem.suite.suite_documents import SuiteDocuments, fill
from tandem.telemetry.metrics import Metrics, Side, new_registry

Serve = Callable[[Service], Awaitable[str]]
"""Starts a service and gives its address."""


@dataclass(frozen=True, slots=True)
class DocumentServices:
    """Addresses of the device's retriever and of the cloud's aggregator, and the documents that
    could not be taken."""

    retriever: str
    cloud_aggregator: str
    refused: list[Refusal]


async def serve_documents(
    stack: AsyncExitStack, serve: Serve, documents: SuiteDocuments, decoders: Mapping[Side, str]
) -> DocumentServices:
    """Start a retriever for each side, filled, and the cloud's aggregator; `decoders`: of device
    and cloud."""
    documents.check()
    temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="tandem-index-"))
    folder = documents.folder or Path(temporary)
    retrievers: dict[str, str] = {
        side: await serve(_retriever(side, folder / side, documents, decoder))
        for side, decoder in decoders.items()
    }
    filled = await fill(documents, retrievers)
    cloud = await serve(_aggregator(decoders["cloud"], retrievers["cloud"]))
    return DocumentServices(
        retriever=retrievers["device"], cloud_aggregator=cloud, refused=filled.refused
    )


def _aggregator(decoder: str, retriever: str) -> AggregatorServicer:
    settings = AggregatorSettings.model_construct(
        side="cloud", decoder=decoder, retriever=retriever
    )
    return AggregatorServicer(settings, Metrics(new_registry(), "cloud"))


def _retriever(
    side: Side, folder: Path, documents: SuiteDocuments, decoder: str
) -> RetrieverServicer:
    from tandem.index.document_index import open_index  # others need not wait for it

    index = open_index(folder, documents.embedding)
    forgetting = Forgetting([Connection(decoder, MAX_MESSAGE_BYTES, ClientAccess())])
    metrics = Metrics(new_registry(), side)
    limits = RetrieverLimits()
    return RetrieverServicer(
        index=index, role=side, networks=(), limits=limits, metrics=metrics, forgetting=forgetting
    )
