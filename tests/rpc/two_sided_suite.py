"""Both sides' services on loopback with scripted models and real retrievers: no torch."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from services.aggregator.config import AggregatorSettings
from services.aggregator.servicer import AggregatorServicer
from services.drafter.servicer import DrafterLimits, DrafterServicer
from services.verifier.servicer import VerifierLimits, VerifierServicer
from tandem.engine.base import Engine
from tandem.engine.document_decoder import Documents, Rescore
from tandem.engine.scripted import ScriptedEngine, scripted_law
from tandem.engine.scripted_tokenizer import ScriptedTokenizer
from tandem.rpc.aggregator_client import AggregatorClient
from tandem.rpc.lifecycle import RunningService
from tandem.rpc.retriever_client import RetrieverClient, Upload
from tandem.telemetry.metrics import Metrics, Side, new_registry
from tandem.telemetry.tracing import NO_TRACING, Tracing
from tests.rpc.retriever_peer import retriever
from tests.rpc.scripted_suite import started

VOCABULARY = 64
CONTEXT = 160
LAW = scripted_law(5, VOCABULARY, order=CONTEXT, sharpness=6.0)
NOTES = ("my heron note", "the heron is old")
PUBLIC = ("public heron text", "a heron in general")

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
    rescore: Rescore | None = None,
    engines: Sequence[Engine] = (),
    weights: Sequence[str] = (),
    limits: VerifierLimits | None = None,
    budgets: Sequence[int] = (2**29, 2**29),
) -> AsyncIterator[TwoSides]:
    """Drained at the end; nothing may be left in either engine then. `tracing` is of a service;
    `decoder_way` lies between each aggregator and the decoder beside it. Of device and cloud:
    `engines`, scripted ones unless given; `weights`, their names; `budgets` of documents."""
    engines = engines or [ScriptedEngine(VOCABULARY, LAW, context_length=CONTEXT) for _ in range(2)]
    named: list[Callable[[], str] | None] = [None, None]
    if weights:
        named = [lambda side=side: weights[side] for side in range(2)]  # type: ignore[misc]
    tokenizer = ScriptedTokenizer(VOCABULARY)
    async with AsyncExitStack() as stack:

        async def serve(service: object) -> RunningService:
            running = await started(service)  # type: ignore[arg-type]  # any of the four
            stack.push_async_callback(running.drain, 0.5)
            return running

        addresses, retrievers = [], []
        sides: tuple[tuple[Side, tuple[str, ...]], ...] = (("device", notes), ("cloud", public))
        for side, texts in sides:
            found = await stack.enter_async_context(
                retriever(folder / side, side, tracing=tracing(f"{side}-retriever"))
            )
            uploads = [Upload(f"{index}", text.encode()) for index, text in enumerate(texts)]
            async for answer in found.client.ingest(uploads):
                assert answer.last
            addresses.append(found.running.target)
            retrievers.append(found.client)
        verifier = await serve(
            VerifierServicer(
                engines[1],
                limits or VerifierLimits(),
                Metrics(new_registry(), "cloud"),
                tracing=tracing("verifier"),
                documents=Documents(tokenizer, budgets[1], rescore=rescore, weights=named[1]),
            )
        )
        drafter_metrics = Metrics(new_registry(), "device")
        drafter = await serve(
            DrafterServicer(
                engines[0],
                tokenizer,
                verifier.target,
                DrafterLimits(),
                drafter_metrics,
                tracing=tracing("drafter"),
                documents=Documents(tokenizer, budgets[0], rescore=rescore, weights=named[0]),
            )
        )
        decoders = [drafter.target, verifier.target]
        if decoder_way is not None:
            ways = [decoder_way(address) for address in decoders]
            decoders = [await stack.enter_async_context(each) for each in ways]
        settings = AggregatorSettings(
            side="cloud", decoder=decoders[1], retriever=addresses[1], http=False
        )
        traced = tracing("cloud-aggregator")
        metrics = Metrics(new_registry(), "cloud")
        cloud = await serve(AggregatorServicer(settings, metrics, tracing=traced))
        cloud_address = cloud.target
        if way is not None:
            cloud_address = await stack.enter_async_context(way(cloud_address))
        settings = AggregatorSettings(
            drafter=drafter.target,
            decoder=decoders[0],
            retriever=addresses[0],
            cloud=cloud_address,
            give_up_after_s=give_up_after_s,
            prometheus="http://127.0.0.1:9",  # nobody: the other sources are enough
            http=False,
        )
        traced = tracing("aggregator")
        metrics = Metrics(new_registry(), "device")
        front = AggregatorServicer(settings, metrics, tracing=traced)
        device = await serve(front)
        client = await stack.enter_async_context(AggregatorClient(device.target))
        cloud_client = await stack.enter_async_context(AggregatorClient(cloud.target))
        yield TwoSides(
            client,
            cloud_client,
            engines[0],
            engines[1],
            drafter,
            verifier,
            cloud,
            tuple(retrievers),
            front,
            metrics,
            drafter_metrics,
        )
    for engine in engines:
        assert engine.kv_bytes_in_use == 0
