"""A whole suite on loopback with scripted models: real grpc.aio, no torch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from services.aggregator.config import AggregatorSettings
from services.aggregator.servicer import AggregatorServicer
from services.drafter.servicer import DrafterLimits, DrafterServicer
from services.verifier.servicer import VerifierLimits, VerifierServicer
from tandem.engine.scripted import ScriptedEngine, noisy_law, scripted_law
from tandem.engine.scripted_tokenizer import ScriptedTokenizer
from tandem.rpc.aggregator_client import AggregatorClient
from tandem.rpc.lifecycle import RunningService, Service
from tandem.telemetry.metrics import Metrics, new_registry

VOCABULARY = 64
CONTEXT = 512
MESSAGE_BYTES = 4 * 2**20
EOS = frozenset({0})


@dataclass(frozen=True, slots=True)
class Suite:
    """Running services with what stands behind them."""

    verifier: RunningService
    drafter: RunningService
    aggregator: RunningService
    target: ScriptedEngine
    draft: ScriptedEngine
    client: AggregatorClient
    cloud_metrics: Metrics
    edge_metrics: Metrics

    async def idle(self, timeout_s: float = 10.0) -> None:
        """Until both engines hold no session any more."""
        async with asyncio.timeout(timeout_s):
            while self.target.sessions_open or self.draft.sessions_open:
                await asyncio.sleep(0.005)


def target_engine(vocabulary: int = VOCABULARY) -> ScriptedEngine:
    law = scripted_law(1, vocabulary, sharpness=9.0)
    return ScriptedEngine(vocabulary, law, context_length=CONTEXT, eos_token_ids=EOS)


def draft_engine(vocabulary: int = VOCABULARY) -> ScriptedEngine:
    target = scripted_law(1, vocabulary, sharpness=9.0)
    noise = scripted_law(2, vocabulary, sharpness=9.0)
    law = noisy_law(target, noise, 0.3)
    return ScriptedEngine(vocabulary, law, context_length=CONTEXT, eos_token_ids=EOS)


async def started(service: Service) -> RunningService:
    running = RunningService(service, "127.0.0.1", 0, MESSAGE_BYTES)
    await running.start()
    return running


@asynccontextmanager
async def scripted_suite(
    verifier_limits: VerifierLimits | None = None,
    drafter_limits: DrafterLimits | None = None,
    settings: AggregatorSettings | None = None,
    target: ScriptedEngine | None = None,
    draft: ScriptedEngine | None = None,
) -> AsyncIterator[Suite]:
    """Three services and a client, drained at the end."""
    target, draft = target or target_engine(), draft or draft_engine()
    cloud, edge = Metrics(new_registry(), "cloud"), Metrics(new_registry(), "device")
    verifier = await started(VerifierServicer(target, verifier_limits or VerifierLimits(), cloud))
    tokenizer = ScriptedTokenizer(draft.vocabulary_size)
    limits = drafter_limits or DrafterLimits()
    drafter = await started(DrafterServicer(draft, tokenizer, verifier.target, limits, edge))
    settings = (settings or AggregatorSettings()).model_copy(update={"drafter": drafter.target})
    aggregator = await started(AggregatorServicer(settings, Metrics(new_registry(), "device")))
    try:
        async with AggregatorClient(aggregator.target) as client:
            yield Suite(verifier, drafter, aggregator, target, draft, client, cloud, edge)
    finally:
        for running in (aggregator, drafter, verifier):
            await running.drain(0.5)
