"""gRPC handlers of the drafter: text in, committed text out. Invariant: a request costs nothing
before it was checked and admitted."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from typing import Any

import grpc

from tandem.backends.interface import Engine
from tandem.backends.requirements import check_preset, fitted_to
from tandem.backends.sliding_window import SlidingWindowEngine
from tandem.core.errors import InvalidArgument, Unavailable
from tandem.core.processors import GrammarMask, LogitsProcessor, logits_processor
from tandem.core.thinking import with_thinking
from tandem.core.tokens import check_token_ids
from tandem.generation.conversation import Stream, cancelled, read_start
from tandem.generation.request import (
    LONGEST_ANSWER_S,
    MAX_TOOLS_CHARACTERS,
    GenerationRequest,
    request_from_proto,
)
from tandem.grammar.compiler import GrammarCompiler
from tandem.grammar.draft_mask import DraftMask
from tandem.net.access import ClientAccess
from tandem.net.admission import Reservation
from tandem.net.connection import Connection
from tandem.net.frame_stream import FrameStream, Traffic
from tandem.net.reloaded import Reloaded
from tandem.net.status import Rejected, errors_as_status
from tandem.net.stream_limits import served
from tandem.net.tenant import (
    Tenant,
    TenantIds,
    calling_tenant,
    check_tenant_id,
    is_told_apart,
    paying_tenant,
)
from tandem.runtime.draft_hook import AnswerHook, DraftHook
from tandem.runtime.engine_thread import EngineThread
from tandem.runtime.image_prompt import ImagePrompt
from tandem.runtime.pass_times import PassTimes
from tandem.runtime.prefix_cache import KeptText
from tandem.runtime.served_engine import EngineLimits, ServedEngine
from tandem.runtime.tenant_memories import TenantMemories
from tandem.services.drafter.answer_thinking import AnswerThinking, answer_thinking
from tandem.services.drafter.cloud.clouds import Clouds
from tandem.services.drafter.cloud.link import CloudLink, OpenVerify
from tandem.services.drafter.cloud.listed import clouds_of
from tandem.services.drafter.prefill import DraftPrefill
from tandem.services.drafter.public_prompts import PublicPrompts
from tandem.services.drafter.relaying import write_commits
from tandem.services.drafter.request_figures import count_request, request_summary
from tandem.services.drafter.session import DrafterSession
from tandem.services.drafter.split_edge import SplitEdge, layers_session, needed_layers
from tandem.services.drafter.text_context import TextContext
from tandem.services.drafter.tokenising import PromptTokens
from tandem.services.drafter.warm_start import WarmStarts
from tandem.specdec.choices import CloudDrafts
from tandem.specdec.edge import EdgeMachine
from tandem.specdec.events import EdgeRequest
from tandem.specdec.liveness import Liveness, LivenessTimes, LostCloud
from tandem.specdec.messages import CloudMessage, EdgeMessage, GenerationParams
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


@dataclass(frozen=True, slots=True)
class DrafterLimits(EngineLimits):
    """Limits of one drafter, how it watches its cloud, and requirements for its answers."""

    max_message_bytes: int = 16 * 2**20
    liveness: LivenessTimes = field(default_factory=LivenessTimes)


@dataclass(frozen=True, slots=True)
class _CheckedRequest:
    """A request that may be admitted. `tenant`: whose kept texts it may find; `payer`: who takes
    turns with others, and whose texts are remembered."""

    request: GenerationRequest
    preset: Preset
    images: ImagePrompt
    tenant: Tenant
    payer: Tenant

    @property
    def drafts_here(self) -> bool:
        """Whether drafts are made here, or may become the text."""
        return self.preset.drafts or self.may_go_on_alone

    @property
    def may_go_on_alone(self) -> bool:
        return self.request.lost_cloud is LostCloud.EDGE

    @property
    def compiles_grammar(self) -> bool:
        """Whether a grammar is compiled for drafts."""
        return self.drafts_here and self.request.params.processors.grammar is not None


@dataclass(frozen=True, slots=True)
class _AdmittedRequest:
    """A request with what was taken and computed to answer it. `capacity`: tokens of prompt and
    answer at most. `layers`: of the target, where the request is split."""

    checked: _CheckedRequest
    edge_request: EdgeRequest
    hook: AnswerHook
    thinking: AnswerThinking
    capacity: int
    reservation: Reservation
    processor: LogitsProcessor | None
    layers: EngineThread | None

    @property
    def started(self) -> pb.Started:
        """What the caller is sent first."""
        return pb.Started(
            session=f"{self.edge_request.session:08x}",
            preset=self.checked.request.preset,
            prompt_tokens=len(self.edge_request.prompt_ids),
            max_tokens=self.edge_request.max_tokens,
            family=self.thinking.family.name,
            thinking_start=THINKING_STARTS[self.thinking.start],
        )


class DrafterServicer(pb_grpc.DrafterServiceServicer):
    """Serves one draft engine against one verifier."""

    full_name = drafter_pb2.DESCRIPTOR.services_by_name["DrafterService"].full_name
    also_serves = (DecodingServicer.full_name,)

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        verifier: str | Reloaded[tuple[str, ...]],
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
        memory: TenantMemories | None = None,
        hook: DraftHook | None = None,
        pass_times: PassTimes | None = None,
    ) -> None:
        """Set up the service. `verifier`: clouds as a text for `clouds_of`, or a file of them.
        `access` is what the clouds are shown; without it the connections are plain. `tenants` makes
        the ids that stand for callers at the clouds; by default with a secret of this servicer.
        `split`: the target's first layers, for split inference. `memory`: what is remembered of
        texts; None: nothing. `hook`: what adapts the draft model, if anything does. `pass_times`:
        what the draft model's passes take, if that was measured."""
        self._engine = engine = SlidingWindowEngine(engine)
        self._tokenizer = tokenizer
        self._split = split
        self._memory = memory
        self._grammars = GrammarCompiler(tokenizer, engine.vocabulary_size, engine.eos_token_ids)
        self._prompts = PromptTokens(tokenizer, engine.context_length)
        self._limits = limits
        self._metrics = metrics
        self._tracing = tracing
        self._served = ServedEngine(
            engine, "drafter-engine", limits, metrics, pass_times=pass_times
        )
        self._admission = self._served.admission
        self._thread = self._served.thread
        self._prefixes = self._served.prefixes
        self._hook = hook or DraftHook()
        self._sharing = limits.prefixes.sharing
        self._tenants = tenants or TenantIds()
        self._public_prompts = public_prompts or PublicPrompts()
        self._clouds = Clouds(
            clouds_of(verifier) if isinstance(verifier, str) else verifier,
            max_bytes=limits.max_message_bytes,
            access=access or ClientAccess(),
            series=metrics.clouds(),
        )
        self._context = TextContext(engine, self._clouds, self._prompts)
        known = documents or Documents(tokenizer)
        decoder = DocumentDecoder(self._thread, known, self._served.series, self._grammars)
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
        self._warm_starts = WarmStarts(
            engine.model_name,
            instance,
            samples,
            pass_times=pass_times,
        )
        self._closing_tasks: set[asyncio.Task[None]] = set()
        self._leaving = False

    def register(self, server: grpc.aio.Server) -> None:
        pb_grpc.add_DrafterServiceServicer_to_server(self, server)
        self._decoding.register(server)
        self._clouds.begin()
        self._hook.start(self._served)
        if self._prometheus is not None:
            self._prometheus.start()

    @property
    def open_requests(self) -> int:
        return self._admission.sessions

    @property
    def fault(self) -> str:
        return self._thread.fault

    def going_away(self, grace_s: float) -> None:
        """Let requests under way run to their end within `grace_s`, and refuse new ones."""
        self._leaving = True
        self._decoding.going_away()

    async def close(self) -> None:
        if self._closing_tasks:
            await asyncio.wait(self._closing_tasks)
        if self._prometheus is not None:
            await self._prometheus.close()
        await self._clouds.close()
        await self._decoding.close()
        await self._hook.close()
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
            answer.target.CopyFrom(await self._context.describe())
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
            await self._context.learn()
            prompt = prompt_from_proto(request, self._context.tokens())
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
                token_ids=ids, context_length=self._context.tokens(), token_texts=texts
            )
        raise AssertionError("abort ends the call")

    # The generated stubs know generators only; grpc.aio serves read/write handlers as well.
    async def Generate(  # type: ignore[override]  # noqa: N802  # the RPC's name
        self, request_iterator: object, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        async with served(context, self._limits.streams) as stream:
            await self._generate(stream)

    async def _generate(self, stream: Stream) -> None:
        """Check and admit a request, and answer it."""
        start = (await read_start(stream)).start
        if self._leaving:
            raise Unavailable("the drafter is stopping")
        checked = self._checked(request_from_proto(start))
        with self._admission.reserve(
            tenant=checked.payer, grammar=checked.compiles_grammar
        ) as reservation:
            admitted = await self._admitted(checked, reservation)
            named = {
                "session": f"{admitted.edge_request.session:08x}",
                "preset": checked.request.preset,
            }
            headers = stream.invocation_metadata()
            prompt_tokens = len(admitted.edge_request.prompt_ids)
            with (
                log_context(**named),
                self._tracing.span(
                    "generate", headers, **named, prompt_tokens=prompt_tokens
                ) as span,
            ):
                await self._answer(stream, admitted, span)

    def _checked(self, request: GenerationRequest) -> _CheckedRequest:
        """Check a request as far as that costs nothing."""
        return _CheckedRequest(
            request=request,
            images=ImagePrompt(self._engine, request.params.images),
            preset=self._checked_preset(request),
            tenant=calling_tenant(request.tenant, self._sharing),
            payer=paying_tenant(request.payer or request.tenant),
        )

    async def _admitted(
        self, checked: _CheckedRequest, reservation: Reservation
    ) -> _AdmittedRequest:
        """Tokenise the prompt and take what the answer needs: only from here on may the request
        cost anything."""
        request = checked.request
        preset = checked.preset
        await self._context.learn_for(request)
        edge_request, thinking = await self._edge_request(checked)
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
        hook = await self._hook.begin(checked.payer, keeps=not request.no_memory)
        return _AdmittedRequest(
            checked=checked,
            edge_request=hook.asking(edge_request),
            hook=hook,
            thinking=thinking,
            capacity=capacity,
            reservation=reservation,
            processor=await self._processor(checked, edge_request, reservation),
            layers=layers,
        )

    async def _processor(
        self, checked: _CheckedRequest, edge_request: EdgeRequest, reservation: Reservation
    ) -> LogitsProcessor | None:
        """Return the processors of drafts, if there are any: a grammar takes time to compile."""
        if not checked.drafts_here:
            return None
        asked = edge_request.params.processors
        mask: GrammarMask | None = None
        if asked.grammar is not None:
            session_mask = await self._grammars.session_mask(
                asked.grammar, checked.payer, reservation.spend_grammar
            )
            mask = DraftMask(session_mask, strict=checked.may_go_on_alone)
        mask = with_thinking(
            asked.thinking,
            mask,
            vocabulary_size=self._engine.vocabulary_size,
            eos_token_ids=self._engine.eos_token_ids,
        )
        ignores_eos = checked.request.params.ignore_eos
        return logits_processor(
            asked,
            edge_request.prompt_ids,
            mask,
            strict=False,
            eos_token_ids=frozenset() if ignores_eos else edge_request.eos_token_ids,
        )

    async def _answer(self, stream: Stream, admitted: _AdmittedRequest, span: Span) -> None:
        """Answer a request: tell the caller that it has begun, and relay what the session commits
        until it ends."""
        request = admitted.checked.request
        await stream.write(pb.GenerateResponse(started=admitted.started))
        prompt_ids = admitted.edge_request.prompt_ids
        text = admitted.thinking.text(self._tokenizer, request, prompt_ids)
        log.info("request started", prompt_tokens=len(admitted.edge_request.prompt_ids))
        async with self._session(stream, admitted, text, span) as session:
            await self._relay(stream, session, text, admitted)
        self._count(admitted, session)

    @asynccontextmanager
    async def _session(
        self,
        stream: Stream,
        admitted: _AdmittedRequest,
        text: AnswerText,
        span: Span,
    ) -> AsyncIterator[DrafterSession]:
        """Hold the keys and values of a request and the session that drafts for it; what is kept of
        either for later requests is kept however it ends."""
        checked = admitted.checked
        request = checked.request
        edge_request = admitted.edge_request
        hook = admitted.hook
        prompt = hook.kept_text(self._kept_text(admitted))
        times = self._clouds.times(self._limits.liveness)
        liveness = Liveness(request.lost_cloud, times, time.monotonic())
        machine = EdgeMachine(edge_request, liveness, text.completes_stop, observers=[hook])
        traffic = Traffic()
        opener = self._stream_opener(stream, edge_request, traffic, span)
        session = DrafterSession(
            machine=machine,
            link=CloudLink(self._clouds, opener),
            traffic=traffic,
            closing_tasks=self._closing_tasks,
            span=span,
            tells_rounds=request.rounds,
        )
        with closing(session):
            session.connect()
            async with (
                self._thread.session(
                    admitted.capacity, edge_request.preset.tree_nodes, checked.tenant, checked.payer
                ) as kv,
                layers_session(
                    admitted.layers, admitted.capacity, checked.tenant, checked.payer
                ) as layers_kv,
            ):
                await hook.opened(kv)
                await checked.images.show(self._thread, kv, edge_request.prompt_ids)
                prefill = DraftPrefill(
                    machine=machine,
                    thread=self._thread,
                    kv=kv,
                    prefixes=self._prefixes,
                    prompt=prompt,
                    gives_back=lambda: admitted.reservation.kv_bytes,
                )
                session.begin(
                    self._thread,
                    kv,
                    prefill,
                    processor=admitted.processor,
                    layers=layers_kv,
                    on_broken=hook.on_broken,
                )
                try:
                    yield session
                finally:
                    prefill.leave()
                    tokens = len(edge_request.prompt_ids) + machine.stats.tokens
                    admitted.reservation.tokens = tokens
                    hook.ended(machine)
                    if not request.no_memory:
                        self._remember(machine, checked.payer)

    def _kept_text(self, admitted: _AdmittedRequest) -> KeptText:
        """Return what the prefix cache may keep of a request's prompt."""
        checked = admitted.checked
        read_whole = admitted.capacity <= self._engine.context_length
        return KeptText(
            checked.tenant,
            admitted.edge_request.prompt_ids,
            public_tokens=admitted.edge_request.public_tokens,
            keeps=not checked.request.params.images and read_whole,
        )

    def _count(self, admitted: _AdmittedRequest, session: DrafterSession) -> None:
        """Count an answer that ended well, and keep what it measured for the next one."""
        machine = session.machine
        preset = admitted.checked.request.preset
        series = self._metrics.method(preset, machine.target_name or UNKNOWN_MODEL)
        count_request(series, machine, session.traffic)
        measured = machine.controller.measured(time.monotonic())
        predicted = admitted.edge_request.predicted is not None
        self._warm_starts.ended(preset, machine.target_name, measured, predicted)

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
        admitted: _AdmittedRequest,
    ) -> None:
        """Relay commits to the caller until the end or until the caller cancels, with all that were
        made before the cancel; then write the summary."""
        request = admitted.checked.request
        on_commit = admitted.hook.on_commit
        writing = write_commits(stream, session, text, request, self._prompts, on_commit)
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
            stop_sequence=text.stop_sequence,
            draft_context=self._engine.context_length,
        )
        await stream.write(pb.GenerateResponse(summary=summary))

    def _checked_preset(self, request: GenerationRequest) -> Preset:
        """Return the requested preset, checked against the draft model as far as that costs
        nothing."""
        engine = self._engine
        preset = request.composed_preset(engine.vocabulary_size)
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

    async def _edge_request(self, checked: _CheckedRequest) -> tuple[EdgeRequest, AnswerThinking]:
        """Tokenize a request, and find how its answer may think."""
        engine = self._engine
        request = checked.request
        preset = checked.preset
        prompt_ids = checked.images.placed(await self._prompts.of(request))
        if not prompt_ids:
            raise InvalidArgument("prompt", "is empty")
        check_token_ids(prompt_ids, engine.vocabulary_size, "prompt")
        # The draft model is shown images where the text begins.
        context = self._context.tokens(bool(request.params.images), preset.tree_nodes)
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
            memory = await self._memory.texts_for(checked.payer, prompt_ids)
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
            warm_start=replace(
                self._warm_starts.known(request.preset, predicted is not None),
                beside_cloud=self._clouds.on_this_machine,
            ),
            tenant=self._tenants.id_of(checked.tenant),
            public_tokens=self._public_prompts.tokens_in(prompt_ids),
            predicted=predicted,
            memory=memory,
            # The cloud must know this text as the payer's alone, and is sent the group's id.
            allows_memory=memory is not None
            and not request.payer
            and is_told_apart(checked.tenant, checked.payer),
            longest_draft=self._clouds.longest_draft,
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
            deadline_s = stream.time_remaining() or LONGEST_ANSWER_S
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
    """Return the parameters that the cloud must know too: no more tokens than there is room for
    and, with `min_tokens`, the caller's own stop tokens, which must not end the answer before
    that."""
    params = replace(request.params, max_tokens=min(request.params.max_tokens, room))
    if not params.processors.min_tokens:
        return params
    processors = replace(params.processors, end_token_ids=request.stop_token_ids)
    return replace(params, processors=processors)
