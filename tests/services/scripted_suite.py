"""A whole suite on loopback with scripted models: real grpc.aio, no torch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tandem.backends.interface import Engine
from tandem.generation.client import AggregatorClient, Generated
from tandem.generation.request import GenerationRequest
from tandem.net.access import ClientAccess, ServerAccess
from tandem.net.lifecycle import RunningService, Service
from tandem.netem.link_model import LinkSettings
from tandem.netem.tcp_emulator import TcpLinkEmulator
from tandem.runtime.draft_hook import DraftHook
from tandem.runtime.pass_times import PassTimes
from tandem.runtime.tenant_memories import MemoryLimits, TenantMemories
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.aggregator.servicer import AggregatorServicer
from tandem.services.drafter.public_prompts import PublicPrompts
from tandem.services.drafter.servicer import DrafterLimits, DrafterServicer
from tandem.services.drafter.split_edge import SplitEdge
from tandem.services.verifier.cloud_drafts import CloudDraftModel
from tandem.services.verifier.servicer import VerifierLimits, VerifierServicer
from tandem.specdec.presets import SPLIT_LAYERS
from tandem.telemetry.metrics import Metrics, new_registry
from tandem.telemetry.tracing import NO_TRACING, Tracing
from tandem.testing.context_engine import Distribution
from tandem.testing.scripted import (
    ScriptedEngine,
    ScriptedLayers,
    ScriptedTokenizer,
    noisy_probs,
    scripted_probs,
)
from tandem.text import Tokenizer
from tandem.two_sided.interface import Documents
from tandem_api.common.v1.generation_pb2 import Summary

VOCABULARY = 64
CONTEXT = 512
MESSAGE_BYTES = 4 * 2**20
EOS = frozenset({0})
IDLE_S = 60.0

Path = Callable[[str], AbstractAsyncContextManager[str]]
"""From the verifier's address to the one that the drafter is told."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Running services with what stands behind them."""

    verifier: RunningService
    drafter: RunningService
    aggregator: RunningService
    front: AggregatorServicer
    target: Engine
    draft: Engine
    client: AggregatorClient
    cloud_metrics: Metrics
    edge_metrics: Metrics
    front_metrics: Metrics
    memory: TenantMemories | None = None
    cloud_draft: Engine | None = None
    hook: DraftHook | None = None

    async def idle(self, timeout_s: float = IDLE_S) -> None:
        """Until no service holds a request, and the engines no session and no keys and values any
        more. What a caller left behind may still arrive at the verifier, and be opened for a
        moment."""
        engines = [self.target, self.draft, *([self.cloud_draft] if self.cloud_draft else ())]
        services = [each.service for each in (self.aggregator, self.drafter, self.verifier)]
        await until(
            lambda: (
                not any(each.sessions_open or each.kv_bytes_in_use for each in engines)
                and not any(service.open_requests for service in services)
            ),
            timeout_s,
        )


