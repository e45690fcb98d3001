"""gRPC handlers of the verifier. Invariant: a session costs nothing before its opening frame was
checked and admitted."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import grpc

from tandem.backends.interface import Engine, Session
from tandem.backends.requirements import check_params, check_verify_settings
from tandem.control.pass_budget import PassBudget
from tandem.core.default_sampling import NO_DEFAULTS, DefaultSampling
from tandem.core.errors import InvalidArgument, Unavailable
from tandem.core.processors import GrammarMask, LogitsProcessor, logits_processor
from tandem.core.thinking import with_thinking
from tandem.grammar.compiler import GrammarCompiler
from tandem.net.admission import Reservation
from tandem.net.stream_limits import served
from tandem.net.tenant import Tenant, calling_tenant, paying_tenant
from tandem.runtime.engine_thread import EngineThread
from tandem.runtime.image_prompt import ImagePrompt
from tandem.runtime.pass_times import PassTimes
from tandem.runtime.prefix_cache import KeptPrefix, KeptText
from tandem.runtime.served_engine import EngineLimits, ServedEngine
from tandem.runtime.tenant_memories import MemoryLimits, TenantMemories
from tandem.services.verifier.cloud_drafts import (
    CloudDrafter,
    CloudDrafters,
    CloudDraftModel,
    CloudDraftRunner,
)
from tandem.services.verifier.session import Stream, VerifierSession
from tandem.specdec.choices import CloudDrafts
from tandem.specdec.cloud import CloudMachine
from tandem.specdec.cloud_checks import CloudModel, check_open
from tandem.specdec.cloud_drafting import may_recall
from tandem.specdec.messages import Open
from tandem.specdec.ngram_proposer import NgramTexts
from tandem.specdec.presets import PRESETS
from tandem.telemetry.logging import get_logger, log_context
from tandem.telemetry.metric import OTHER
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.tracing import NO_TRACING, Span, Tracing
from tandem.two_sided.interface import DecodingServicer, DocumentDecoder, Documents
from tandem.wire.open_codec import CLOUD_DRAFTS
from tandem.wire.verifier_codec import CloudCodec, describe_model
from tandem_api.verifier.v1 import verifier_pb2 as pb
from tandem_api.verifier.v1 import verifier_pb2_grpc as pb_grpc

log = get_logger(__name__)

MOVING_SHARE = 0.5
"""Of another verifier's time, what texts that come from one that stops may take of it."""
SPARE_SHARE = 0.25
"""Of the memory for keys and values, what is left to sessions that need it, where others might have
a draft model's as well."""
LEAVING_SHARE = 0.5
"""Of the grace at a stop: by then all sessions are asked to leave."""


@dataclass(frozen=True, slots=True)
class VerifierLimits(EngineLimits):
    """Limits of one verifier."""

    max_sessions: int = 64
    kv_budget_bytes: int = 2 * 2**30
    max_draft_length: int = 64
    document_kv_export: bool = True
    memory: MemoryLimits | None = None
    """Of texts that are remembered, to draft from; None: nothing is."""


