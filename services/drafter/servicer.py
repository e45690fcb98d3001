"""gRPC handlers of the drafter: text in, committed text out.

Invariant: a request costs nothing before it was checked and admitted. Must not import torch; engine
and tokenizer come from outside.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import grpc

from services.drafter.session import DrafterSession
from services.drafter.tokenising import PromptTokens
from tandem.core.errors import InvalidArgument, Unavailable
from tandem.core.tokens import check_token_ids
from tandem.engine.answer_text import AnswerText
from tandem.engine.base import Engine, Tokenizer
from tandem.engine.document_decoder import DocumentDecoder, Documents
from tandem.engine.image_prompt import ImagePrompt
from tandem.engine.jobs import EngineThread
from tandem.policy.presets import PRESETS
from tandem.protocol.edge import EdgeMachine
from tandem.protocol.liveness import Liveness, LivenessTimes
from tandem.protocol.outputs import Commit, EdgeRequest
from tandem.rpc.access import ClientAccess
from tandem.rpc.admission import Admission
from tandem.rpc.channels import open_channel
from tandem.rpc.connection import Connection
from tandem.rpc.convert_verifier import EdgeCodec, describe_model
from tandem.rpc.decoding_service import DecodingServicer
from tandem.rpc.frame_stream import Traffic
from tandem.rpc.generation import GenerationRequest, request_from_proto
from tandem.rpc.makers import makers_to_proto
from tandem.rpc.status import Rejected, details_of, errors_as_status, refused_below
from tandem.rpc.verifier_stream import VerifierStream, open_verifier_stream
from tandem.telemetry.logging import get_logger, log_context
from tandem.telemetry.metrics import UNKNOWN_MODEL, Metrics
from tandem.telemetry.tracing import NO_TRACING, Span, Tracing
from tandem_api.common.v1 import generation_pb2, sampling_pb2
from tandem_api.drafter.v1 import drafter_pb2 as pb
from tandem_api.drafter.v1 import drafter_pb2_grpc as pb_grpc
from tandem_api.verifier.v1 import verifier_pb2, verifier_pb2_grpc

log = get_logger(__name__)

Context = grpc.aio.ServicerContext[pb.GenerateRequest, pb.GenerateResponse]

MAX_REQUEST_S = 600.0
DESCRIBE_TIMEOUT_S = 3.0
DIAGNOSIS_TIMEOUT_S = 1.0
UINT32_MAX = 2**32 - 1


@dataclass(frozen=True, slots=True)
class DrafterLimits:
    """What one drafter takes on, and how it watches its cloud."""

    max_sessions: int = 32
    kv_budget_bytes: int = 2**30
    max_message_bytes: int = 16 * 2**20
    liveness: LivenessTimes = field(default_factory=LivenessTimes)


class DrafterServicer(pb_grpc.DrafterServiceServicer):
    """Serves one draft engine against one verifier."""

    full_name = pb.DESCRIPTOR.services_by_name["DrafterService"].full_name
    also_serves = (DecodingServicer.full_name,)

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        verifier: str,
        limits: DrafterLimits,
        metrics: Metrics,
        access: ClientAccess | None = None,
        documents: Documents | None = None,
        tracing: Tracing = NO_TRACING,
    ) -> None:
        """`access` is what the verifier is shown; without it the connection to it is plain."""
        self._engine = engine
        self._tokenizer = tokenizer
        self._prompts = PromptTokens(tokenizer, engine.context_length)
        self._verifier = verifier
        self._limits = limits
        self._metrics = metrics
        self._tracing = tracing
        self._admission = Admission(limits.max_sessions, limits.kv_budget_bytes)
        series = metrics.engine(engine.model_name)
        self._thread = EngineThread(engine, "drafter-engine", series.passed)
        series.kv_budget_bytes.set(limits.kv_budget_bytes)
        series.sessions_open.set_function(lambda: self._admission.sessions)
        series.kv_bytes.set_function(lambda: self._admission.kv_bytes)
        series.queue_depth.set_function(lambda: self._thread.waiting)
        self._access = access or ClientAccess()
        self._connection = Connection(verifier, limits.max_message_bytes, self._access)
        decoder = DocumentDecoder(self._thread, documents or Documents(tokenizer), series)
        self._decoding = DecodingServicer(decoder, self._admission, metrics, tracing=tracing)
        self._farewells: set[asyncio.Task[None]] = set()
        self._leaving = False

    def register(self, server: grpc.aio.Server) -> None:
        pb_grpc.add_DrafterServiceServicer_to_server(self, server)
        self._decoding.register(server)

    @property
    def open_requests(self) -> int:
        return self._admission.sessions

    def going_away(self, grace_s: float) -> None:
        """Requests under way run to their end within the grace; new ones are refused."""
        self._leaving = True
        self._decoding.going_away(grace_s)

    async def close(self) -> None:
        if self._farewells:
            await asyncio.wait(self._farewells)
        await self._connection.close()
        await self._decoding.close()
        await asyncio.to_thread(self._thread.stop)
        await asyncio.to_thread(self._tracing.close)

    async def Describe(  # noqa: N802  # the RPC's name
        self, request: pb.DescribeRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.DescribeResponse:
        answer = pb.DescribeResponse(draft=describe_model(self._engine), presets=list(PRESETS))
        try:
            answer.target.CopyFrom(await self._describe_target(DESCRIBE_TIMEOUT_S))
        except Rejected as error:
            answer.cloud_error = f"{self._verifier}: {error.code.name} {error}"
        return answer

    async def _describe_target(self, timeout_s: float) -> sampling_pb2.ModelDescription:
        """Over a connection of its own: what a standing one is like says little about now."""
        limit = self._limits.max_message_bytes
        async with open_channel(self._verifier, limit, self._access) as channel:
            stub = verifier_pb2_grpc.VerifierServiceStub(channel)
            try:
                answer = await stub.Describe(verifier_pb2.DescribeRequest(), timeout=timeout_s)
            except grpc.aio.AioRpcError as error:
                raise Rejected(error.code(), details_of(error)) from None
        return answer.model

    async def _why_silent(self) -> str:
        """Why the cloud does not answer, as far as it can be told; streams wait for a connection,
        and never hear what stands in its way."""
        try:
            await self._describe_target(DIAGNOSIS_TIMEOUT_S)
        except Rejected as error:
            return str(refused_below(error.code, str(error)))
        return ""

    # The generated stubs know generators only; grpc.aio serves read/write handlers as well.
    async def Generate(  # type: ignore[override]  # noqa: N802  # the RPC's name
        self, request_iterator: object, context: Context
    ) -> None:
        async with errors_as_status(context):
            await self._generate(context)

    async def _generate(self, context: Context) -> None:
        first = await context.read()
        if self._leaving:
            raise Unavailable("the drafter is stopping")
        if not isinstance(first, pb.GenerateRequest) or not first.HasField("start"):
            raise InvalidArgument("start", "must be the first message of a stream")
        request = request_from_proto(first.start)
        images = ImagePrompt(self._engine, request.images)
        edge_request = await self._edge_request(request, images)
        capacity = len(edge_request.prompt_ids) + edge_request.max_tokens
        held = capacity + edge_request.preset.spare_tokens
        with (
            self._admission.reserve(held * self._engine.kv_bytes_per_token),
            log_context(session=f"{edge_request.session:08x}", preset=request.preset),
            self._tracing.span(
                "generate",
                context.invocation_metadata(),
                session=f"{edge_request.session:08x}",
                preset=request.preset,
                prompt_tokens=len(edge_request.prompt_ids),
            ) as span,
        ):
            await self._serve(context, request, edge_request, images, capacity, span)

    async def _serve(
        self,
        context: Context,
        request: GenerationRequest,
        edge_request: EdgeRequest,
        images: ImagePrompt,
        capacity: int,
        span: Span,
    ) -> None:
        await context.write(
            pb.GenerateResponse(
                started=pb.Started(
                    session=f"{edge_request.session:08x}",
                    preset=request.preset,
                    prompt_tokens=len(edge_request.prompt_ids),
                    max_tokens=edge_request.max_tokens,
                )
            )
        )
        text = AnswerText(self._tokenizer, request.stop)
        traffic = Traffic()
        log.info("request started", prompt_tokens=len(edge_request.prompt_ids))
        async with self._thread.session(capacity, edge_request.preset.tree_nodes) as kv:
            await images.show(self._thread, kv, edge_request.prompt_ids)
            liveness = Liveness(request.lost_cloud, self._limits.liveness, time.monotonic())
            machine = EdgeMachine(edge_request, liveness, text.completes_stop)
            session = DrafterSession(
                machine,
                self._thread,
                kv,
                self._stream_opener(context, edge_request, traffic, span),
                traffic,
                self._farewells,
                self._why_silent,
                span,
            )
            await self._relay(context, session, text)
        self._count(request, machine, traffic)

    async def _relay(self, context: Context, session: DrafterSession, text: AnswerText) -> None:
        """Commits to the caller, until the end or the caller's cancel."""
        relaying = asyncio.create_task(_write_commits(context, session.commits(), text))
        cancelling = asyncio.create_task(_wait_for_cancel(context))
        try:
            await asyncio.wait((relaying, cancelling), return_when=asyncio.FIRST_COMPLETED)
        finally:
            cancelling.cancel()
            relaying.cancel()
            await asyncio.gather(relaying, return_exceptions=True)
        if cancelling.done() and not cancelling.cancelled():
            cancelling.result()  # raises if what came was no cancel
        if not relaying.cancelled():
            relaying.result()
        await context.write(pb.GenerateResponse(summary=_summary(session, text)))

    async def _edge_request(self, request: GenerationRequest, images: ImagePrompt) -> EdgeRequest:
        """Tokenised and checked against the draft model."""
        engine = self._engine
        preset = request.composed_preset(engine.vocabulary_size)
        request.sampling.validate(engine.vocabulary_size)
        prompt_ids = images.placed(await self._prompts.ids(request.prompt, len(request.images)))
        if not prompt_ids:
            raise InvalidArgument("prompt", "is empty")
        check_token_ids(prompt_ids, engine.vocabulary_size, "prompt")
        room = engine.context_length - len(prompt_ids)
        if room < 1:
            raise InvalidArgument(
                "prompt", f"{len(prompt_ids)} tokens; the context holds {engine.context_length}"
            )
        return EdgeRequest(
            session=secrets.randbits(32),
            prompt_ids=prompt_ids,
            vocabulary_hash=engine.vocabulary_hash,
            vocabulary_size=engine.vocabulary_size,
            sampling=request.sampling,
            seed=request.seed,
            max_tokens=min(request.max_tokens, room),
            preset=preset,
            eos_token_ids=engine.eos_token_ids,
            ignore_eos=request.ignore_eos,
            images=request.images,
            logprobs=request.logprobs,
            top_logprobs=request.top_logprobs,
        )

    def _stream_opener(
        self, context: Context, request: EdgeRequest, traffic: Traffic, span: Span
    ) -> Any:
        def open_stream(on_frame: Any, on_end: Any) -> VerifierStream:
            return open_verifier_stream(
                self._connection,
                EdgeCodec(request.vocabulary_size, request.preset),
                traffic,
                on_frame,
                on_end,
                deadline_s=context.time_remaining() or MAX_REQUEST_S,
                headers=span.headers(),
            )

        return open_stream

    def _count(self, request: GenerationRequest, machine: EdgeMachine, traffic: Traffic) -> None:
        stats = machine.stats
        series = self._metrics.method(request.preset, machine.target_name or UNKNOWN_MODEL)
        series.drafts.inc(stats.rounds)
        series.draft_tokens.inc(stats.drafted)
        series.accepted_tokens.inc(stats.accepted)
        series.target_passes.inc(stats.target_passes)
        series.draft_window.observe(machine.drafting.schedule.window)
        series.uplink_bytes.inc(traffic.uplink_bytes)
        series.downlink_bytes.inc(traffic.downlink_bytes)
        series.link_lost.inc(stats.links_lost)
        series.resumes.inc(stats.resumes)
        series.early_verdicts.inc(stats.early_verdicts)
        series.predraft_hits.inc(stats.predraft_hits)
        series.predraft_misses.inc(stats.predraft_misses)
        if stats.drafted:
            series.draft_step.observe(stats.draft_s / stats.drafted)
        for hop_s in stats.hops_s:
            series.round_trip.observe(max(0.0, hop_s))
        log.info(
            "request finished",
            tokens=stats.tokens,
            rounds=stats.rounds,
            resumes=stats.resumes,
            uplink_bytes=traffic.uplink_bytes,
            downlink_bytes=traffic.downlink_bytes,
        )


