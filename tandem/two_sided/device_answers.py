"""Answers from documents on two sides, at the device: from a request to the messages for
its caller. Invariant: the device's documents go to the device's decoder and nowhere else; what
leaves are the query, the prompt's ids, drafts with what the preset says of their distributions, and
h."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace

from tandem.core.prompt import is_conversation
from tandem.core.stopping import FinishReason
from tandem.net.connection import Connection
from tandem.net.frame_stream import Traffic
from tandem.specdec.liveness import LostCloud
from tandem.telemetry.logging import get_logger, log_context
from tandem.telemetry.metrics import Metrics
from tandem.two_sided.profiling.profile_sources import Profiling
from tandem.two_sided.profiling.side_metrics import AggregationGauge
from tandem.two_sided.protocol.counters import AggregationStats
from tandem.two_sided.protocol.messages import (
    AggregationRequest,
    CollaborationOpened,
    ContextDocument,
    DecodingOpened,
)
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import (
    AggregationPreset,
    DocumentContext,
    DocumentTransfer,
    Sources,
)
from tandem.two_sided.serving.device_session import (
    DeviceRequest,
    DeviceSession,
    PreparedRequest,
    TextPiece,
)
from tandem.two_sided.serving.document_transfer import FetchedDocuments
from tandem.two_sided.serving.side_session import SideDecoding
from tandem.wire.common_codec import token_sources_to_proto
from tandem_api.common.v1 import generation_pb2 as pb

log = get_logger(__name__)


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
            prepared,
            self._decoding,
            self._cloud if prepared.needs_cloud else None,
            give_up_after_s=self._give_up_after_s,
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

    async def _prepare(self, request: DeviceRequest) -> PreparedRequest:
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
        prepared = PreparedRequest(
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

    async def _fetched(self, prepared: PreparedRequest) -> tuple[ContextDocument, ...]:
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


async def _cancel(cancel: Callable[[], Awaitable[None]], session: DeviceSession) -> None:
    try:
        await cancel()
    finally:
        session.cancel()


def _raise_fault(cancelling: asyncio.Task[None] | None) -> None:
    """Raise the caller's own fault, if that ended the request."""
    if cancelling is not None and cancelling.done() and not cancelling.cancelled():
        cancelling.result()


def started_message(
    session: int, preset: AggregationPreset, opened: DecodingOpened
) -> pb.GenerateResponse:
    """Return the caller's first message.

    Args:
        session: the request's number.
        preset: the method that answers.
        opened: what the device's decoder said."""
    return pb.GenerateResponse(
        started=pb.Started(
            session=f"{session:08x}",
            preset=preset.name,
            prompt_tokens=len(opened.prompt_ids),
            max_tokens=opened.max_tokens,
        )
    )


def committed_message(position: int, piece: TextPiece) -> pb.GenerateResponse:
    """Return the message with a piece whose first token is the answer's token `position`."""
    return pb.GenerateResponse(
        committed=pb.Committed(
            position=position,
            token_ids=piece.token_ids,
            text=piece.text,
            unverified=piece.commit.unverified,
            token_sources=token_sources_to_proto(piece.token_sources),
            token_texts=piece.token_texts,
        )
    )


def summary_message(
    session: DeviceSession,
    preset: AggregationPreset,
    tokens: int,
    traffic: Traffic,
) -> pb.GenerateResponse:
    """Return the caller's last message.

    Args:
        session: the answer's, which has ended.
        preset: the method that answered.
        tokens: how many the caller got.
        traffic: bytes exchanged with the cloud."""
    opened = session.opened
    stats = session.machine.stats
    assert opened is not None, "a summary follows an answer"
    summary = pb.Summary(
        finish_reason=session.finish_reason or FinishReason.ERROR,
        preset=preset.name,
        prompt_tokens=len(opened.prompt_ids),
        tokens=tokens,
        rounds=stats.tokens,
        drafted=sum(stats.drafted.values()),
        accepted=sum(stats.accepted.values()),
        resumes=stats.resumes,
        unverified_tokens=min(stats.unverified_tokens, tokens),
        draft_s=stats.decode_s[Side.DEVICE],
        verify_s=stats.decode_s[Side.CLOUD],
        links_lost=stats.links_lost,
        loss_noticed_s=stats.loss_noticed_s,
        lossy=preset.lossy,
        side_moves=stats.side_moves,
        fetches=stats.fetches,
        uplink_bytes=traffic.uplink_bytes,
        downlink_bytes=traffic.downlink_bytes,
    )
    _fill_side(summary.device, Side.DEVICE, stats=stats)
    _fill_side(summary.cloud, Side.CLOUD, stats=stats, opened=session.machine.peer_opened)
    summary.device.documents = len(opened.document_tokens)
    summary.device.document_tokens = sum(opened.document_tokens)
    summary.device.log_mass = opened.log_mass
    return pb.GenerateResponse(summary=summary)


def _fill_side(
    summary: pb.SideSummary,
    side: Side,
    *,
    stats: AggregationStats,
    opened: CollaborationOpened | None = None,
) -> None:
    """Fill in what a side did, and what it said of its documents."""
    summary.drafted = stats.drafted[side]
    summary.accepted = stats.accepted[side]
    summary.decode_s = stats.decode_s[side]
    if opened is not None:
        summary.documents = opened.documents
        summary.document_tokens = opened.document_tokens
        summary.log_mass = opened.log_mass