@dataclass(frozen=True, slots=True)
class _CheckedOpening:
    """A session that may be admitted. `opening`: without the images, as it lasts longer than they
    are needed. `keeps`: whether its keys and values may be kept for others of its tenant."""

    opening: Open
    codec: CloudCodec
    drafter: CloudDrafter | None
    images: ImagePrompt
    draft_images: ImagePrompt
    payer: Tenant
    keeps: bool

    @property
    def prompt_tokens(self) -> int:
        return len(self.opening.prompt_ids)

    @property
    def capacity(self) -> int:
        """Tokens of prompt and answer at most."""
        return self.prompt_tokens + self.opening.params.max_tokens

    @property
    def names(self) -> dict[str, str]:
        """What logs and spans tell of it."""
        return {"session": f"{self.opening.session:08x}", "preset": _label(self.opening)}

    def kv_bytes(self, target: Engine) -> int:
        """Return the bytes of keys and values that it is admitted with, and of hidden states that
        wait until those of the whole text so far are there."""
        opening = self.opening
        split = opening.settings.split_layers > 0
        waiting = self.prompt_tokens + len(opening.committed_ids) if split else 0
        waiting_bytes = 4 * waiting * (target.hidden_size if split else 0)
        draft_bytes = self.draft_kv_bytes if self.demands_drafts else 0
        held = self.capacity + opening.settings.tree_nodes
        return held * target.kv_bytes_per_token + waiting_bytes + draft_bytes

    @property
    def demands_drafts(self) -> bool:
        """Whether the session cannot do without the drafts of the cloud that it asks for."""
        return self.opening.settings.cloud_drafts is not CloudDrafts.ANY

    @property
    def draft_kv_bytes(self) -> int:
        """The bytes of keys and values of the draft model in the cloud, if it drafts."""
        return 0 if self.drafter is None else self.drafter.kv_bytes(self.capacity)


