"""Both sides' services on loopback with scripted models and real retrievers: no torch."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tandem.backends.interface import Engine
from tandem.generation.client import AggregatorClient
from tandem.generation.request import GenerationRequest
from tandem.net.lifecycle import RunningService
from tandem.net.retriever_client import RetrieverClient, Upload
from tandem.services.aggregator.servicer import AggregatorServicer
from tandem.services.drafter.servicer import DrafterLimits, DrafterServicer
from tandem.services.verifier.servicer import VerifierLimits, VerifierServicer
from tandem.specdec.messages import GenerationParams
from tandem.telemetry.metrics import Metrics, Side, new_registry
from tandem.telemetry.tracing import NO_TRACING, Tracing
from tandem.testing.scripted import ScriptedEngine, ScriptedTokenizer, scripted_probs
from tandem.text import Tokenizer
from tandem.two_sided.decoding.document_decoder import Documents, Rescore
from tests.services.retriever_peer import Retriever, retriever
from tests.services.scripted_suite import default_settings, started

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
    rescore: Rescore | None = None,
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
            rescore=rescore,
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
        running = await started(service)  # type: ignore[arg-type]  # any of the four
        self._stack.push_async_callback(running.drain, 0.5)
        return running

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
