"""Answers from documents on two sides, at the device: from a request to its machine and back.

Invariant: the device's documents go to the device's decoder and nowhere else; what leaves are the
query, the prompt's ids, drafts with what the preset says of their laws, and h. Must not import
torch.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

from services.aggregator.config import AggregatorSettings
from services.aggregator.decoder_link import DecoderEvents, DecoderLink
from services.aggregator.device_session import DeviceSession
from services.aggregator.fetched_documents import FetchedDocuments
from services.aggregator.peer_link import PeerEvents, PeerLink
from services.aggregator.side_census import SideCensus
from services.aggregator.side_parts import SideParts
from services.aggregator.side_summary import committed_of, started_of, summary_of
from tandem.core.aggregation import Side
from tandem.core.errors import InvalidArgument
from tandem.policy.aggregation_presets import AggregationPreset, Sources, Travel
from tandem.policy.local_choices import local_choices
from tandem.protocol.aggregating import SideMachine
from tandem.protocol.aggregation_outputs import AggregationRequest
from tandem.protocol.decoding_messages import (
    DecodingOpen,
    DecodingOpened,
    Document,
)
from tandem.protocol.liveness import Liveness, LivenessTimes, LostCloud
from tandem.protocol.prefixes import PrefixedTokens
from tandem.rpc.access import ClientAccess
from tandem.rpc.convert_aggregation import DeviceEnd
from tandem.rpc.frame_stream import Traffic
from tandem.rpc.generation import GenerationRequest
from tandem.settings import variable_of
from tandem.telemetry.logging import get_logger, log_context
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.tracing import Sent
from tandem_api.aggregator.v1 import aggregator_pb2 as pb

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request with what was found for it."""

    request: GenerationRequest
    preset: AggregationPreset
    session: int
    query: str
    documents: tuple[Document, ...]
    count: int
    deadline_s: float
    traffic: Traffic
    headers: Sent


