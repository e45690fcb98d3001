"""Answers from documents on two sides, at the device: from a request to the messages for
its caller. Invariant: the device's documents go to the device's decoder and nowhere else; what
leaves are the query, the prompt's ids, drafts with what the preset says of their distributions, and
h."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

from tandem.core.prompt import Prompt, is_conversation
from tandem.net.connection import Connection
from tandem.net.failover_connection import FailoverConnection
from tandem.net.frame_stream import FrameStream, Traffic
from tandem.net.session_runner import OpenStream
from tandem.specdec.liveness import Liveness, LivenessTimes, LostCloud
from tandem.specdec.messages import GenerationParams
from tandem.telemetry.logging import get_logger, log_context
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.tracing import Sent
from tandem.two_sided.profiling.profile_sources import Profiling
from tandem.two_sided.profiling.side_metrics import AggregationGauge
from tandem.two_sided.protocol.decoder_messages import ContextDocument, DecodingOpened
from tandem.two_sided.protocol.messages import (
    AggregationRequest,
    CloudSideMessage,
    DeviceMessage,
)
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import (
    AggregationPreset,
    DocumentContext,
    DocumentTransfer,
    Sources,
)
from tandem.two_sided.protocol.side_machine import SideMachine
from tandem.two_sided.serving.decoder_link import DecoderEvents, DecoderLink
from tandem.two_sided.serving.device_session import (
    DeviceSession,
    committed_message,
    started_message,
    summary_message,
)
from tandem.two_sided.serving.document_transfer import FetchedDocuments, Search
from tandem.two_sided.serving.peer_codec import DeviceCodec
from tandem.two_sided.serving.side_session import SideDecoding
from tandem_api.aggregator.v1 import aggregator_pb2_grpc
from tandem_api.common.v1 import generation_pb2 as pb

log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """One caller's request, checked.

    `query`: what is looked for on both sides, `documents` of them at most on each; `search` finds
    those of the device. `timeout_s`: for the whole answer. `headers`: the asking span's. `tenant`:
    whose the keys and values are that the cloud sends. The rest is as in a `GenerationRequest`."""

    prompt: Prompt
    preset: AggregationPreset
    query: str
    documents: int
    search: Search
    params: GenerationParams
    stop: tuple[str, ...]
    token_texts: bool
    lost_cloud: LostCloud
    timeout_s: float
    headers: Sent = None
    tenant: bytes = b""
    chat_template_kwargs: str = ""


@dataclass(frozen=True, slots=True)
class _PreparedRequest:
    """A request with the documents for it. `aggregation` lacks what only the decoder knows: the
    prompt's ids, the vocabulary and the room for the answer."""

    request: DeviceRequest
    aggregation: AggregationRequest
    documents: tuple[ContextDocument, ...]
    traffic: Traffic
    """With the cloud."""

    @property
    def preset(self) -> AggregationPreset:
        return self.aggregation.preset

    @property
    def needs_cloud(self) -> bool:
        """True if the cloud takes part once the documents are here."""
        return self.preset.needs_cloud and self.preset.transfer is DocumentTransfer.NONE