async def until(reached: Callable[[], object], timeout_s: float = IDLE_S) -> None:
    """Wait for what happens meanwhile. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not reached():
            await asyncio.sleep(0.005)


def summary_of(answer: Generated) -> Summary:
    """The summary of an answer, which has ended."""
    assert answer.summary is not None
    return answer.summary


def sample(metrics: Metrics, name: str, **labels: str) -> float:
    """The number of a series of this side; 0 where nothing was counted."""
    return metrics.registry.get_sample_value(name, {"side": metrics.side, **labels}) or 0.0


@cache
def default_settings() -> AggregatorSettings:
    """Made once: reading them from the environment takes as long as starting the services."""
    return AggregatorSettings()


def target_engine(vocabulary: int = VOCABULARY) -> ScriptedEngine:
    probs = scripted_probs(1, vocabulary, sharpness=9.0)
    return ScriptedEngine(vocabulary, probs, context_length=CONTEXT, eos_token_ids=EOS)


def draft_probs(vocabulary: int = VOCABULARY) -> Distribution:
    target = scripted_probs(1, vocabulary, sharpness=9.0)
    noise = scripted_probs(2, vocabulary, sharpness=9.0)
    return noisy_probs(target, noise, 0.3)


def draft_engine(vocabulary: int = VOCABULARY, context_length: int = CONTEXT) -> ScriptedEngine:
    probs = draft_probs(vocabulary)
    return ScriptedEngine(vocabulary, probs, context_length=context_length, eos_token_ids=EOS)


def cloud_draft_model(engine: Engine | None, target: Engine) -> CloudDraftModel:
    """The verifier's own draft model: `engine`, which is there, or a scripted one, which would have
    to be loaded."""
    load = lambda: engine or draft_engine(target.vocabulary_size)  # noqa: E731
    return CloudDraftModel("small", load, loaded=engine is not None)


async def started(
    service: Service, port: int = 0, access: ServerAccess | None = None
) -> RunningService:
    access = access or ServerAccess(reflection=True)
    running = RunningService(service, "127.0.0.1", port, MESSAGE_BYTES, access)
    await running.start()
    return running


@asynccontextmanager
async def serving(
    service: Service, port: int = 0, access: ServerAccess | None = None, drain_s: float = 0.5
) -> AsyncIterator[RunningService]:
    """A service that is drained at the end, whatever comes."""
    running = await started(service, port, access)
    try:
        yield running
    finally:
        await running.drain(drain_s)


async def begun(client: AggregatorClient, wanted: GenerationRequest) -> asyncio.Task[Generated]:
    """The answer under way, once its first token is there."""
    committing = asyncio.Event()

    async def follow() -> Generated:
        result = Generated()
        async for result in client.stream(wanted):
            if result.token_ids:
                committing.set()
        return result

    task = asyncio.create_task(follow())
    waiting = asyncio.create_task(committing.wait())
    await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    return task


async def answer_over(
    link: TcpLinkEmulator, client: AggregatorClient, wanted: GenerationRequest, every: int = 12
) -> Generated:
    """The answer over a link whose connections are dropped twice, after `every` tokens and after
    as many more."""
    drops, answer = 0, Generated()
    async for answer in client.stream(wanted):
        if len(answer.token_ids) > every * (drops + 1) and drops < 2:
            link.drop()
            drops += 1
    return answer


@asynccontextmanager
async def scripted_suite(
    verifier_limits: VerifierLimits | None = None,
    drafter_limits: DrafterLimits | None = None,
    settings: AggregatorSettings | None = None,
    target: Engine | None = None,
    draft: Engine | None = None,
    path: Path | None = None,
    tokenizer: Tokenizer | None = None,
    splits: bool = True,
    memory: MemoryLimits | None = None,
    hook: Callable[[Metrics], DraftHook | None] = lambda metrics: None,
    cloud_draft: Engine | None = None,
    drafts_in_cloud: bool = True,
    target_pass_times: PassTimes | None = None,
    access: Callable[[str], ServerAccess | None] = lambda service: None,
    shown: Callable[[str], ClientAccess | None] = lambda caller: None,
    tracing: Callable[[str], Tracing] = lambda service: NO_TRACING,
    public_prompts: PublicPrompts | None = None,
) -> AsyncIterator[Suite]:
    """Three services and a client, drained at the end; `path` lies between drafter and verifier.
    `tokenizer`: of the models; a scripted one by default. `splits`: the drafter has the target's
    first layers. `memory`: what the drafter remembers; None: nothing. `hook`: of the
    drafter. `drafts_in_cloud`: the verifier has a draft model, `cloud_draft` or a
    scripted one. `access` and `tracing`: of a service; `shown`: by "drafter", "aggregator" or
    "client"."""
    target, draft = target or target_engine(), draft or draft_engine()
    cloud, edge = Metrics(new_registry(), "cloud"), Metrics(new_registry(), "device")
    front = Metrics(new_registry(), "device")
    tokenizer = tokenizer or ScriptedTokenizer(draft.vocabulary_size)
    # Its tokenizer is for grammars alone, which a scripted one cannot be asked for.
    documents = None if isinstance(tokenizer, ScriptedTokenizer) else Documents(tokenizer)
    own = cloud_draft_model(cloud_draft, target) if drafts_in_cloud else None
    limits = drafter_limits or DrafterLimits()
    running: list[RunningService] = []
    async with AsyncExitStack() as stack:
        try:
            verifying = VerifierServicer(
                target,
                verifier_limits or VerifierLimits(),
                cloud,
                documents=documents,
                cloud_draft=own,
                pass_times=target_pass_times,
                tracing=tracing("verifier"),
            )
            running.append(verifier := await started(verifying, access=access("verifier")))
            address = verifier.target
            if path is not None:
                address = await stack.enter_async_context(path(address))
            layers = partial(ScriptedLayers, draft.vocabulary_size, CONTEXT)
            split = SplitEdge(SPLIT_LAYERS, layers) if splits else None
            remembered = TenantMemories.of(memory, draft)
            hooked = hook(edge)
            servicing = DrafterServicer(
                draft,
                tokenizer,
                address,
                limits,
                edge,
                shown("drafter"),
                tracing=tracing("drafter"),
                public_prompts=public_prompts,
                split=split,
                memory=remembered,
                hook=hooked,
            )
            running.append(drafter := await started(servicing, access=access("drafter")))
            settings = settings or default_settings()
            settings = settings.model_copy(update={"drafter": drafter.target})
            servicer = AggregatorServicer(
                settings, front, shown("aggregator"), tracing("aggregator")
            )
            running.append(aggregator := await started(servicer, access=access("aggregator")))
            async with AggregatorClient(aggregator.target, access=shown("client")) as client:
                services = (verifier, drafter, aggregator, servicer)
                yield Suite(
                    *services,
                    target,
                    draft,
                    client,
                    cloud,
                    edge,
                    front,
                    remembered,
                    cloud_draft,
                    hooked,
                )
        finally:  # whatever began, or a server that nobody stops holds up the process's end
            for each in reversed(running):
                await each.drain(0.5)


@asynccontextmanager
async def emulated(
    address: str, links: list[TcpLinkEmulator], delay_s: float = 0.01
) -> AsyncIterator[str]:
    """A link to a service, with so long a delay each way; gives its near address."""
    host, port = address.rsplit(":", 1)
    link = LinkSettings(delay_s=delay_s)
    async with TcpLinkEmulator(("127.0.0.1", 0), (host, int(port)), link, link) as emulator:
        links.append(emulator)
        yield f"127.0.0.1:{emulator.address[1]}"


@asynccontextmanager
async def listening(server: grpc.aio.Server) -> AsyncIterator[str]:
    """A server with its handlers, at a free port; gives its address."""
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


TIMEOUT_S = 60.0


def health_stub(channel: grpc.aio.Channel) -> Any:
    """The published types know neither the methods of this stub nor asynchronous channels."""
    stub: Any = health_pb2_grpc.HealthStub
    return stub(channel)


async def health_of(target: str, service: str = "") -> str:
    """SERVING, NOT_SERVING, or the status code of a call that failed."""
    async with grpc.aio.insecure_channel(target) as channel:
        try:
            request = health_pb2.HealthCheckRequest(service=service)
            answer = await health_stub(channel).Check(request, timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            return error.code().name
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
