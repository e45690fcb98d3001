"""gRPC handlers of the drafter: text in, committed text out. Invariant: a request costs nothing
before it was checked and admitted."""

import asyncio
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import grpc

from tandem.backends.end_of_text import reading_the_end, reads_the_end
from tandem.backends.interface import Engine
from tandem.backends.requirements import check_preset, fitted_to
from tandem.control.objective import Aim
from tandem.core.errors import InvalidArgument, Unavailable
from tandem.core.processors import GrammarMask, LogitsProcessor, logits_processor
from tandem.core.prompt import Turn
from tandem.core.thinking import with_thinking
from tandem.core.tokens import check_token_ids
from tandem.generation.conversation import Stream, cancelled, read_start
from tandem.generation.request import (
    MAX_TOOLS_CHARACTERS,
    GenerationRequest,
    request_from_proto,
)
from tandem.grammar.compiler import GrammarCompiler
from tandem.grammar.draft_mask import DraftMask
from tandem.learning.learner import Learner
from tandem.net.access import ClientAccess
from tandem.net.connection import Connection
from tandem.net.frame_stream import FrameStream, Traffic
from tandem.net.reloaded import Reloaded
from tandem.net.served_sessions import Reservation
from tandem.net.status import Rejected, errors_as_status
from tandem.net.stream_limits import served
from tandem.net.tenant import (
    Tenant,
    TenantIds,
    calling_tenant,
    check_tenant_id,
    paying_tenant,
)
from tandem.runtime.engine_thread import EngineThread
from tandem.runtime.image_prompt import ImagePrompt
from tandem.runtime.prefix_cache import KeptText
from tandem.runtime.served_engine import EngineLimits, ServedEngine
from tandem.services.drafter.answer_thinking import AnswerThinking, answer_thinking
from tandem.services.drafter.cloud.clouds import Clouds
from tandem.services.drafter.cloud.link import CloudLink, OpenVerify
from tandem.services.drafter.cloud.listed import ListedCloud, clouds_of
from tandem.services.drafter.learning import AnswerLearning, LearningPlace, draft_learning
from tandem.services.drafter.memory import DrafterMemory
from tandem.services.drafter.prefill import DraftPrefill
from tandem.services.drafter.public_prompts import PublicPrompts
from tandem.services.drafter.relaying import write_commits
from tandem.services.drafter.request_figures import count_request, request_summary
from tandem.services.drafter.session import DrafterSession
from tandem.services.drafter.split_edge import SplitEdge, layers_session, needed_layers
from tandem.services.drafter.tokenising import PromptTokens
from tandem.services.drafter.warm_start import WarmStarts
from tandem.specdec.choices import CloudDrafts
from tandem.specdec.edge import EdgeMachine
from tandem.specdec.events import EdgeRequest
from tandem.specdec.liveness import Liveness, LivenessTimes, LostCloud
from tandem.specdec.messages import CloudMessage, EdgeMessage, GenerationParams
from tandem.specdec.overrides import parse_overrides
from tandem.specdec.presets import PRESETS, Preset
from tandem.telemetry.logging import get_logger, log_context
from tandem.telemetry.metrics import UNKNOWN_MODEL, Metrics
from tandem.telemetry.prometheus_server import PrometheusServer, Sample
from tandem.telemetry.tracing import NO_TRACING, Span, Tracing
from tandem.text import FamilyTokenizer, Tokenizer
from tandem.text.answer_text import AnswerText
from tandem.two_sided.interface import DecodingServicer, DocumentDecoder, Documents
from tandem.wire.common_codec import THINKING_STARTS, prompt_from_proto
from tandem.wire.verifier_codec import EdgeCodec, describe_model
from tandem_api.common.v1 import generation_pb2 as pb
from tandem_api.drafter.v1 import drafter_pb2
from tandem_api.drafter.v1 import drafter_pb2_grpc as pb_grpc
from tandem_api.verifier.v1 import verifier_pb2_grpc

log = get_logger(__name__)

MAX_REQUEST_S = 600.0
DESCRIBE_TIMEOUT_S = 3.0
BESIDE_TOKENS = 256
"""Of a chat template, at most. Otherwise a text has no more tokens than characters."""
DESCRIBE_EVERY_S = 5.0
"""How often at most a request has a cloud described whose context is not known."""