class DeviceAnswers:
    """The device's part in all its answers; used on the event loop only."""

    def __init__(
        self,
        *,
        decoder: Connection,
        cloud: Connection | None,
        profiling: Profiling,
        metrics: Metrics,
        target_name: Callable[[], str],
        give_up_after_s: float,
    ) -> None:
        """Begin to serve; the connections and `profiling` stay the caller's to close.

        Args:
            decoder: to the decoder beside the device.
            cloud: to the cloud's aggregator; None where there is none, and no preset may need it.
            profiling: what the aggregating side is chosen by.
            metrics: where answers are counted.
            target_name: what the target model is called, as far as it is known.
            give_up_after_s: silence of the cloud after which it counts as lost."""
        self._decoding = SideDecoding(decoder, profiling)
        self._cloud = cloud
        self._gauge = AggregationGauge(metrics)
        self._target_name = target_name
        self._give_up_after_s = give_up_after_s

    async def close(self) -> None:
        """Wait for streams that are being closed, a little."""
        await self._decoding.close()

    async def answer(
        self, request: DeviceRequest, cancel: Callable[[], Awaitable[None]] | None = None
    ) -> AsyncGenerator[pb.GenerateResponse]:
        """Yield the messages for the caller; closing the generator cancels the request on both
        sides, as does the return of `cancel`, whose exception is raised. Raises Rejected,
        Unavailable or InvalidArgument."""
        prepared = await self._prepare(request)
        preset = prepared.preset
        session_id = prepared.aggregation.session
        session = DeviceSession(
            make_machine=lambda opened: self._machine(prepared, opened),
            open_decoder=lambda events: self._open_decoder(prepared, events),
            open_stream=self._stream_opener(prepared, lambda: session.opened),
            closing_tasks=self._decoding.closing_tasks,
            why_silent=self._why_silent,
            spread=session_id,
        )
        with log_context(session=f"{session_id:08x}", preset=preset.name):
            cancelling = None if cancel is None else asyncio.create_task(_cancel(cancel, session))
            try:
                opened = await session.begun()
                log.info("two-sided request", documents=len(prepared.documents))
                yield started_message(session_id, preset, opened)
                position = 0
                with self._gauge.counted(preset.name, self._target_name(), session.machine):
                    async with aclosing(session.pieces()) as pieces:
                        async for piece in pieces:
                            yield committed_message(position, piece)
                            position += len(piece.token_ids)
                _raise_fault(cancelling)
                ended = summary_message(session, preset, tokens=position, traffic=prepared.traffic)
                used = dict.fromkeys(
                    document.name for document in prepared.documents if document.name
                )
                ended.summary.device.names.extend(used)
                yield ended
            finally:
                if cancelling is not None:
                    cancelling.cancel()
                session.close()

    async def _prepare(self, request: DeviceRequest) -> _PreparedRequest:
        """Return the request with this side's documents, and with the cloud's where they are sent
        here."""
        preset = request.preset
        aggregation = AggregationRequest(
            session=secrets.randbits(32),
            prompt_ids=(),
            vocabulary_hash="",
            vocabulary_size=0,
            sampling=request.params.sampling,
            seed=request.params.seed,
            max_tokens=request.params.max_tokens,
            preset=preset,
            ignore_eos=request.params.ignore_eos,
            query=request.query,
            documents=request.documents,
            processors=request.params.processors,
        )
        documents: tuple[ContextDocument, ...] = ()
        if preset.sources is not Sources.CLOUD:
            documents = await request.search(request.query, request.documents, request.headers)
        prepared = _PreparedRequest(
            request=request,
            aggregation=aggregation,
            documents=documents,
            traffic=Traffic(),
        )
        if preset.transfer is DocumentTransfer.NONE:
            return prepared
        fetched = await self._fetched(prepared)
        if preset.context is DocumentContext.JOINED:
            # Keys and values depend on what stands before them: those that came must begin.
            return replace(prepared, documents=(*fetched, *documents))
        return replace(prepared, documents=(*documents, *fetched))

    async def _fetched(self, prepared: _PreparedRequest) -> tuple[ContextDocument, ...]:
        assert self._cloud is not None, "no preset that needs a cloud is asked for without one"
        request = prepared.request
        waits = request.lost_cloud is LostCloud.WAIT
        fetched = FetchedDocuments(
            cloud=self._cloud,
            decoder=self._decoding.connection,
            traffic=prepared.traffic,
            deadline_s=request.timeout_s,
            patience_s=request.timeout_s if waits else self._give_up_after_s,
            headers=request.headers,
            tenant=request.tenant,
            in_conversation=is_conversation(request.prompt),
            joined=prepared.preset.context is DocumentContext.JOINED,
        )
        with_kv = prepared.preset.transfer is DocumentTransfer.KV
        return await fetched.fetch(request.query, request.documents, with_kv=with_kv)

    def _open_decoder(self, prepared: _PreparedRequest, events: DecoderEvents) -> DecoderLink:
        request = prepared.request
        opening = replace(
            prepared.aggregation.decoding_opening(
                Side.DEVICE, prompt=request.prompt, documents=prepared.documents
            ),
            wants_text=True,
            stop=request.stop,
            wants_token_texts=request.token_texts,
            chat_template_kwargs=request.chat_template_kwargs,
        )
        if prepared.preset.sources is Sources.CLOUD:
            opening = replace(opening, ahead=0)
        return self._decoding.link(opening, events, request.timeout_s, request.headers)

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
        return self._decoding.machine(
            Side.DEVICE,
            request,
            opened,
            log_mass=opened.log_mass,
            liveness=self._liveness(prepared),
        )

    def _liveness(self, prepared: _PreparedRequest) -> Liveness | None:
        """Return when the cloud counts as lost; None if it takes no part."""
        if self._cloud is None or not prepared.needs_cloud:
            return None
        times = LivenessTimes(give_up_after_s=self._give_up_after_s)
        if isinstance(self._cloud, FailoverConnection):
            times = times.with_others()
        return Liveness(prepared.request.lost_cloud, times, time.monotonic())

    def _stream_opener(
        self, prepared: _PreparedRequest, opened: Callable[[], DecodingOpened | None]
    ) -> OpenStream[CloudSideMessage, DeviceMessage] | None:
        """Return what opens the stream to the cloud, if the preset needs it. `opened` returns the
        answer of the device's decoder to its opening."""
        if self._cloud is None or not prepared.needs_cloud:
            return None
        cloud = self._cloud.for_request()

        def open_stream(
            on_frame: Callable[[CloudSideMessage, int], None],
            on_end: Callable[[BaseException | None], None],
        ) -> FrameStream[DeviceMessage, CloudSideMessage]:
            here = opened()
            assert here is not None, "the machine exists"
            return FrameStream(
                cloud,
                lambda channel: aggregator_pb2_grpc.AggregatorServiceStub(channel).Collaborate(
                    timeout=prepared.request.timeout_s,
                    wait_for_ready=True,
                    metadata=prepared.request.headers,
                ),
                codec=DeviceCodec(here.vocabulary_size, prepared.preset.probs),
                traffic=prepared.traffic,
                on_frame=on_frame,
                on_end=on_end,
                stranger=f"the cloud at {cloud.target}",
            )

        return open_stream

    async def _why_silent(self) -> str:
        """Return why the cloud is silent."""
        return "" if self._cloud is None else await self._cloud.why_silent()


async def _cancel(cancel: Callable[[], Awaitable[None]], session: DeviceSession) -> None:
    try:
        await cancel()
    finally:
        session.cancel()


def _raise_fault(cancelling: asyncio.Task[None] | None) -> None:
    """Raise the caller's own fault, if that ended the request."""
    if cancelling is not None and cancelling.done() and not cancelling.cancelled():
        cancelling.result()