def _fill_logprobs(committed: generation_pb2.Committed, commit: Commit, text: AnswerText) -> None:
    """How likely the tokens were, where that was asked for, with what they spell."""
    if not commit.logprobs:
        return
    tops = [each.top for each in commit.logprobs]
    likeliest = [[token_id for token_id, _ in top] for top in tops]
    spelt, others = text.spelt(commit.token_ids, likeliest)
    committed.token_texts.extend(spelt)
    committed.logprobs.extend(each.logprob for each in commit.logprobs)
    if any(tops):
        for top, token_ids, texts in zip(tops, likeliest, others, strict=True):
            logprobs = [logprob for _, logprob in top]
            committed.top_logprobs.add(token_ids=token_ids, logprobs=logprobs, texts=texts)


async def _write_commits(
    context: Context, commits: AsyncGenerator[Commit, None], text: AnswerText
) -> None:
    position = 0
    async with aclosing(commits):  # a caller that left must not leave the generator running
        async for commit in commits:
            committed = generation_pb2.Committed(
                position=position,
                token_ids=commit.token_ids,
                text=text.take(len(commit.token_ids)),
                unverified=commit.unverified,
                makers=makers_to_proto(commit.makers),
            )
            _fill_logprobs(committed, commit, text)
            position += len(commit.token_ids)
            await context.write(pb.GenerateResponse(committed=committed))
    if rest := text.rest():
        committed = generation_pb2.Committed(position=position, text=rest)
        await context.write(pb.GenerateResponse(committed=committed))


