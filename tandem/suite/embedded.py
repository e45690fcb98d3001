"""A whole suite in this process: verifier, drafter and aggregator on loopback, over real gRPC.
Invariant: after the context nothing listens and no engine thread runs. Settings are what was
passed, never the environment's. Ports are unencrypted and open, on loopback alone."""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import cache, partial
from typing import Self

from tandem.backends.interface import Engine
from tandem.backends.model_source import LoadedModel
from tandem.core.default_sampling import NO_DEFAULTS
from tandem.index.extraction import Refusal
from tandem.net.access import ServerAccess
from tandem.net.lifecycle import RunningService, Service
from tandem.netem.link_model import LinkShape
from tandem.netem.tcp_emulator import TcpLinkEmulator
from tandem.runtime.pass_times import measure_pass_times
from tandem.runtime.tenant_memories import MemoryLimits, TenantMemories
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.aggregator.servicer import AggregatorServicer
from tandem.services.drafter.servicer import DrafterLimits, DrafterServicer
from tandem.services.drafter.split_edge import SplitEdge
from tandem.services.verifier.cloud_drafts import CloudDraftModel
from tandem.services.verifier.servicer import VerifierLimits, VerifierServicer
from tandem.specdec.liveness import LivenessTimes
from tandem.specdec.presets import SPLIT_LAYERS
from tandem.suite.embedded_documents import serve_documents
from tandem.suite.models import ModelPair
from tandem.suite.suite_documents import SuiteDocuments, kept_kv_folder
from tandem.telemetry.metrics import Metrics, Side, new_registry
from tandem.two_sided.interface import Documents, open_document_files

HOST = "127.0.0.1"
MAX_MESSAGE_BYTES = 16 * 2**20
DRAIN_S = 1.0
GIVE_UP_AFTER_S = 30.0
"""One process and no network: a silent cloud is a busy one."""


