"""Both sides' services on loopback with scripted models and real retrievers: no torch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from tandem.backends.interface import Engine
from tandem.generation.client import AggregatorClient
from tandem.generation.request import GenerationRequest
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
from tandem.services.aggregator.servicer import AggregatorServicer
from tandem.services.drafter.servicer import DrafterLimits, DrafterServicer
from tandem.services.retriever.forgetting import Forgetting
from tandem.services.retriever.openai_vocabulary import OpenAIVocabulary, TokenSpelling
from tandem.services.retriever.servicer import RetrieverLimits, RetrieverServicer
from tandem.services.verifier.servicer import VerifierLimits, VerifierServicer
from tandem.specdec.messages import GenerationParams
from tandem.telemetry.metrics import Metrics, Side, new_registry
from tandem.telemetry.tracing import NO_TRACING, Tracing
from tandem.testing.scripted import ScriptedEngine, ScriptedTokenizer, scripted_probs
from tandem.text import Tokenizer
from tandem.two_sided.decoding.document_decoder import Documents
from tandem_api.retriever.v1 import retriever_pb2 as pb
from tandem_api.retriever.v1 import retriever_pb2_grpc as pb_grpc
from tests.services.scripted_suite import default_settings, serving

VOCABULARY = 64
CONTEXT = 160
TOKENIZER = ScriptedTokenizer(VOCABULARY)
PROBS = scripted_probs(5, VOCABULARY, order=CONTEXT, sharpness=6.0)
PROMPT = "what of the heron?"
QUERY = "heron"
NOTES = ("my heron note", "the heron is old")
PUBLIC = ("public heron text", "a heron in general")

TOKENS = 10
"""Of an answer, unless a test asks for others."""

NO_PROMETHEUS = "http://127.0.0.1:9"
"""Nobody answers there: the other sources are enough."""

Way = Callable[[str], AbstractAsyncContextManager[str]]
"""From the cloud aggregator's address to the one that the device is told."""


@dataclass(frozen=True, slots=True)
class TwoSides:
    """Running services with what stands behind them."""

    client: AggregatorClient
    cloud_client: AggregatorClient
    device: Engine
    cloud: Engine
    drafter: RunningService
    verifier: RunningService
    cloud_aggregator: RunningService
    retrievers: tuple[RetrieverClient, ...]
    front: AggregatorServicer
    device_metrics: Metrics
    drafter_metrics: Metrics


@asynccontextmanager
async def two_sides(
    folder: Path,
    notes: tuple[str, ...] = NOTES,
    public: tuple[str, ...] = PUBLIC,
    way: Way | None = None,
    decoder_way: Way | None = None,
    give_up_after_s: float = 10.0,
    tracing: Callable[[str], Tracing] = lambda service: NO_TRACING,
    engines: Sequence[Engine] = (),
    weights: Sequence[str] = (),
    limits: VerifierLimits | None = None,
    budgets: Sequence[int] = (2**29, 2**29),
    tokenizer: Tokenizer = TOKENIZER,
    prometheus: str = NO_PROMETHEUS,
) -> AsyncIterator[TwoSides]:
    """Drained at the end; nothing may be left in either engine then. `tracing` is of a service;
    `decoder_way` lies between each aggregator and the decoder beside it. Of device and cloud:
    `engines`, scripted ones unless given; `weights`, their names; `budgets` of documents.
    `prometheus`: the address that both aggregators ask."""
    device, cloud = engines or [scripted_side(), scripted_side()]
    kept = [
        Documents(
            tokenizer,
            budgets[side],
            weights=partial(weights.__getitem__, side) if weights else None,
        )
        for side in range(2)
    ]
    async with AsyncExitStack() as stack:
        start = _Starting(stack, tracing, tokenizer, prometheus)
        own = await start.retriever(folder, "device", notes)
        others = await start.retriever(folder, "cloud", public)
        verifier = await start.verifier(cloud, limits, kept[1])
        drafter_metrics = Metrics(new_registry(), "device")
        drafter = await start.drafter(device, verifier.target, drafter_metrics, kept[0])
        decoders = [
            await start.behind(decoder_way, service.target) for service in (drafter, verifier)
        ]
        aggregator = await start.cloud_aggregator(decoders[1], others.running.target)
        device_metrics = Metrics(new_registry(), "device")
        settings = default_settings().model_copy(
            update={
                "drafter": drafter.target,
                "decoder": decoders[0],
                "retriever": own.running.target,
                "cloud": await start.behind(way, aggregator.target),
                "give_up_after_s": give_up_after_s,
                "prometheus": prometheus,
                "http": False,
            }
        )
        front = AggregatorServicer(settings, device_metrics, tracing=tracing("aggregator"))
        running = await start.serve(front)
        yield TwoSides(
            await stack.enter_async_context(AggregatorClient(running.target)),
            await stack.enter_async_context(AggregatorClient(aggregator.target)),
            device,
            cloud,
            drafter,
            verifier,
            aggregator,
            (own.client, others.client),
            front,
            device_metrics,
            drafter_metrics,
        )
    assert device.kv_bytes_in_use == cloud.kv_bytes_in_use == 0