@dataclass(frozen=True, slots=True)
class DrafterLimits(EngineLimits):
    """Limits of one drafter, how it watches its cloud, and requirements for its answers."""

    max_message_bytes: int = 16 * 2**20
    liveness: LivenessTimes = field(default_factory=LivenessTimes)
    aim: Aim = field(default_factory=Aim)
    price_weight: float = 1.0
    hedge_share: float = 0.05


class DrafterServicer(pb_grpc.DrafterServiceServicer):
    """Serves one draft engine against one verifier."""

    full_name = drafter_pb2.DESCRIPTOR.services_by_name["DrafterService"].full_name
    also_serves = (DecodingServicer.full_name,)

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        verifier: str | Reloaded[tuple[ListedCloud, ...]],
        limits: DrafterLimits,
        metrics: Metrics,
        access: ClientAccess | None = None,
        documents: Documents | None = None,
        tracing: Tracing = NO_TRACING,
        prometheus: PrometheusServer | None = None,
        instance: str = "",
        tenants: TenantIds | None = None,
        public_prompts: PublicPrompts | None = None,
        split: SplitEdge | None = None,
        memory: DrafterMemory | None = None,
        learning: LearningPlace | None = None,
    ) -> None:
        """`verifier`: see `clouds_of`, or a file of them. `access` is what it is shown; without it
        the connection to it is plain. `tenants`: what stands for callers there; by default by a
        secret of this servicer. `split`: the target's first layers, for split inference. `memory`:
        what is remembered of texts; None: nothing. `learning`: where the draft model learns, if it
        does."""
        self._engine = engine = reading_the_end(engine)
        self._tokenizer = tokenizer
        self._split = split
        self._memory = memory
        self._grammars = GrammarCompiler(tokenizer, engine.vocabulary_size, engine.eos_token_ids)
        self._prompts = PromptTokens(tokenizer, engine.context_length)
        self._limits = limits
        self._metrics = metrics
        self._tracing = tracing
        served_engine = ServedEngine(engine, "drafter-engine", limits, metrics)
        self._admission = served_engine.admission
        self._thread = served_engine.thread
        self._prefixes = served_engine.prefixes
        self._learning = draft_learning(
            engine,
            thread=self._thread,
            prefixes=self._prefixes,
            place=learning,
            metrics=metrics,
            busy=lambda: self._admission.sessions > 0,
        )
        self._sharing = limits.prefixes.sharing
        self._tenants = tenants or TenantIds()
        self._public_prompts = public_prompts or PublicPrompts()
        self._clouds = Clouds(
            clouds_of(verifier) if isinstance(verifier, str) else verifier,
            max_bytes=limits.max_message_bytes,
            access=access or ClientAccess(),
            series=metrics.clouds(),
            price_weight=limits.price_weight,
            hedge_share=limits.hedge_share,
        )
        known = documents or Documents(tokenizer)
        decoder = DocumentDecoder(self._thread, known, served_engine.series, self._grammars)
        self._decoding = DecodingServicer(
            decoder,
            admission=self._admission,
            metrics=metrics,
            tracing=tracing,
            imports=True,
            streams=limits.streams,
        )
        self._prometheus = prometheus
        samples = prometheus.read if prometheus else tuple[Sample, ...]
        self._warm_starts = WarmStarts(engine.model_name, instance, samples)
        self._closing_tasks: set[asyncio.Task[None]] = set()
        self._leaving = False
        self._target_context = 0
        """Of the cloud that was described last; 0: not known."""
        self._described_s = -inf

    def register(self, server: grpc.aio.Server) -> None:
        pb_grpc.add_DrafterServiceServicer_to_server(self, server)
        self._decoding.register(server)
        self._clouds.begin()
        self._learning.start()
        if self._prometheus is not None:
            self._prometheus.start()

    @property
    def open_requests(self) -> int:
        return self._admission.sessions

    @property
    def learner(self) -> Learner | None:
        """What teaches the draft model, if it learns."""
        return self._learning.learner

    @property
    def fault(self) -> str:
        return self._thread.fault

    def going_away(self, grace_s: float) -> None:
        """Requests under way run to their end within the grace; new ones are refused."""
        self._leaving = True
        self._decoding.going_away(grace_s)

    async def close(self) -> None:
        if self._closing_tasks:
            await asyncio.wait(self._closing_tasks)
        if self._prometheus is not None:
            await self._prometheus.close()
        await self._clouds.close()
        await self._decoding.close()
        await self._learning.close()
        await asyncio.to_thread(self._thread.stop)
        if self._split is not None:
            await self._split.close()
        if self._memory is not None:
            await self._memory.close()
        await asyncio.to_thread(self._tracing.close)

    async def Describe(  # noqa: N802  # the RPC's name
        self, request: pb.DescribeRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.DescribeResponse:
        kv_tokens = self._admission.kv_tokens(self._engine.kv_bytes_per_token)
        draft = describe_model(self._engine, kv_tokens=kv_tokens)
        answer = pb.DescribeResponse(draft=draft)
        try:
            answer.target.CopyFrom(await self._clouds.describe(DESCRIBE_TIMEOUT_S))
            self._know_target(answer.target.context_length)
        except Rejected as error:
            answer.cloud_error = str(error)
        answer.presets.extend(name for name, preset in PRESETS.items() if self._serves(preset))
        answer.clouds.extend(self._clouds.status())
        if isinstance(self._tokenizer, FamilyTokenizer):
            answer.family = self._tokenizer.family.name
        return answer

    def _serves(self, preset: Preset) -> bool:
        """Return whether drafter and cloud have what the preset needs beside the two models."""
        if preset.split_layers and not self._split:
            return False
        return preset.cloud_drafts is not CloudDrafts.MODEL or self._clouds.has_draft_model

    async def Tokenize(  # noqa: N802  # the RPC's name
        self, request: drafter_pb2.TokenizeRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> drafter_pb2.TokenizeResponse:
        async with errors_as_status(context):
            tenant = request.tenant
            check_tenant_id(tenant)
            await self._learn_context()
            prompt = prompt_from_proto(request, self._context())
            if len(request.tools) > MAX_TOOLS_CHARACTERS:
                raise InvalidArgument("tools", f"at most {MAX_TOOLS_CHARACTERS} characters")
            ids = await self._prompts.ids(
                prompt,
                tools=request.tools,
                chat_template_kwargs=request.chat_template_kwargs,
                tenant=tenant,
            )
            check_token_ids(ids, self._engine.vocabulary_size, "prompt")
            texts = await self._prompts.spelt(ids, tenant=tenant) if request.spell else []
            return drafter_pb2.TokenizeResponse(
                token_ids=ids, context_length=self._context(), token_texts=texts
            )
        raise AssertionError("abort ends the call")

    # The generated stubs know generators only; grpc.aio serves read/write handlers as well.
    async def Generate(  # type: ignore[override]  # noqa: N802  # the RPC's name
        self, request_iterator: object, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        async with served(context, self._limits.streams) as stream:
            await self._generate(stream)

    async def _generate(self, stream: Stream) -> None:
        start = (await read_start(stream)).start
        if self._leaving:
            raise Unavailable("the drafter is stopping")
        request = request_from_proto(start)
        images = ImagePrompt(self._engine, request.params.images)
        preset = self._checked_preset(request)
        tenant = calling_tenant(request.tenant, self._sharing)
        payer = paying_tenant(request.tenant)
        grammar_of = payer if self._masks_drafts(request, preset) else None
        with self._admission.reserve(grammar_of=grammar_of) as reservation:
            # Only from here on may the request cost anything, tokenising its prompt included.
            if self._may_exceed(request):
                await self._learn_context()
            edge_request, thinking = await self._edge_request(request, images, preset, tenant)
            capacity = len(edge_request.prompt_ids) + edge_request.max_tokens
            held = capacity + preset.spare_tokens(edge_request.max_tokens)
            if capacity > self._engine.context_length:  # the end of it is read
                held = self._engine.context_length
            reservation.take_more(held * self._engine.kv_bytes_per_token)
            split = needed_layers(self._split, preset)
            layers = None
            if split is not None:
                layers = await split.thread(self._engine.vocabulary_hash)
                reservation.take_more(capacity * layers.engine.kv_bytes_per_token)
            processor = await self._processor(request, edge_request, payer)
            named = {"session": f"{edge_request.session:08x}", "preset": request.preset}
            headers = stream.invocation_metadata()
            prompt_tokens = len(edge_request.prompt_ids)
            with (
                log_context(**named),
                self._tracing.span(
                    "generate", headers, **named, prompt_tokens=prompt_tokens
                ) as span,
            ):
                await self._serve(
                    stream,
                    request,
                    edge_request,
                    tenant=tenant,
                    images=images,
                    capacity=capacity,
                    span=span,
                    reservation=reservation,
                    processor=processor,
                    thinking=thinking,
                    layers=layers,
                )

    def _masks_drafts(self, request: GenerationRequest, preset: Preset) -> bool:
        """Return whether the edge follows the grammar: if there are drafts, or the drafts may
        become the text."""
        alone = request.lost_cloud is LostCloud.EDGE
        return request.params.processors.grammar is not None and (preset.drafts or alone)

    async def _processor(
        self, request: GenerationRequest, edge_request: EdgeRequest, payer: Tenant
    ) -> LogitsProcessor | None:
        """Return the processors of drafts, if there are any: a grammar takes time to compile."""
        asked = edge_request.params.processors
        mask: GrammarMask | None = None
        alone = request.lost_cloud is LostCloud.EDGE
        if not edge_request.preset.drafts and not alone:
            return None
        if asked.grammar is not None:
            spend = self._admission.spend_grammar
            found = await self._grammars.session_mask(asked.grammar, payer, spend)
            mask = DraftMask(found, strict=alone)
        mask = with_thinking(
            asked.thinking,
            mask,
            vocabulary_size=self._engine.vocabulary_size,
            eos_token_ids=self._engine.eos_token_ids,
        )
        return logits_processor(
            asked,
            edge_request.prompt_ids,
            mask,
            strict=False,
            eos_token_ids=frozenset() if request.params.ignore_eos else edge_request.eos_token_ids,
        )

    async def _serve(
        self,
        stream: Stream,
        request: GenerationRequest,
        edge_request: EdgeRequest,
        *,
        tenant: Tenant,
        images: ImagePrompt,
        capacity: int,
        span: Span,
        reservation: Reservation,
        processor: LogitsProcessor | None,
        thinking: AnswerThinking,
        layers: EngineThread | None,
    ) -> None:
        started = pb.Started(
            session=f"{edge_request.session:08x}",
            preset=request.preset,
            prompt_tokens=len(edge_request.prompt_ids),
            max_tokens=edge_request.max_tokens,
            family=thinking.family.name,
            thinking_start=THINKING_STARTS[thinking.start],
        )
        await stream.write(pb.GenerateResponse(started=started))
        text = thinking.text(self._tokenizer, request)
        traffic = Traffic()
        log.info("request started", prompt_tokens=len(edge_request.prompt_ids))
        learned = await self._learning.begin(paying_tenant(request.tenant))
        edge_request = edge_request if request.no_memory else learned.asking(edge_request)
        prompt = learned.kept_text(
            KeptText(
                tenant,
                edge_request.prompt_ids,
                public_tokens=edge_request.public_tokens,
                keeps=not request.params.images and capacity <= self._engine.context_length,
            )
        )
        async with (
            self._thread.session(capacity, edge_request.preset.tree_nodes, tenant) as kv,
            layers_session(layers, capacity, tenant) as layers_kv,
        ):
            await learned.adapt(kv)
            await images.show(self._thread, kv, edge_request.prompt_ids)
            times = self._clouds.times(self._limits.liveness)
            liveness = Liveness(request.lost_cloud, times, time.monotonic())
            machine = EdgeMachine(
                edge_request, liveness, text.completes_stop, on_target_probs=learned.heard
            )
            prefill = DraftPrefill(
                machine=machine,
                thread=self._thread,
                kv=kv,
                prefixes=self._prefixes,
                prompt=prompt,
                gives_back=lambda: reservation.kv_bytes,
            )
            link = CloudLink(
                clouds=self._clouds,
                machine=machine,
                tenant=tenant,
                kept_prompt_ids=() if request.params.images else edge_request.prompt_ids,
                open_verify=self._stream_opener(stream, edge_request, traffic, span),
                closing_tasks=self._closing_tasks,
            )
            session = DrafterSession(
                machine=machine,
                thread=self._thread,
                kv=kv,
                link=link,
                traffic=traffic,
                closing_tasks=self._closing_tasks,
                span=span,
                prefill=prefill,
                processor=processor,
                tells_rounds=request.rounds,
                layers=layers_kv,
            )
            try:
                await self._relay(stream, session, text, request, learned)
            finally:
                prefill.leave()
                reservation.tokens = len(edge_request.prompt_ids) + machine.stats.tokens
                if not request.no_memory:
                    learned.ended(machine)
                    self._remember(machine, paying_tenant(request.tenant))
        series = self._metrics.method(request.preset, machine.target_name or UNKNOWN_MODEL)
        count_request(series, machine, traffic)
        measured = machine.controller.estimates.snapshot(time.monotonic())
        predicted = edge_request.predicted is not None
        self._warm_starts.ended(request.preset, machine.target_name, measured, predicted)

    def _remember(self, machine: EdgeMachine, tenant: Tenant) -> None:
        """Have a text remembered as far as the target has said it."""
        if self._memory is None or machine.request.memory is None:
            return
        prompt_ids = machine.request.prompt_ids
        answer_ids = machine.committed.since(len(prompt_ids))
        verified = len(answer_ids) - machine.stats.unverified_tokens
        self._memory.learn(tenant, prompt_ids, answer_ids[:verified])

    async def _relay(
        self,
        stream: Stream,
        session: DrafterSession,
        text: AnswerText,
        request: GenerationRequest,
        learned: AnswerLearning,
    ) -> None:
        """Commits to the caller, until the end or the caller's cancel, all that were made before it
        included."""
        writing = write_commits(stream, session, text, request, self._prompts, learned.committed)
        relaying = asyncio.create_task(writing)
        cancelling = asyncio.create_task(cancelled(stream))
        try:
            await asyncio.wait((relaying, cancelling), return_when=asyncio.FIRST_COMPLETED)
            session.cancel()
            await asyncio.wait((relaying,))
        finally:
            cancelling.cancel()
            relaying.cancel()
            await asyncio.gather(relaying, return_exceptions=True)
        if cancelling.done() and not cancelling.cancelled():
            cancelling.result()  # raises if what came was no cancel
        if not relaying.cancelled():
            relaying.result()
        summary = request_summary(
            session.machine,
            session.traffic,
            reasoning_tokens=text.reasoning_tokens,
            draft_context=self._engine.context_length,
        )
        await stream.write(pb.GenerateResponse(summary=summary))

    def _context(self, whole: bool = False, tree_nodes: int = 0) -> int:
        """Return the most tokens of a prompt and its answer: the target's, whose text it is. Where
        that is not known, or the draft model has to read the `whole` text, the draft model's."""
        mine = self._engine.context_length
        theirs = self._target_context or mine
        end_suffices = not whole and reads_the_end(self._engine, tree_nodes)
        return theirs if end_suffices else min(mine, theirs)

    def _may_exceed(self, request: GenerationRequest) -> bool:
        """Return whether prompt and answer might not fit the draft model's context."""
        turns = (
            request.prompt
            if isinstance(request.prompt, str)
            else [item.content if isinstance(item, Turn) else " " for item in request.prompt]
        )
        most = sum(map(len, turns)) + len(request.suffix) + len(request.tools) + BESIDE_TOKENS
        return most + request.params.max_tokens > self._engine.context_length

    async def _learn_context(self) -> None:
        """Ask the cloud for its context, once it is needed and unless it was asked just now."""
        now = time.monotonic()
        if self._target_context or now < self._described_s + DESCRIBE_EVERY_S:
            return
        self._described_s = now
        with suppress(Rejected):  # the request will meet the same cloud
            self._know_target((await self._clouds.describe(DESCRIBE_TIMEOUT_S)).context_length)

    def _know_target(self, context_length: int) -> None:
        mine = self._engine.context_length
        if context_length > mine and context_length != self._target_context:
            log.info("long texts are read from the end", reads=mine, target_reads=context_length)
        self._target_context = context_length
        self._prompts.context_length = self._context()

    def _checked_preset(self, request: GenerationRequest) -> Preset:
        """Return the requested preset, checked against the draft model as far as that costs
        nothing."""
        engine = self._engine
        usual = parse_overrides(self._limits.aim.overrides)
        preset = request.composed_preset(engine.vocabulary_size, usual)
        preset = fitted_to(preset, engine.capabilities)
        check_preset(preset, draft=engine)
        if needed_layers(self._split, preset) is not None and request.params.images:
            raise InvalidArgument("images", "cannot be combined with split layers")
        if request.prediction and preset.schedule == PRESETS[request.preset].schedule:
            preset = preset.widened()  # nobody asked for another window
        request.params.sampling.validate(engine.vocabulary_size)
        check_token_ids(request.stop_token_ids, engine.vocabulary_size, "stop_token_ids")
        request.params.processors.validate(engine.vocabulary_size, request.params.ignore_eos)
        return preset

    async def _edge_request(
        self, request: GenerationRequest, images: ImagePrompt, preset: Preset, tenant: Tenant
    ) -> tuple[EdgeRequest, AnswerThinking]:
        """Tokenised, and how its answer may think."""
        engine = self._engine
        prompt_ids = images.placed(await self._prompts.of(request))
        if not prompt_ids:
            raise InvalidArgument("prompt", "is empty")
        check_token_ids(prompt_ids, engine.vocabulary_size, "prompt")
        # The draft model is shown images where the text begins.
        context = self._context(bool(request.params.images), preset.tree_nodes)
        room = context - len(prompt_ids)
        if room < 1:
            why = f"{len(prompt_ids)} tokens; the context holds {context}"
            raise InvalidArgument("prompt", why)
        predicted = None
        if request.prediction and preset.drafts_chains:
            predicted = await self._prompts.predicted(
                request.prediction, engine.vocabulary_size, tenant=request.tenant
            )
        memory = None
        # Of a prompt with images, token ids do not say all.
        if self._memory is not None and not (request.no_memory or request.params.images):
            payer = paying_tenant(request.tenant)
            memory = await self._memory.recollection(payer, prompt_ids)
        thinking = answer_thinking(self._tokenizer, prompt_ids, request)
        params = _params_for_both(request, room)
        params = replace(params, processors=thinking.processors(params.processors))
        params.processors.validate(engine.vocabulary_size, params.ignore_eos)
        edge_request = EdgeRequest(
            session=secrets.randbits(32),
            prompt_ids=prompt_ids,
            vocabulary_hash=engine.vocabulary_hash,
            vocabulary_size=engine.vocabulary_size,
            params=params,
            preset=preset,
            eos_token_ids=engine.eos_token_ids,
            stop_token_ids=frozenset(request.stop_token_ids),
            warm_start=self._warm_starts.known(request.preset, predicted is not None),
            prices=self._limits.aim.prices,
            tenant=self._tenants.id_of(tenant),
            public_tokens=self._public_prompts.tokens_in(prompt_ids),
            predicted=predicted,
            memory=memory,
        )
        return edge_request, thinking

    def _stream_opener(
        self,
        stream: Stream,
        request: EdgeRequest,
        traffic: Traffic,
        span: Span,
    ) -> OpenVerify:
        def open_stream(
            connection: Connection, on_frame: Any, on_end: Any
        ) -> FrameStream[EdgeMessage, CloudMessage]:
            deadline_s = stream.time_remaining() or MAX_REQUEST_S
            return FrameStream(
                connection,
                begin=lambda channel: verifier_pb2_grpc.VerifierServiceStub(channel).Verify(
                    timeout=deadline_s, wait_for_ready=True, metadata=span.headers()
                ),
                codec=EdgeCodec(request.vocabulary_size, request.preset.verify_settings),
                traffic=traffic,
                on_frame=on_frame,
                on_end=on_end,
                stranger=f"the cloud at {connection.target}",
            )

        return open_stream


def _params_for_both(request: GenerationRequest, room: int) -> GenerationParams:
    """What the cloud must know too: no more tokens than there is room for, and beside `min_tokens`
    the caller's own tokens that it keeps from ending the answer."""
    params = replace(request.params, max_tokens=min(request.params.max_tokens, room))
    if not params.processors.min_tokens:
        return params
    processors = replace(params.processors, end_token_ids=request.stop_token_ids)
    return replace(params, processors=processors)
