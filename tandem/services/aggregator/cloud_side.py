"""Answers from documents on two sides, at the cloud: one device's stream after the other.
Invariant: nothing of a stream is kept when it has ended."""

from dataclasses import replace

from tandem.core.errors import Unavailable
from tandem.net.access import ClientAccess
from tandem.net.served_sessions import Admission, quota_of
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.aggregator.side_resources import SideResources
from tandem.telemetry.logging import get_logger, log_context
from tandem.telemetry.metric import OTHER
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.tracing import NO_TRACING, Sent, Tracing
from tandem.two_sided.interface import (
    AGGREGATION_PRESETS,
    AggregationRequest,
    CloudSession,
    CloudSideCodec,
    CollaborationOpen,
    CollaborationStream,
    ContextDocument,
    DecoderEvents,
    DecoderLink,
    DecodingOpen,
    DecodingOpened,
    DocumentTransfer,
    ExportedDocuments,
    Side,
    SideMachine,
    Sources,
    local_drafting,
    read_opening,
)

log = get_logger(__name__)


class CloudSide:
    """The cloud's part in all answers; used on the event loop only."""

    def __init__(
        self,
        settings: AggregatorSettings,
        metrics: Metrics,
        access: ClientAccess,
        tracing: Tracing = NO_TRACING,
    ) -> None:
        self._settings = settings
        self._tracing = tracing
        self._resources = SideResources(settings, metrics, access)
        self._sessions: set[CloudSession] = set()
        self._admission = Admission(
            settings.max_running, quota=quota_of(settings), series=metrics.holders()
        )
        self._leaving = False

    @property
    def open_requests(self) -> int:
        return self._admission.sessions

    def going_away(self, grace_s: float) -> None:
        """Refuse new collaborations, and ask those there are to go on elsewhere."""
        self._leaving = True
        for session in self._sessions:
            session.going_away(grace_s)

    async def close(self) -> None:
        await self._resources.close()

    async def collaborate(self, stream: CollaborationStream) -> None:
        """Serve one device's stream."""
        codec = CloudSideCodec()
        opening = await read_opening(stream, codec)
        if self._leaving:
            raise Unavailable("the aggregator is stopping")
        preset = opening.request.preset.name
        label = preset if preset in AGGREGATION_PRESETS else OTHER
        named = {"session": f"{opening.session:08x}", "preset": label}
        headers = stream.invocation_metadata()
        with (
            self._admission.reserve(),
            log_context(**named),
            self._tracing.span("collaborate", headers, **named) as span,
        ):
            if opening.request.preset.transfer is not DocumentTransfer.NONE:
                await self._export_documents(opening, codec, stream, span.headers())
                return

            async def decoder(opening: CollaborationOpen, events: DecoderEvents) -> DecoderLink:
                return await self._open_cloud_decoder(opening, events, span.headers())

            session = CloudSession(
                opening,
                codec,
                stream=stream,
                open_decoder=decoder,
                make_machine=self._cloud_machine,
            )
            self._sessions.add(session)
            log.info("collaboration begun")
            try:
                await session.run()
            finally:
                self._sessions.discard(session)
                log.info("collaboration ended")

    async def _found(self, asked: AggregationRequest, headers: Sent) -> tuple[ContextDocument, ...]:
        return await self._resources.retrieval.search(asked.query, asked.documents, headers)

    async def _export_documents(
        self,
        opening: CollaborationOpen,
        codec: CloudSideCodec,
        stream: CollaborationStream,
        headers: Sent,
    ) -> None:
        decoder = self._resources.decoder
        deadline_s = self._settings.request_timeout_s
        exported = ExportedDocuments(
            opening, codec, stream=stream, decoder=decoder, deadline_s=deadline_s, headers=headers
        )
        await exported.serve(lambda: self._found(opening.request, headers))

    async def _open_cloud_decoder(
        self, opening: CollaborationOpen, events: DecoderEvents, headers: Sent
    ) -> DecoderLink:
        request = opening.request
        preset = opening.request.preset
        found: tuple[ContextDocument, ...] = ()
        if preset.sources is not Sources.DEVICE:
            found = await self._found(request, headers)
        drafting = local_drafting(preset, request.sampling)
        decoding = DecodingOpen(
            session=opening.session,
            epoch=0,
            base=0,
            prefix_hash=0,
            prompt=request.prompt_ids,
            committed_ids=request.committed_ids,
            documents=found,
            sampling=drafting.sampling,
            seed=request.seed,
            side=Side.CLOUD,
            probs=drafting.probs,
            ahead=preset.ahead,
            max_tokens=request.max_tokens,
            vocabulary_hash=request.vocabulary_hash,
            vocabulary_size=request.vocabulary_size,
            preset=preset.name,
            reweigh_every=preset.reweigh_every,
            processors=request.processors,
            end_ids=tuple(sorted(request.eos_token_ids)),
        )
        deadline_s = self._settings.request_timeout_s
        return self._resources.decoder_link(decoding, events, deadline_s, headers)

    def _cloud_machine(self, opening: CollaborationOpen, opened: DecodingOpened) -> SideMachine:
        request = replace(opening.request, max_tokens=opened.max_tokens)
        profiler = self._resources.profiling.profiler(opened.model_name, len(opened.documents))
        return SideMachine(
            Side.CLOUD,
            request,
            peer_log_mass=opening.log_mass,
            placement_policy=self._resources.profiling.placement_policy(request, profiler),
            measurements=profiler,
        )