def scripted_side() -> ScriptedEngine:
    return ScriptedEngine(VOCABULARY, PROBS, context_length=CONTEXT)


class _Starting:
    """Starts services, which `stack` ends."""

    def __init__(
        self,
        stack: AsyncExitStack,
        tracing: Callable[[str], Tracing],
        tokenizer: Tokenizer,
        prometheus: str,
    ) -> None:
        self._stack = stack
        self._tracing = tracing
        self._tokenizer = tokenizer
        self._prometheus = prometheus

    async def serve(self, service: object) -> RunningService:
        running = serving(service)  # type: ignore[arg-type]  # any of the four
        return await self._stack.enter_async_context(running)

    async def behind(self, way: Way | None, address: str) -> str:
        """The address that lies before `address` on that way."""
        return address if way is None else await self._stack.enter_async_context(way(address))

    async def retriever(self, folder: Path, side: Side, texts: tuple[str, ...]) -> Retriever:
        tracing = self._tracing(f"{side}-retriever")
        found = await self._stack.enter_async_context(
            retriever(folder / side, side, tracing=tracing)
        )
        uploads = [Upload(f"{index}", text.encode()) for index, text in enumerate(texts)]
        async for answer in found.client.ingest(uploads):
            assert answer.last
        return found

    async def verifier(
        self, engine: Engine, limits: VerifierLimits | None, documents: Documents
    ) -> RunningService:
        return await self.serve(
            VerifierServicer(
                engine,
                limits or VerifierLimits(),
                Metrics(new_registry(), "cloud"),
                tracing=self._tracing("verifier"),
                documents=documents,
            )
        )

    async def drafter(
        self, engine: Engine, verifier: str, metrics: Metrics, documents: Documents
    ) -> RunningService:
        return await self.serve(
            DrafterServicer(
                engine,
                self._tokenizer,
                verifier,
                DrafterLimits(),
                metrics,
                tracing=self._tracing("drafter"),
                documents=documents,
            )
        )

    async def cloud_aggregator(self, decoder: str, retriever: str) -> RunningService:
        settings = default_settings().model_copy(
            update={
                "side": "cloud",
                "decoder": decoder,
                "retriever": retriever,
                "prometheus": self._prometheus,
                "http": False,
            }
        )
        metrics = Metrics(new_registry(), "cloud")
        traced = self._tracing("cloud-aggregator")
        return await self.serve(AggregatorServicer(settings, metrics, tracing=traced))


def asking(method: str, **changes: Any) -> GenerationRequest:
    """A request by a preset and overrides of it: "dragon placement=cloud"."""
    preset, *overrides = method.split()
    request = GenerationRequest(
        PROMPT, preset, GenerationParams(seed=5, max_tokens=TOKENS), query=QUERY, documents=2
    )
    added = (*overrides, *changes.pop("overrides", ()))
    return request.with_fields(overrides=added, **changes)


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
    async with serving(service, drain_s=5.0) as running, RetrieverClient(running.target) as client:
        yield Retriever(index, running, client, metrics)


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
