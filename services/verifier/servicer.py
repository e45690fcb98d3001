"""gRPC handlers of the verifier.

Invariant: a session costs nothing before its opening frame was checked and admitted. Must not
import torch; the engine comes from outside.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import grpc

from services.verifier.session import Context, VerifierSession, first_frame
from tandem.core.errors import InvalidArgument, Unavailable
from tandem.engine.base import Engine, Session
from tandem.engine.document_decoder import DocumentDecoder, Documents
from tandem.engine.image_prompt import ImagePrompt
from tandem.engine.jobs import EngineThread
from tandem.policy.presets import PRESETS
from tandem.protocol.cloud import CloudMachine, CloudModel
from tandem.protocol.messages import Open
from tandem.rpc.admission import Admission
from tandem.rpc.convert_verifier import CloudCodec, describe_model
from tandem.rpc.decoding_service import DecodingServicer
from tandem.rpc.status import errors_as_status
from tandem.telemetry.logging import get_logger, log_context
from tandem.telemetry.metric import OTHER
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.tracing import NO_TRACING, Span, Tracing
from tandem_api.verifier.v1 import verifier_pb2 as pb
from tandem_api.verifier.v1 import verifier_pb2_grpc as pb_grpc

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class VerifierLimits:
    """What one verifier takes on."""

    max_sessions: int = 64
    kv_budget_bytes: int = 2 * 2**30
    max_draft_length: int = 64
    open_timeout_s: float = 10.0
    document_kv_export: bool = True


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
    ) -> None:
        self._engine = engine
        self._open_timeout_s = limits.open_timeout_s
        self._admission = Admission(limits.max_sessions, limits.kv_budget_bytes)
        self._metrics = metrics
        self._tracing = tracing
        series = metrics.engine(engine.model_name)
        self._thread = EngineThread(engine, "verifier-engine", series.passed)
        series.kv_budget_bytes.set(limits.kv_budget_bytes)
        series.sessions_open.set_function(lambda: self._admission.sessions)
        series.kv_bytes.set_function(lambda: self._admission.kv_bytes)
        series.queue_depth.set_function(lambda: self._thread.waiting)
        self._device, self._dtype = device, dtype
        decoder = DocumentDecoder(self._thread, documents or Documents(), series)
        self._decoding = DecodingServicer(
            *(decoder, self._admission, metrics, device, dtype, tracing),
            exports=limits.document_kv_export,
        )
        self._sessions: set[VerifierSession] = set()
        self._farewells: set[asyncio.Task[None]] = set()
        self._leaving = False
        self._model = CloudModel(
            engine.model_name,
            engine.vocabulary_hash,
            engine.vocabulary_size,
            engine.context_length,
            engine.eos_token_ids,
            limits.max_draft_length,
            len(engine.exit_depths),
        )

    def register(self, server: grpc.aio.Server) -> None:
        pb_grpc.add_VerifierServiceServicer_to_server(self, server)
        self._decoding.register(server)

    @property
    def open_requests(self) -> int:
        return self._admission.sessions

    def going_away(self, grace_s: float) -> None:
        self._leaving = True
        self._farewells = {session.going_away(grace_s) for session in self._sessions}
        self._decoding.going_away(grace_s)

    async def close(self) -> None:
        await self._decoding.close()
        await asyncio.to_thread(self._thread.stop)
        await asyncio.to_thread(self._tracing.close)

    async def Describe(  # noqa: N802  # the RPC's name
        self, request: pb.DescribeRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.DescribeResponse:
        return pb.DescribeResponse(
            model=describe_model(self._model, self._device, self._dtype),
            max_draft_length=self._model.max_draft_length,
            sessions_open=self._admission.sessions,
            kv_bytes_in_use=self._engine.kv_bytes_in_use,
            kv_bytes_budget=self._admission.kv_budget_bytes,
        )

    # The generated stubs know generators only; grpc.aio serves read/write handlers as well.
    async def Verify(  # type: ignore[override]  # noqa: N802  # the RPC's name
        self, request_iterator: object, context: Context
    ) -> None:
        async with errors_as_status(context):
            await self._converse(context)

    async def _converse(self, context: Context) -> None:
        codec = CloudCodec(self._model, self._device, self._dtype)

        async def read() -> pb.VerifyRequest | None:
            frame = await context.read()
            return frame if isinstance(frame, pb.VerifyRequest) else None  # EOF otherwise

        opening = codec.decode(await first_frame(read, self._open_timeout_s))
        if not isinstance(opening, Open):
            raise InvalidArgument("open", "must be the first message of a stream")
        if self._leaving:
            raise Unavailable("the verifier is stopping")
        machine = CloudMachine(opening, self._model)
        images = ImagePrompt(self._engine, opening.images)
        images.check(opening.prompt_ids)
        opening = replace(opening, images=())  # a session lasts longer than they are needed
        capacity = len(opening.prompt_ids) + opening.max_tokens
        slots = capacity + opening.preset.tree_nodes
        kv_bytes = slots * self._engine.kv_bytes_per_token
        with (
            self._admission.reserve(kv_bytes),
            log_context(session=f"{opening.session:08x}", preset=_label(opening)),
            self._tracing.span(
                "verify session",
                context.invocation_metadata(),
                session=f"{opening.session:08x}",
                preset=_label(opening),
                prompt_tokens=len(opening.prompt_ids),
            ) as span,
        ):
            await self._serve(opening, machine, images, codec, context, read, capacity, span)

    async def _serve(
        self,
        opening: Open,
        machine: CloudMachine,
        images: ImagePrompt,
        codec: CloudCodec,
        context: Context,
        read: Any,
        capacity: int,
        span: Span,
    ) -> None:
        series = self._metrics.method(_label(opening), self._engine.model_name)

        async def begin(kv: Session) -> None:
            await images.show(self._thread, kv, opening.prompt_ids)

        session = VerifierSession(machine, codec, self._thread, context, series, begin, span)
        self._sessions.add(session)
        log.info("session opened", prompt_tokens=len(opening.prompt_ids), capacity=capacity)
        try:
            await session.run(read, capacity)
        finally:
            self._sessions.discard(session)
            span.note(target_passes=machine.target_passes)
            log.info("session closed", target_passes=machine.target_passes)


def _label(opening: Open) -> str:
    """The preset's name where it is one of ours: an edge must not choose what is logged and
    counted here."""
    return opening.preset.name if opening.preset.name in PRESETS else OTHER
