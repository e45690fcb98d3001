"""A running retriever over a lexical folder, and messages as a test wants them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from tandem.index.chunking import Chunking
from tandem.index.document_index import DocumentIndex, open_index
from tandem.index.embedding import Embedder
from tandem.index.extractor import Extractor
from tandem.net.access import ClientAccess
from tandem.net.connection import Connection
from tandem.net.lifecycle import RunningService
from tandem.net.own_side import Network
from tandem.net.retriever_client import MAX_MESSAGE_BYTES, RetrieverClient, Upload
from tandem.net.status import Rejected
from tandem.services.retriever.forgetting import Forgetting
from tandem.services.retriever.openai_vocabulary import OpenAIVocabulary, TokenSpelling
from tandem.services.retriever.servicer import RetrieverLimits, RetrieverServicer
from tandem.telemetry.metrics import Metrics, Side, new_registry
from tandem.telemetry.tracing import NO_TRACING, Tracing
from tandem_api.retriever.v1 import retriever_pb2 as pb
from tandem_api.retriever.v1 import retriever_pb2_grpc as pb_grpc
from tests.services.scripted_suite import started

TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Retriever:
    """The service and a client of it."""

    index: DocumentIndex
    running: RunningService
    client: RetrieverClient
    metrics: Metrics

    async def ingest(self, *uploads: Upload) -> list[pb.IngestResponse]:
        return [answer async for answer in self.client.ingest(uploads, TIMEOUT_S)]


def no_vocabulary() -> TokenSpelling:
    """Nothing is fetched for a test."""
    raise OSError("no network")


@asynccontextmanager
async def retriever(
    folder: Path,
    role: Side = "device",
    networks: tuple[Network, ...] = (),
    limits: RetrieverLimits | None = None,
    tracing: Tracing = NO_TRACING,
    decoder: str = "",
    extractor: Extractor | None = None,
    embedder: Embedder | None = None,
    openai_vocabulary: Callable[[], TokenSpelling] = no_vocabulary,
) -> AsyncIterator[Retriever]:
    """Drained at the end."""
    metrics = Metrics(new_registry(), role)
    index = (
        DocumentIndex(folder, embedder, Chunking(64, 8))
        if embedder
        else open_index(folder, "lexical")
    )
    limits = limits or RetrieverLimits()
    connections = [Connection(decoder, MAX_MESSAGE_BYTES, ClientAccess())] if decoder else []
    forgetting = Forgetting(connections)
    settings = (index, role, networks, limits, metrics, tracing, forgetting)
    vocabulary = OpenAIVocabulary(openai_vocabulary)
    service = RetrieverServicer(*settings, extractor, vocabulary)
    running = await started(service)
    try:
        async with RetrieverClient(running.target) as client:
            yield Retriever(index, running, client, metrics)
    finally:
        await running.drain(5.0)


async def raw_ingest(target: str, *messages: pb.IngestRequest, close: bool = True) -> Any:
    """(status, details, answers) of a stream with these messages."""
    async with grpc.aio.insecure_channel(target) as channel:
        call: Any = pb_grpc.RetrieverServiceStub(channel).Ingest(timeout=TIMEOUT_S)
        with suppress(
            grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError
        ):  # refused unread
            for message in messages:
                await call.write(message)
            if close:
                await call.done_writing()
        answers = []
        try:
            while isinstance(answer := await call.read(), pb.IngestResponse):
                answers.append(answer)
        except grpc.aio.AioRpcError:
            pass
        return (await call.code()).name, await call.details(), answers


async def status_of(work: Any) -> tuple[str, str]:
    """(status, details) that a call is refused with."""
    try:
        await work
    except Rejected as error:
        return error.code.name, str(error)
    return "OK", ""


def outcomes(answers: Iterable[pb.IngestResponse]) -> list[tuple[int, str, str, bool]]:
    return [
        (a.number, a.document_id, pb.Outcome.Name(a.outcome).removeprefix("OUTCOME_"), a.last)
        for a in answers
    ]
