"""Answers from documents on two sides, or more, at the device: from a request to its machine.
Invariant: the device's documents go to the device's decoder and nowhere else; what leaves are the
query, the prompt's ids, drafts with what the preset says of their distributions, and h. Of one
another the other sides hear the tokens and nothing else."""

import asyncio
import math
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial

from tandem.core.errors import InvalidArgument
from tandem.core.tokens import PrefixedTokens
from tandem.generation.request import GenerationRequest
from tandem.net.access import ClientAccess
from tandem.net.addresses import addresses_of
from tandem.net.connection import Connection
from tandem.net.frame_stream import FrameStream, Traffic
from tandem.services.aggregator.config import AggregatorSettings, sides_of
from tandem.services.aggregator.retrieval import Retrieval
from tandem.services.aggregator.side_resources import SideResources
from tandem.settings import variable_of
from tandem.specdec.liveness import Liveness, LivenessTimes, LostCloud
from tandem.telemetry.logging import get_logger, log_context
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.tracing import Sent
from tandem.two_sided.interface import (
    AggregationGauge,
    AggregationPreset,
    AggregationRequest,
    CloudSideMessage,
    ContextDocument,
    DecoderEvents,
    DecoderLink,
    DecodingOpen,
    DecodingOpened,
    DeviceCodec,
    DeviceMessage,
    DeviceSession,
    DocumentTransfer,
    ImportedDocuments,
    OpenSideStreams,
    OtherSides,
    Side,
    SideMachine,
    SideStreams,
    Sources,
    committed_message,
    local_drafting,
    started_message,
    summary_message,
)
from tandem_api.aggregator.v1 import aggregator_pb2_grpc
from tandem_api.common.v1 import generation_pb2 as pb

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _PreparedRequest:
    """A request with the documents for it. `aggregation` lacks what only the decoder knows: the
    prompt's ids, the vocabulary and the room for the answer."""

    generation: GenerationRequest
    aggregation: AggregationRequest
    documents: tuple[ContextDocument, ...]
    deadline_s: float
    traffics: tuple[Traffic, ...]
    """With each other side, the cloud first."""
    headers: Sent

    @property
    def preset(self) -> AggregationPreset:
        return self.aggregation.preset

    @property
    def needs_cloud(self) -> bool:
        """True if the cloud takes part once the documents are here."""
        transfer = self.preset.transfer
        return self.preset.sources is not Sources.DEVICE and transfer is DocumentTransfer.NONE


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
        self._resources = SideResources(settings, metrics, access)
        self._gauge = AggregationGauge(metrics)
        self._other_sides = OtherSides(metrics)
        self._cloud = self._resources.cloud_connection(settings.cloud) if settings.cloud else None
        self._more_sides = {
            name: self._resources.cloud_connection(address)
            for name, address in sides_of(settings.more_sides)
        }

    async def close(self) -> None:
        await self._resources.close()
        for connection in (self._cloud, *self._more_sides.values()):
            if connection is not None:
                await connection.close()

    async def answers(
        self,
        request: GenerationRequest,
        timeout_s: float,
        cancel: Callable[[], Awaitable[None]] | None = None,
        headers: Sent = None,
        owner: str = "",
    ) -> AsyncGenerator[pb.GenerateResponse]:
        """The messages for the caller; closing the generator cancels the request on both sides.
        `owner`: whose documents may be used beside the operator's and shared ones."""
        prepared = await self._prepare(request, timeout_s, headers, owner)
        preset, session_id = prepared.preset, prepared.aggregation.session
        session = DeviceSession(
            lambda opened: self._machine(prepared, opened),
            lambda events: self._open_decoder(prepared, events),
            open_others=self._stream_opener(prepared, lambda: session.opened),
            closing_tasks=self._resources.closing_tasks,
            why_silent=lambda: self._why_silent(preset),
            spread=session_id,
        )
        with log_context(session=f"{session_id:08x}", preset=preset.name):
            cancelling = None if cancel is None else asyncio.create_task(_cancel(cancel, session))
            try:
                opened = await session.begun()
                log.info("two-sided request", documents=len(prepared.documents))
                names = tuple(self._more_sides) if preset.many_sided else ()
                yield started_message(session_id, preset, opened, names)
                position = 0
                with self._gauge.counted(preset.name, self._target_name(), session.machine):
                    async with aclosing(session.pieces()) as pieces:
                        async for piece in pieces:
                            yield committed_message(position, piece)
                            position += len(piece.token_ids)
                _raise_fault(cancelling)
                ended = summary_message(
                    session, preset, tokens=position, traffics=prepared.traffics, more_sides=names
                )
                if names:
                    self._other_sides.ended(("cloud", *names), ended.summary)
                used = dict.fromkeys(each.name for each in prepared.documents if each.name)
                ended.summary.device.names.extend(used)
                yield ended
            finally:
                if cancelling is not None:
                    cancelling.cancel()
                session.close()

    async def _prepare(
        self, request: GenerationRequest, timeout_s: float, headers: Sent, owner: str
    ) -> _PreparedRequest:
        """The request with this side's documents, and with the cloud's where they are sent here."""
        preset = request.composed_aggregation().of_sides(len(Side) + len(self._more_sides))
        if self._cloud is None and preset.sources is not Sources.DEVICE:
            why = f"{preset.name} needs documents in the cloud, but this suite has none"
            why += f"; use 'tandem up --rag', or set {variable_of('cloud')} to an aggregator"
            raise InvalidArgument("preset", why)
        aggregation = AggregationRequest(
            session=secrets.randbits(32),
            prompt_ids=(),
            vocabulary_hash="",
            vocabulary_size=0,
            sampling=request.sampling,
            seed=request.seed,
            max_tokens=request.max_tokens,
            preset=preset,
            ignore_eos=request.ignore_eos,
            query=request.query or _text_of(request),
            documents=request.documents or self._settings.documents,
            processors=request.processors,
        )
        hits: tuple[ContextDocument, ...] = ()
        if preset.sources is not Sources.CLOUD:
            retrieval = self._resources.retrieval
            hits = await retrieval.search(aggregation.query, aggregation.documents, headers, owner)
        traffics = tuple(Traffic() for _ in range(1 + len(self._more_sides)))
        prepared = _PreparedRequest(
            generation=request,
            aggregation=aggregation,
            documents=hits,
            deadline_s=timeout_s,
            traffics=traffics,
            headers=headers,
        )
        if preset.transfer is DocumentTransfer.NONE:
            return prepared
        return replace(prepared, documents=(*hits, *await self._imported(prepared)))

    async def _imported(self, prepared: _PreparedRequest) -> tuple[ContextDocument, ...]:
        assert self._cloud is not None, "checked as the request came"
        waits = prepared.generation.lost_cloud is LostCloud.WAIT
        imported = ImportedDocuments(
            cloud=self._cloud,
            decoder=self._resources.decoder,
            traffic=prepared.traffics[0],
            deadline_s=prepared.deadline_s,
            patience_s=prepared.deadline_s if waits else self._settings.give_up_after_s,
            headers=prepared.headers,
            tenant=prepared.generation.tenant,
        )
        opening = prepared.aggregation.opening(0, PrefixedTokens(()), -math.inf)
        if prepared.preset.transfer is DocumentTransfer.KV:
            opening = replace(opening, document_kv=await imported.device_model())
        return await imported.fetch(opening)

    def _open_decoder(self, prepared: _PreparedRequest, events: DecoderEvents) -> DecoderLink:
        request, preset = prepared.generation, prepared.preset
        drafting = local_drafting(preset, request.sampling)
        opening = DecodingOpen(
            session=prepared.aggregation.session,
            epoch=0,
            base=0,
            prefix_hash=0,
            prompt=request.prompt,
            committed_ids=(),
            documents=prepared.documents,
            sampling=drafting.sampling,
            seed=request.seed,
            side=Side.DEVICE,
            probs=drafting.probs,
            ahead=0 if preset.sources is Sources.CLOUD else preset.ahead,
            max_tokens=request.max_tokens,
            wants_text=True,
            stop=request.stop,
            preset=preset.name,
            reweigh_every=preset.reweigh_every,
            wants_token_texts=request.token_texts,
            processors=request.processors,
        )
        return self._resources.decoder_link(opening, events, prepared.deadline_s, prepared.headers)

    def _machine(self, prepared: _PreparedRequest, opened: DecodingOpened) -> SideMachine:
        request = replace(
            prepared.aggregation,
            prompt_ids=opened.prompt_ids,
            vocabulary_hash=opened.vocabulary_hash,
            vocabulary_size=opened.vocabulary_size,
            max_tokens=opened.max_tokens,
            eos_token_ids=opened.eos_token_ids,
        )
        request.sampling.validate(request.vocabulary_size)
        policy, now = prepared.generation.lost_cloud, time.monotonic()
        times = LivenessTimes(give_up_after_s=self._settings.give_up_after_s)
        others = self._others(prepared.preset) if prepared.needs_cloud else []
        lives = [Liveness(policy, times, now) for _ in others]
        if lives and len(addresses_of(self._settings.cloud)) > 1:
            lives[0] = Liveness(policy, times.with_others(), now)
        profiler = self._resources.profiling.profiler(opened.model_name, len(opened.documents))
        return SideMachine(
            Side.DEVICE,
            request,
            log_mass=opened.log_mass,
            liveness=lives[0] if lives else None,
            further=lives[1:],
            placement_policy=self._resources.profiling.placement_policy(request, profiler),
            measurements=profiler,
        )

    def _stream_opener(
        self, prepared: _PreparedRequest, opened: Callable[[], DecodingOpened | None]
    ) -> OpenSideStreams | None:
        """Return a function that opens streams to the other sides, if the preset needs them;
        `opened`: the decoder's."""
        others = self._others(prepared.preset)
        if not others or not prepared.needs_cloud:
            return None

        def open_stream(
            name: str,
            other: Connection,
            traffic: Traffic,
            on_frame: Callable[[CloudSideMessage, int], None],
            on_end: Callable[[BaseException | None], None],
        ) -> FrameStream[DeviceMessage, CloudSideMessage]:
            here = opened()
            assert here is not None, "the machine exists"
            return FrameStream(
                other,
                lambda channel: aggregator_pb2_grpc.AggregatorServiceStub(channel).Collaborate(
                    timeout=prepared.deadline_s, wait_for_ready=True, metadata=prepared.headers
                ),
                codec=DeviceCodec(here.vocabulary_size, prepared.preset.probs),
                traffic=traffic,
                on_frame=on_frame,
                on_end=on_end,
                stranger=f"{name} at {other.target}",
            )

        names = ("the cloud", *(f"the side {name!r}" for name in self._more_sides))
        named = zip(names, others, prepared.traffics, strict=False)
        openers = [partial(open_stream, name, other, traffic) for name, other, traffic in named]
        return partial(SideStreams, openers, self._resources.closing_tasks)

    def _others(self, preset: AggregationPreset) -> list[Connection]:
        """The other sides of such an answer, the cloud first."""
        if self._cloud is None:
            return []
        return [self._cloud, *(self._more_sides.values() if preset.many_sided else ())]

    @property
    def retrieval(self) -> Retrieval:
        return self._resources.retrieval

    async def _why_silent(self, preset: AggregationPreset) -> str:
        """Diagnose the sides that take part."""
        others = self._others(preset)
        reasons = await asyncio.gather(*(each.why_silent() for each in others))
        named = zip(("cloud", *self._more_sides), reasons, strict=False)
        lines = [why if len(others) == 1 else f"{name}: {why}" for name, why in named if why]
        return "; ".join(lines)


def _text_of(request: GenerationRequest) -> str:
    """Return the default search query: the prompt, or the last turn."""
    if isinstance(request.prompt, str):
        return request.prompt
    last = request.prompt[-1] if request.prompt else ""
    if isinstance(last, int | str):
        raise InvalidArgument("query", "is required if the prompt is token ids")
    return last.content


async def _cancel(cancel: Callable[[], Awaitable[None]], session: DeviceSession) -> None:
    try:
        await cancel()
    finally:
        session.cancel()


def _raise_fault(cancelling: asyncio.Task[None] | None) -> None:
    """The caller's own fault, if that ended the request."""
    if cancelling is not None and cancelling.done() and not cancelling.cancelled():
        cancelling.result()