class EmbeddedSuite:
    """Serves `pair` inside an asynchronous context; requests go to `target`. `link` emulates each
    direction between device and cloud; `emulator` changes and cuts that of drafter and verifier.
    `http` opens the HTTP API at `http_url`. `documents` allow answers from two sides. `memory`:
    what the drafter remembers of texts; None: nothing.
    `refused`: documents that could not be taken."""

    def __init__(
        self,
        pair: ModelPair,
        *,
        link: LinkShape | None = None,
        link_seed: int = 0,
        verifier_limits: VerifierLimits | None = None,
        drafter_limits: DrafterLimits | None = None,
        http: bool = False,
        documents: SuiteDocuments | None = None,
        memory: MemoryLimits | None = None,
    ) -> None:
        self._pair = pair
        self._documents = documents
        self._memory = memory
        self._http = http
        self._link = link
        self._link_seed = link_seed
        self._verifier_limits = verifier_limits or VerifierLimits()
        liveness = LivenessTimes(give_up_after_s=GIVE_UP_AFTER_S)
        self._drafter_limits = drafter_limits or DrafterLimits(
            max_message_bytes=MAX_MESSAGE_BYTES, liveness=liveness
        )
        self._stack = AsyncExitStack()
        self.metrics: Mapping[str, Metrics] = {
            "verifier": Metrics(new_registry(), "cloud"),
            "drafter": Metrics(new_registry(), "device"),
            "aggregator": Metrics(new_registry(), "device"),
        }
        self.target = self.drafter_target = self.verifier_target = self.http_url = ""
        self.refused: list[Refusal] = []
        self._emulators: list[TcpLinkEmulator] = []
        self._services: tuple[Service, ...] = ()

    @property
    def open_requests(self) -> int:
        """At the aggregator, the drafter and the verifier."""
        return sum(service.open_requests for service in self._services)

    @property
    def emulator(self) -> TcpLinkEmulator | None:
        return self._emulators[0] if self._emulators else None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def _cloud_draft(self) -> CloudDraftModel | None:
        load = self._pair.cloud_draft
        return None if load is None else CloudDraftModel(self._pair.draft.model_name, load)

    async def _start(self, stack: AsyncExitStack) -> None:
        pair = self._pair
        draft, target = pair.models or (None, None)
        verifier = VerifierServicer(
            engine=pair.target,
            limits=self._verifier_limits,
            metrics=self.metrics["verifier"],
            device=pair.device,
            dtype=pair.dtype,
            documents=self._decoded(pair.target, target, "cloud"),
            default_sampling=NO_DEFAULTS if target is None else target.default_sampling,
            pass_times=measure_pass_times(pair.target),
            cloud_draft=self._cloud_draft(),
        )
        self.verifier_target = await _serve(stack, verifier)
        drafter = DrafterServicer(
            engine=pair.draft,
            tokenizer=pair.tokenizer,
            verifier=await self._through_link(stack, self.verifier_target),
            limits=self._drafter_limits,
            metrics=self.metrics["drafter"],
            documents=self._decoded(pair.draft, draft, "device"),
            split=self._split_edge(),
            memory=TenantMemories.of(self._memory, pair.draft),
            pass_times=measure_pass_times(pair.draft),
        )
        self.drafter_target = await _serve(stack, drafter)
        # model_construct: the defaults, without what the environment says.
        settings = AggregatorSettings.model_construct(
            drafter=self.drafter_target, give_up_after_s=GIVE_UP_AFTER_S
        )
        if self._documents is not None:
            decoders: dict[Side, str]
            decoders = {"device": self.drafter_target, "cloud": self.verifier_target}
            serve = partial(_serve, stack)
            sides = await serve_documents(stack, serve, self._documents, decoders)
            cloud = await self._through_link(stack, sides.cloud_aggregator)
            self.refused = sides.refused
            addresses = {"retriever": sides.retriever, "cloud": cloud}
            settings = settings.model_copy(update=addresses)
        aggregator = AggregatorServicer(settings, self.metrics["aggregator"])
        self.target = await _serve(stack, aggregator)
        self._services = (aggregator, drafter, verifier)
        if self._http:
            self.http_url = await self._open_http(stack, aggregator)

    def _split_edge(self) -> SplitEdge | None:
        """Return the target's first layers, which the first split request loads."""
        if (load := self._pair.first_layers) is None:
            return None
        return SplitEdge(SPLIT_LAYERS, partial(load, SPLIT_LAYERS))

    def _decoded(self, engine: Engine, model: LoadedModel | None, side: str) -> Documents:
        """Return the arguments for decoding documents at a side; keys and values are stored beside
        a persistent index."""
        documents = self._documents
        tokenizer = self._pair.tokenizer
        if documents is None or model is None:
            return Documents(tokenizer)
        kept = documents.folder
        folder = None if kept is None else kept_kv_folder(kept, side)
        weights = cache(model.content_hash)  # it reads all of them
        files = open_document_files(engine, folder, weights)
        return Documents(tokenizer, files=files, weights=weights)

    async def _open_http(self, stack: AsyncExitStack, aggregator: AggregatorServicer) -> str:
        # Here: `tandem generate` need not wait for it.
        from tandem.gateway.app import GatewaySettings, make_app
        from tandem.gateway.server import HttpServer

        documents = aggregator.requests.documents if self._documents is not None else None
        settings = GatewaySettings(
            documents=documents, grpc_port=int(self.target.rpartition(":")[2])
        )
        app = make_app(aggregator.requests, self.metrics["aggregator"], settings)
        return (await stack.enter_async_context(HttpServer(app, HOST, 0))).url

    async def _through_link(self, stack: AsyncExitStack, target: str) -> str:
        """Return where the device finds what serves at `target`."""
        if (link := self._link) is None:
            return target
        address = HOST, int(target.rpartition(":")[2])
        emulator = TcpLinkEmulator((HOST, 0), address, link.up, link.down, seed=self._link_seed)
        await stack.enter_async_context(emulator)
        self._emulators.append(emulator)
        return f"{HOST}:{emulator.address[1]}"


async def _serve(stack: AsyncExitStack, service: Service) -> str:
    """Start `service`, to be drained when the stack unwinds; returns its address."""
    running = RunningService(
        service=service,
        host=HOST,
        port=0,
        max_message_bytes=MAX_MESSAGE_BYTES,
        access=ServerAccess(),
    )
    stack.push_async_callback(running.drain, DRAIN_S)
    await running.start()
    return running.target