class DeviceSide:
    """The device's part in all its answers; used on the event loop only."""

    def __init__(
        self,
        settings: AggregatorSettings,
        metrics: Metrics,
        access: ClientAccess,
        target_name: Callable[[], str],
    ) -> None:
        """`target_name`: what the target model is called, as far as it is known."""
        self._target_name = target_name
        self._settings = settings
        self._parts = SideParts(settings, metrics, access)
        self._census = SideCensus(metrics)
        self._cloud = self._parts.connection(settings.cloud) if settings.cloud else None

    async def close(self) -> None:
        await self._parts.close()
        if self._cloud is not None:
            await self._cloud.close()

    async def answers(
        self,
        request: GenerationRequest,
        timeout_s: float,
        cancel: Callable[[], Awaitable[None]] | None = None,
        headers: Sent = None,
    ) -> AsyncGenerator[pb.GenerateResponse]:
        """What the caller is told; closing the generator cancels the request on both sides."""
        asked = await self._asked(request, timeout_s, headers)
        session = DeviceSession(
            lambda opened: self._device_machine(asked, opened),
            lambda events: self._open_device_decoder(asked, events),
            lambda opened, events: self._open_peer(asked, opened, events),
        )
        with log_context(session=f"{asked.session:08x}", preset=asked.preset.name):
            cancelling = None if cancel is None else asyncio.create_task(_cancel(cancel, session))
            try:
                opened = await session.begun()
                log.info("two-sided request", documents=len(asked.documents))
                yield started_of(asked.session, asked.preset, opened)
                position = 0
                with self._census.counted(asked.preset.name, self._target_name(), session.machine):
                    async with aclosing(session.pieces()) as pieces:
                        async for piece in pieces:
                            yield committed_of(position, piece)
                            position += len(piece.token_ids)
                _raise_fault(cancelling)
                yield summary_of(session, asked.preset, position, asked.traffic)
            finally:
                if cancelling is not None:
                    cancelling.cancel()
                session.close()

    async def _asked(self, request: GenerationRequest, timeout_s: float, headers: Sent) -> _Asked:
        """The request with this side's documents; where the cloud's travel, with those too."""
        preset = request.composed_aggregation()
        if self._cloud is None and preset.sources is not Sources.DEVICE:
            why = f"{preset.name} needs the cloud's aggregator; set {variable_of('cloud')}"
            raise InvalidArgument("preset", why)
        query = request.query or _text_of(request)
        count = request.documents or self._settings.documents
        found: tuple[Document, ...] = ()
        if preset.sources is not Sources.CLOUD:
            found = await self._parts.retrieval.search(query, count, headers)
        asked = _Asked(
            request,
            preset,
            secrets.randbits(32),
            query,
            found,
            count,
            timeout_s,
            Traffic(),
            headers,
        )
        if preset.travel is Travel.NOTHING:
            return asked
        return replace(asked, documents=(*found, *await self._fetched(asked)))

    async def _fetched(self, asked: _Asked) -> tuple[Document, ...]:
        """The cloud's documents themselves."""
        assert self._cloud is not None, "checked as the request came"
        waits = asked.request.lost_cloud is LostCloud.WAIT
        fetched = FetchedDocuments(
            self._cloud,
            self._parts.decoder,
            asked.traffic,
            asked.deadline_s,
            asked.deadline_s if waits else self._settings.give_up_after_s,
            asked.headers,
        )
        request = self._aggregation_request(asked, (), "", 0, asked.request.max_tokens)
        opening = request.opening(0, PrefixedTokens(()), -math.inf)
        if asked.preset.travel is Travel.KV:
            opening = replace(opening, document_kv=await fetched.device_model())
        return await fetched.fetch(opening)

    def _open_device_decoder(self, asked: _Asked, events: DecoderEvents) -> DecoderLink:
        request, choices = asked.request, local_choices(asked.preset, asked.request.sampling)
        opening = DecodingOpen(
            asked.session,
            0,
            0,
            0,
            prompt=request.prompt,
            committed_ids=(),
            documents=asked.documents,
            sampling=choices.sampling,
            seed=request.seed,
            side=Side.DEVICE,
            law=choices.law,
            ahead=0 if asked.preset.sources is Sources.CLOUD else asked.preset.ahead,
            max_tokens=request.max_tokens,
            wants_text=True,
            stop=request.stop,
            preset=asked.preset.name,
            reweigh_every=asked.preset.reweigh_every,
        )
        return DecoderLink(
            self._parts.decoder,
            opening,
            events,
            asked.deadline_s,
            self._parts.farewells,
            asked.headers,
        )

    def _device_machine(self, asked: _Asked, opened: DecodingOpened) -> SideMachine:
        request = self._aggregation_request(
            asked,
            opened.prompt_ids,
            opened.vocabulary_hash,
            opened.vocabulary_size,
            opened.max_tokens,
            opened.eos_token_ids,
        )
        request.sampling.validate(request.vocabulary_size)
        settings = self._settings
        times = LivenessTimes(give_up_after_s=settings.give_up_after_s)
        needs_cloud = self._needs_cloud(asked.preset)
        liveness = Liveness(asked.request.lost_cloud, times, time.monotonic())
        profiler = self._parts.profiling.profiler(opened.model_name, len(opened.documents))
        return SideMachine(
            Side.DEVICE,
            request,
            log_mass=opened.log_mass,
            liveness=liveness if needs_cloud else None,
            placing=self._parts.placing(request, profiler),
            measuring=profiler,
        )

    def _open_peer(
        self, asked: _Asked, opened: DecodingOpened, events: PeerEvents
    ) -> PeerLink | None:
        if not self._needs_cloud(asked.preset):
            return None
        return self._link(asked, events, opened.vocabulary_size)

    def _link(self, asked: _Asked, events: PeerEvents, vocabulary_size: int) -> PeerLink:
        assert self._cloud is not None, "checked as the request came"
        return PeerLink(
            self._cloud,
            DeviceEnd(vocabulary_size, asked.preset.law),
            events,
            asked.traffic,
            asked.deadline_s,
            self._parts.farewells,
            asked.headers,
        )

    def _needs_cloud(self, preset: AggregationPreset) -> bool:
        return preset.sources is not Sources.DEVICE and preset.travel is Travel.NOTHING

    def _aggregation_request(
        self,
        asked: _Asked,
        prompt_ids: tuple[int, ...],
        vocabulary_hash: str,
        vocabulary_size: int,
        max_tokens: int,
        ends: frozenset[int] = frozenset(),
    ) -> AggregationRequest:
        return AggregationRequest(
            session=asked.session,
            prompt_ids=prompt_ids,
            vocabulary_hash=vocabulary_hash,
            vocabulary_size=vocabulary_size,
            sampling=asked.request.sampling,
            seed=asked.request.seed,
            max_tokens=max_tokens,
            preset=asked.preset,
            eos_token_ids=ends,
            ignore_eos=asked.request.ignore_eos,
            query=asked.query,
            documents=asked.count,
        )


def _text_of(request: GenerationRequest) -> str:
    """What is looked for where the caller does not say: the prompt, or the last turn."""
    if isinstance(request.prompt, str):
        return request.prompt
    last = request.prompt[-1] if request.prompt else ""
    if isinstance(last, int | str):
        raise InvalidArgument("query", "is needed where the prompt is token ids")
    return last.content


async def _cancel(cancel: Callable[[], Awaitable[None]], session: DeviceSession) -> None:
    try:
        await cancel()
    finally:
        session.cancel()


def _raise_fault(cancelling: asyncio.Task[None] | None) -> None:
    """The caller's own fault, if that ended the request."""
    if cancelling is None or not cancelling.done() or cancelling.cancelled():
        return
    error = cancelling.exception()
    if isinstance(error, Exception):
        raise error