async def _wait_for_cancel(context: Context) -> None:
    """Until the caller says cancel; a half-closed caller may still be listening."""
    message = await context.read()
    if not isinstance(message, pb.GenerateRequest):
        await asyncio.Event().wait()
    elif not message.HasField("cancel"):
        raise InvalidArgument("cancel", "is all that may follow the start")


def _summary(session: DrafterSession, text: AnswerText) -> generation_pb2.Summary:
    machine, stats, traffic = session.machine, session.machine.stats, session.traffic
    return generation_pb2.Summary(
        finish_reason=str(machine.finish_reason),
        preset=machine.request.preset.name,
        prompt_tokens=len(machine.request.prompt_ids),
        tokens=stats.tokens,
        rounds=stats.rounds,
        drafted=stats.drafted,
        accepted=stats.accepted,
        target_passes=min(stats.target_passes, UINT32_MAX),  # the cloud's word, any number
        uplink_bytes=traffic.uplink_bytes,
        downlink_bytes=traffic.downlink_bytes,
        resumes=stats.resumes,
        full_law_requests=stats.full_law_requests,
        unverified_tokens=stats.unverified_tokens,
        draft_s=stats.draft_s,
        verify_s=stats.verify_s,
        queue_s=stats.queue_s,
        round_s=stats.round_s,
        hop_median_s=stats.hop_median_s,
        links_lost=stats.links_lost,
        loss_noticed_s=stats.loss_noticed_s,
        predrafted=stats.predrafted,
        predraft_hits=stats.predraft_hits,
        predraft_misses=stats.predraft_misses,
        early_verdicts=stats.early_verdicts,
        lossy=machine.request.preset.lossy,
    )