class VerifierServicer(pb_grpc.VerifierServiceServicer):
    """Serves one engine."""

    full_name = pb.DESCRIPTOR.services_by_name["VerifierService"].full_name
    also_serves = (DecodingServicer.full_name,)

    def __init__(
        self,
        engine: Engine,
        limits: VerifierLimits,
        metrics: Metrics,
        device: str = "cpu",
        dtype: str = "float32",
        documents: Documents | None = None,
        tracing: Tracing = NO_TRACING,
        default_sampling: DefaultSampling = NO_DEFAULTS,
        pass_times: PassTimes | None = None,
        cloud_draft: CloudDraftModel | None = None,
    ) -> None:
        """Set up the service. `cloud_draft`: the draft model of the verifier itself, if it has
        one."""
        self._engine = engine
        self._default_sampling = default_sampling
        self._streams = limits.streams
        self._metrics = metrics
        self._tracing = tracing
        row_share = None if pass_times is None else pass_times.row_share
        never_pay = pass_times is not None and pass_times.drafts_never_pay
        self._budget = PassBudget(row_share=row_share, drafts_never_pay=never_pay)
        self._cloud_drafters = CloudDrafters(
            engine, cloud_draft, self._budget, limits.stuck_after_s
        )
        self._memory = TenantMemories.of(limits.memory, engine)
        served_engine = ServedEngine(
            engine,
            "verifier-engine",
            limits,
            metrics,
            on_pass=self._passed,
            pass_times=pass_times,
        )
        self._admission = served_engine.admission
        self._thread = served_engine.thread
        self._prefixes = served_engine.prefixes
        self._sharing = limits.prefixes.sharing
        self._device = device
        self._dtype = dtype
        self._grammars = GrammarCompiler(
            documents.tokenizer if documents else None,
            engine.vocabulary_size,
            engine.eos_token_ids,
        )
        known = documents or Documents()
        decoder = DocumentDecoder(self._thread, known, served_engine.series, self._grammars)
        self._decoding = DecodingServicer(
            decoder,
            admission=self._admission,
            metrics=metrics,
            device=device,
            dtype=dtype,
            tracing=tracing,
            exports=limits.document_kv_export,
            streams=limits.streams,
        )
        self._sessions: set[VerifierSession] = set()
        self._closing_tasks: set[asyncio.Task[None]] = set()
        self._leaving = False
        self._model = CloudModel(
            model_name=engine.model_name,
            vocabulary_hash=engine.vocabulary_hash,
            vocabulary_size=engine.vocabulary_size,
            context_length=engine.context_length,
            eos_token_ids=engine.eos_token_ids,
            max_draft_length=limits.max_draft_length,
            exits=len(engine.exit_depths),
            exit_temperatures=engine.exit_temperatures,
            same_bits=engine.capabilities.same_bits,
            batch_invariant=engine.capabilities.batch_invariant,
            row_share=row_share,
            drafts_never_pay=never_pay,
            layer_count=engine.layer_count if engine.capabilities.splits else 0,
            hidden_size=engine.hidden_size if engine.capabilities.splits else 0,
        )

    def _passed(self, pass_s: float, jobs: int, tokens: int) -> None:
        """Record a pass; called on the engine thread."""
        self._budget.passed(pass_s, tokens, jobs)

    def register(self, server: grpc.aio.Server) -> None:
        pb_grpc.add_VerifierServiceServicer_to_server(self, server)
        self._decoding.register(server)

    @property
    def open_requests(self) -> int:
        return self._admission.sessions

    @property
    def fault(self) -> str:
        return self._thread.fault

    def going_away(self, grace_s: float) -> None:
        self._leaving = True
        shortest_first = sorted(self._sessions, key=lambda session: session.text_length)
        lengths = [session.text_length for session in shortest_first]
        moments_s = leaving_times(lengths, self._budget.token_s, LEAVING_SHARE * grace_s)
        self._closing_tasks = {
            session.going_away(after_s)
            for session, after_s in zip(shortest_first, moments_s, strict=True)
        }
        self._decoding.going_away()

    async def close(self) -> None:
        for task in self._closing_tasks:
            task.cancel()
        await self._decoding.close()
        await asyncio.to_thread(self._thread.stop)
        await asyncio.to_thread(self._cloud_drafters.stop)
        if self._memory is not None:
            await self._memory.close()
        await asyncio.to_thread(self._tracing.close)

    async def Describe(  # noqa: N802  # the RPC's name
        self, request: pb.DescribeRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.DescribeResponse:
        return pb.DescribeResponse(
            model=describe_model(
                self._model,
                self._device,
                self._dtype,
                kv_tokens=self._admission.kv_tokens(self._engine.kv_bytes_per_token),
                default_sampling=self._default_sampling,
            ),
            max_draft_length=self._model.max_draft_length,
            sessions_open=self._admission.sessions,
            kv_bytes_in_use=self._engine.kv_bytes_in_use,
            cloud_drafts=[CLOUD_DRAFTS[kind] for kind in self._cloud_drafters.kinds],
            cloud_draft_model=self._cloud_drafters.model_name,
        )

    # The generated stubs know generators only; grpc.aio serves read/write handlers as well.
    async def Verify(  # type: ignore[override]  # noqa: N802  # the RPC's name
        self, request_iterator: object, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        async with served(context, self._streams) as stream:
            await self._converse(stream)

    async def _converse(self, stream: Stream) -> None:
        """Check and admit a session, and serve it until it ends."""
        checked = await self._checked(stream)
        grammar = checked.opening.params.processors.grammar
        headers = stream.invocation_metadata()
        with (
            self._admission.reserve(
                checked.kv_bytes(self._engine), checked.payer, grammar=grammar is not None
            ) as reservation,
            log_context(**checked.names),
            self._tracing.span(
                "verify session", headers, **checked.names, prompt_tokens=checked.prompt_tokens
            ) as span,
        ):
            # Only from here on may the session cost anything.
            if not checked.demands_drafts:
                spare = reservation.take_spare(checked.draft_kv_bytes, SPARE_SHARE)
                checked = checked if spare else replace(checked, drafter=None)
            machine = await self._machine(checked)
            session = await self._session(stream, checked, machine, reservation, span)
            log.info(
                "session opened", prompt_tokens=checked.prompt_tokens, capacity=checked.capacity
            )
            self._sessions.add(session)
            try:
                await session.run(checked.capacity)
            finally:
                self._sessions.discard(session)
                reservation.tokens = len(machine.committed)
                self._remember(checked, machine)
                span.note(target_passes=machine.target_passes)
                log.info("session closed", target_passes=machine.target_passes)

    async def _checked(self, stream: Stream) -> _CheckedOpening:
        """Read the frame that opens a session, and check everything that costs nothing."""
        codec = CloudCodec(self._model, self._device, self._dtype)
        opening = codec.decode(await stream.first(pb.VerifyRequest))
        if not isinstance(opening, Open):
            raise InvalidArgument("open", "must be the first message of a stream")
        if self._leaving:
            raise Unavailable("the verifier is stopping")
        self._thread.check()
        if opening.settings.cloud_drafts is CloudDrafts.ANY and self._model.drafts_never_pay:
            settings = replace(opening.settings, cloud_drafts=CloudDrafts.NONE)
            opening = replace(opening, settings=settings)
        check_open(opening, self._model)
        check_verify_settings(opening.settings, target=self._engine)
        check_params(opening.params, target=self._engine)
        drafter = await self._cloud_drafters.drafter_for(opening)
        images = ImagePrompt(self._engine, opening.params.images)
        images.check(opening.prompt_ids)
        draft_images = ImagePrompt(self._engine, ())
        if drafter is not None:
            draft_images = ImagePrompt(drafter.engine, opening.params.images)
            draft_images.check(opening.prompt_ids)
        shows_images = bool(opening.params.images)
        return _CheckedOpening(
            opening=replace(
                opening,
                params=replace(opening.params, images=()),
                # With images, token ids do not say all.
                allows_memory=opening.allows_memory and not shows_images,
            ),
            codec=codec,
            drafter=drafter,
            images=images,
            draft_images=draft_images,
            payer=paying_tenant(opening.tenant),
            # Of a split text the first layers' keys and values are not here, and the others are of
            # what an edge sent.
            keeps=not (shows_images or opening.settings.split_layers),
        )

    async def _machine(self, checked: _CheckedOpening) -> CloudMachine:
        opening = checked.opening
        return CloudMachine(
            opening,
            self._model,
            budget=self._budget,
            tenant_share=partial(self._admission.claim, checked.payer.caller),
            draft_budget=self._cloud_drafters.budget,
            has_draft_model=checked.drafter is not None,
            memory=await self._earlier_texts(checked),
        )

    async def _session(
        self,
        stream: Stream,
        checked: _CheckedOpening,
        machine: CloudMachine,
        reservation: Reservation,
        span: Span,
    ) -> VerifierSession:
        """Return the conversation of an admitted session, which begins with what is kept of its
        text."""
        opening = checked.opening
        tenant = calling_tenant(opening.tenant, self._sharing)
        processor = await self._processor(opening, checked.payer, reservation)
        text = machine.committed.since(0)
        kept_text = KeptText(tenant, text, opening.public_tokens, checked.keeps)
        # The log-probabilities of a prompt are of logits, which nothing keeps.
        reads_prompt = opening.params.prompt_logprobs
        prefix = (
            self._prefixes.unread(kept_text) if reads_prompt else self._prefixes.find(kept_text)
        )
        machine.adopt_prefix(prefix.tokens)
        kv_contents = _KvContents(
            thread=self._thread,
            prompt_ids=opening.prompt_ids,
            images=checked.images,
            prefix=prefix,
            reservation=reservation,
        )
        return VerifierSession(
            machine,
            codec=checked.codec,
            thread=self._thread,
            stream=stream,
            series=self._metrics.method(_label(opening), self._engine.model_name),
            begin=kv_contents.show,
            leave=kv_contents.leave,
            span=span,
            processor=processor,
            logprobs=opening.params.logprobs,
            tenant=tenant,
            payer=checked.payer,
            cloud_drafts=self._draft_runner(checked, machine),
        )

    def _draft_runner(
        self, checked: _CheckedOpening, machine: CloudMachine
    ) -> CloudDraftRunner | None:
        """Return what drafts for a session in the cloud. Grammars and budgets for thinking are for
        the target alone: the parser of a session follows one text."""
        drafter = checked.drafter
        if drafter is None:
            return None
        opening = checked.opening
        processors = replace(opening.params.processors, grammar=None, thinking=None)
        ends = frozenset[int]() if opening.params.ignore_eos else self._model.eos_token_ids
        processor = logits_processor(
            processors, opening.prompt_ids, strict=False, eos_token_ids=ends
        )
        show = partial(checked.draft_images.show, drafter.thread, prompt_ids=opening.prompt_ids)
        return CloudDraftRunner(machine, drafter, show, self._thread.expected_jobs, processor)

    async def _earlier_texts(self, checked: _CheckedOpening) -> NgramTexts | None:
        """Return what the cloud's own drafts may be taken from that the tenant has said before."""
        if self._memory is None or not may_recall(checked.opening):
            return None
        return await self._memory.texts_for(checked.payer, checked.opening.prompt_ids)

    def _remember(self, checked: _CheckedOpening, machine: CloudMachine) -> None:
        """Have a session's text remembered as far as it is final, unless the caller forbids it."""
        if self._memory is None:
            return
        opening = checked.opening
        if proposed := machine.proposed_memory_tokens:
            series = self._metrics.method(_label(opening), self._engine.model_name)
            accepted = machine.accepted_memory_tokens
            series.recalled(accepted, proposed - accepted)
        if opening.allows_memory and machine.target_passes:
            answer_ids = machine.committed.since(len(opening.prompt_ids))
            self._memory.learn(checked.payer, opening.prompt_ids, answer_ids)

    async def _processor(
        self, opening: Open, payer: Tenant, reservation: Reservation
    ) -> LogitsProcessor | None:
        processors = opening.params.processors
        mask: GrammarMask | None = None
        if processors.grammar is not None:
            mask = await self._grammars.session_mask(
                processors.grammar, payer, reservation.spend_grammar
            )
        mask = with_thinking(
            processors.thinking,
            mask,
            vocabulary_size=self._engine.vocabulary_size,
            eos_token_ids=self._engine.eos_token_ids,
        )
        ends = frozenset[int]() if opening.params.ignore_eos else self._model.eos_token_ids
        return logits_processor(processors, opening.prompt_ids, mask, eos_token_ids=ends)


@dataclass(frozen=True, slots=True)
class _KvContents:
    """The beginning of a session's keys and values, and what is kept of them for later sessions."""

    thread: EngineThread
    prompt_ids: Sequence[int]
    images: ImagePrompt
    prefix: KeptPrefix
    reservation: Reservation

    async def show(self, kv: Session) -> None:
        """Give the session its images and its kept prefix, before the first pass."""
        await self.images.show(self.thread, kv, self.prompt_ids)
        await self.prefix.show(kv)

    def leave(self, kv: Session, token_ids: Sequence[int], ends: bool) -> None:
        """Keep blocks after the first pass, and before the session closes (`ends`), whose bytes are
        then available for what is kept."""
        self.prefix.leave(kv, token_ids, ends, self.reservation.kv_bytes if ends else 0)


def leaving_times(lengths: Sequence[int], token_s: float, most_s: float) -> list[float]:
    """Return when each session is asked to leave, in seconds from now, by the length of its text:
    where it goes the text is computed anew, and those that come all at once wait for each other's.
    So that work is to take `MOVING_SHARE` of another verifier's time; but all are asked before
    `most_s`. `token_s`: what computing a token takes."""
    spans_s = [length * token_s / MOVING_SHARE for length in lengths]
    squeezed = min(1.0, most_s / max(sum(spans_s), 1e-9))
    return [
        squeezed * (end_s - span_s)
        for end_s, span_s in zip(accumulate(spans_s), spans_s, strict=True)
    ]


def _label(opening: Open) -> str:
    """Return the preset's name if it is one of ours: an edge must not choose what is logged
    here."""
    name = opening.settings.preset_name
    return name if name in PRESETS else OTHER
