"""Answers from documents on two sides, at the cloud: one device's stream after the other.

Invariant: nothing of a stream is kept when it has ended. Must not import torch.
"""

from __future__ import annotations

from dataclasses import replace

from services.aggregator.cloud_session import CloudSession, Context, first_frame
from services.aggregator.config import AggregatorSettings
from services.aggregator.decoder_link import DecoderEvents, DecoderLink
from services.aggregator.given_documents import GivenDocuments
from services.aggregator.side_parts import SideParts
from tandem.core.aggregation import Side
from tandem.core.errors import ResourceExhausted, Unavailable
from tandem.policy.aggregation_presets import AGGREGATION_PRESETS, Sources, Travel
from tandem.policy.local_choices import local_choices
from tandem.protocol.aggregating import SideMachine
from tandem.protocol.aggregation_messages import CollaborationOpen
from tandem.protocol.aggregation_outputs import request_of
from tandem.protocol.decoding_messages import DecodingOpen, DecodingOpened, Document
from tandem.rpc.access import ClientAccess
from tandem.rpc.convert_aggregation import CloudSideEnd
from tandem.telemetry.logging import get_logger, log_context
from tandem.telemetry.metric import OTHER
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.tracing import NO_TRACING, Sent, Tracing

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
        self._parts = SideParts(settings, metrics, access)
        self._sessions: set[CloudSession] = set()
        self._giving = 0
        self._leaving = False

    @property
    def open_requests(self) -> int:
        return len(self._sessions) + self._giving

    def going_away(self, grace_s: float) -> None:
        """Refuse new collaborations, and ask those there are to go on elsewhere."""
        self._leaving = True
        for session in self._sessions:
            session.going_away(grace_s)

    async def close(self) -> None:
        await self._parts.close()

    async def collaborate(self, context: Context) -> None:
        """Serve one device's stream."""
        codec = CloudSideEnd()
        opening = await first_frame(context, codec)
        if self._leaving:
            raise Unavailable("the aggregator is stopping")
        preset = opening.preset.name if opening.preset.name in AGGREGATION_PRESETS else OTHER
        named = {"session": f"{opening.session:08x}", "preset": preset}
        headers = context.invocation_metadata()
        with log_context(**named), self._tracing.span("collaborate", headers, **named) as span:
            self._check_room()
            if opening.preset.travel is not Travel.NOTHING:
                await self._give_documents(opening, codec, context, span.headers())
                return

            async def decoder(opening: CollaborationOpen, events: DecoderEvents) -> DecoderLink:
                return await self._open_cloud_decoder(opening, events, span.headers())

            session = CloudSession(opening, codec, context, decoder, self._cloud_machine)
            self._sessions.add(session)
            log.info("collaboration begun")
            try:
                await session.run()
            finally:
                self._sessions.discard(session)
                log.info("collaboration ended")

    async def _found(self, opening: CollaborationOpen, headers: Sent) -> tuple[Document, ...]:
        return await self._parts.retrieval.search(opening.query, opening.documents, headers)

    def _check_room(self) -> None:
        if self.open_requests >= self._settings.max_running:
            raise ResourceExhausted(f"collaborations: {self.open_requests} are open; try again")

    async def _give_documents(
        self, opening: CollaborationOpen, codec: CloudSideEnd, context: Context, headers: Sent
    ) -> None:
        deadline_s = self._settings.request_timeout_s
        given = GivenDocuments(opening, codec, context, self._parts.decoder, deadline_s, headers)
        self._giving += 1
        try:
            await given.give(lambda: self._found(opening, headers))
        finally:
            self._giving -= 1

    async def _open_cloud_decoder(
        self, opening: CollaborationOpen, events: DecoderEvents, headers: Sent
    ) -> DecoderLink:
        found: tuple[Document, ...] = ()
        if opening.preset.sources is not Sources.DEVICE:
            found = await self._found(opening, headers)
        choices = local_choices(opening.preset, opening.sampling)
        decoding = DecodingOpen(
            opening.session,
            0,
            0,
            0,
            prompt=opening.prompt_ids,
            committed_ids=opening.committed_ids,
            documents=found,
            sampling=choices.sampling,
            seed=opening.seed,
            side=Side.CLOUD,
            law=choices.law,
            ahead=opening.preset.ahead,
            max_tokens=opening.max_tokens,
            vocabulary_hash=opening.vocabulary_hash,
            vocabulary_size=opening.vocabulary_size,
            preset=opening.preset.name,
            reweigh_every=opening.preset.reweigh_every,
        )
        deadline_s = self._settings.request_timeout_s
        farewells = self._parts.farewells
        return DecoderLink(self._parts.decoder, decoding, events, deadline_s, farewells, headers)

    def _cloud_machine(self, opening: CollaborationOpen, opened: DecodingOpened) -> SideMachine:
        request = replace(request_of(opening), max_tokens=opened.max_tokens)
        profiler = self._parts.profiling.profiler(opened.model_name, len(opened.documents))
        return SideMachine(
            Side.CLOUD,
            request,
            peer_log_mass=opening.log_mass,
            placing=self._parts.placing(request, profiler),
            measuring=profiler,
        )
