"""Answers from documents on two sides, at the device: from a request to the messages for its
caller; a machine between its decoder and its stream to the cloud.

Invariants: the device's documents go to the device's decoder and nowhere else; what leaves are the
query, the prompt's ids, drafts with what the preset says of their distributions, and h. Tokens
leave when their text is known, so that nothing follows a stop string."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

import grpc

from tandem.core.prompt import Prompt, is_conversation
from tandem.core.stopping import FinishReason
from tandem.net.connection import Connection
from tandem.net.failover_connection import FailoverConnection
from tandem.net.frame_stream import FATAL, FrameStream, Traffic
from tandem.specdec.events import Commit, Finish
from tandem.specdec.liveness import Liveness, LivenessTimes, LostCloud
from tandem.specdec.messages import GenerationParams
from tandem.telemetry.logging import get_logger, log_context
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.tracing import Sent
from tandem.two_sided.profiling.profile_sources import Profiling
from tandem.two_sided.profiling.side_metrics import AggregationGauge
from tandem.two_sided.protocol.messages import (
    AggregationRequest,
    CloudSideMessage,
    ContextDocument,
    DecodingOpened,
    DecodingText,
    DeviceMessage,
    PeerMessage,
    SideOutput,
)
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import (
    AggregationPreset,
    DocumentContext,
    DocumentTransfer,
    Sources,
)
from tandem.two_sided.protocol.side_machine import SideMachine
from tandem.two_sided.serving.document_transfer import FetchedDocuments, Search
from tandem.two_sided.serving.peer_codec import DeviceCodec
from tandem.two_sided.serving.side_session import SideDecoding, SideSession, never_silent
from tandem.wire.common_codec import token_sources_to_proto
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
        preset = request.preset
        traffic = Traffic()
        documents = await self._documents(request, traffic)
        cloud = self._cloud if preset.transfer is DocumentTransfer.NONE else None
        session = DeviceSession(
            request,
            documents,
            self._decoding,
            cloud if preset.needs_cloud else None,
            traffic,
            give_up_after_s=self._give_up_after_s,
        )
        number = f"{session.number:08x}"
        with log_context(session=number, preset=preset.name):
            cancelling = None if cancel is None else asyncio.create_task(_cancel(cancel, session))
            try:
                opened = await session.begun()
                log.info("two-sided request", documents=len(documents))
                started = pb.Started(
                    session=number,
                    preset=preset.name,
                    prompt_tokens=len(opened.prompt_ids),
                    max_tokens=opened.max_tokens,
                )
                yield pb.GenerateResponse(started=started)
                with self._gauge.counted(preset.name, self._target_name(), session.machine):
                    async with aclosing(session.pieces()) as pieces:
                        async for piece in pieces:
                            yield pb.GenerateResponse(committed=piece)
                if cancelling is not None and cancelling.done() and not cancelling.cancelled():
                    cancelling.result()  # raises the caller's own fault, if that ended the request
                summary = session.summary(opened)
                named = (document.name for document in documents if document.name)
                summary.device.names.extend(dict.fromkeys(named))
                yield pb.GenerateResponse(summary=summary)
            finally:
                if cancelling is not None:
                    cancelling.cancel()
                session.close()

    async def _documents(
        self, request: DeviceRequest, traffic: Traffic
    ) -> tuple[ContextDocument, ...]:
        """Return this side's documents, and the cloud's where they are sent here."""
        preset = request.preset
        documents: tuple[ContextDocument, ...] = ()
        if preset.sources is not Sources.CLOUD:
            documents = await request.search(request.query, request.documents, request.headers)
        if preset.transfer is DocumentTransfer.NONE:
            return documents
        assert self._cloud is not None, "no preset that needs a cloud is asked for without one"
        joined = preset.context is DocumentContext.JOINED
        waits = request.lost_cloud is LostCloud.WAIT
        cloud = FetchedDocuments(
            cloud=self._cloud,
            decoder=self._decoding.connection,
            traffic=traffic,
            deadline_s=request.timeout_s,
            patience_s=request.timeout_s if waits else self._give_up_after_s,
            headers=request.headers,
            tenant=request.tenant,
            in_conversation=is_conversation(request.prompt),
            joined=joined,
        )
        with_kv = preset.transfer is DocumentTransfer.KV
        fetched = await cloud.fetch(request.query, request.documents, with_kv=with_kv)
        # Keys and values depend on what stands before them: those that came must begin.
        return (*fetched, *documents) if joined else (*documents, *fetched)


async def _cancel(cancel: Callable[[], Awaitable[None]], session: DeviceSession) -> None:
    try:
        await cancel()
    finally:
        session.cancel()


class DeviceSession(SideSession[CloudSideMessage]):
    """Runs one request: await `begun`, iterate `pieces`, then read the `summary`."""

    def __init__(
        self,
        request: DeviceRequest,
        documents: tuple[ContextDocument, ...],
        decoding: SideDecoding,
        cloud: Connection | None,
        traffic: Traffic,
        *,
        give_up_after_s: float,
    ) -> None:
        """Open the decoder; the stream to the cloud follows when that has taken the request.

        Args:
            documents: for this side's decoder.
            cloud: to the cloud's aggregator; None where it takes no part.
            traffic: counts the bytes exchanged with it.
            give_up_after_s: silence of the cloud after which it counts as lost."""
        self.number = secrets.randbits(32)
        super().__init__(
            decoding,
            None if cloud is None else self._stream_to_cloud,
            why_silent=never_silent if cloud is None else cloud.why_silent,
            spread=self.number,
            # A deadline of the cloud's own says nothing about the next stream.
            fatal=FATAL - {grpc.StatusCode.DEADLINE_EXCEEDED},
        )
        self.finish_reason: FinishReason | None = None
        self._request = request
        self._traffic = traffic
        self._cloud = None if cloud is None else cloud.for_request()
        times = LivenessTimes(give_up_after_s=give_up_after_s)
        self._liveness_times = (
            times.with_others() if isinstance(cloud, FailoverConnection) else times
        )
        self._unreported: deque[Commit] = deque()
        self._pieces: deque[pb.Committed] = deque()
        self._tokens = 0
        """Of the pieces."""
        # What the decoder alone knows is added when it has opened.
        self._aggregation = AggregationRequest(
            session=self.number,
            prompt_ids=(),
            vocabulary_hash="",
            vocabulary_size=0,
            sampling=request.params.sampling,
            seed=request.params.seed,
            max_tokens=request.params.max_tokens,
            preset=request.preset,
            ignore_eos=request.params.ignore_eos,
            query=request.query,
            documents=request.documents,
            processors=request.params.processors,
        )
        opening = replace(
            self._aggregation.decoding_opening(
                Side.DEVICE, prompt=request.prompt, documents=documents
            ),
            wants_text=True,
            stop=request.stop,
            wants_token_texts=request.token_texts,
            chat_template_kwargs=request.chat_template_kwargs,
        )
        if request.preset.sources is Sources.CLOUD:
            opening = replace(opening, ahead=0)
        self.open_decoder(opening, request.timeout_s, request.headers)

    def make_machine(self, opened: DecodingOpened) -> SideMachine:
        request = replace(
            self._aggregation,
            prompt_ids=opened.prompt_ids,
            vocabulary_hash=opened.vocabulary_hash,
            vocabulary_size=opened.vocabulary_size,
            max_tokens=opened.max_tokens,
            eos_token_ids=opened.eos_token_ids,
        )
        request.sampling.validate(request.vocabulary_size)
        liveness = Liveness(self._request.lost_cloud, self._liveness_times, time.monotonic())
        return self.machine_of(
            Side.DEVICE,
            request,
            opened,
            log_mass=opened.log_mass,
            liveness=None if self._cloud is None else liveness,
        )

    def _stream_to_cloud(
        self,
        on_frame: Callable[[CloudSideMessage, int], None],
        on_end: Callable[[BaseException | None], None],
    ) -> FrameStream[DeviceMessage, CloudSideMessage]:
        assert self._cloud is not None, "it takes part"
        assert self.opened is not None, "the machine exists"
        request = self._request
        return FrameStream(
            self._cloud,
            lambda channel: aggregator_pb2_grpc.AggregatorServiceStub(channel).Collaborate(
                timeout=request.timeout_s, wait_for_ready=True, metadata=request.headers
            ),
            codec=DeviceCodec(self.opened.vocabulary_size, request.preset.probs),
            traffic=self._traffic,
            on_frame=on_frame,
            on_end=on_end,
            stranger=f"the cloud at {self._cloud.target}",
        )

    async def begun(self) -> DecodingOpened:
        """Wait until the decoder has taken the request. Raises what it refused it with."""
        while self.opened is None:
            await self.raise_failure(None)
            await self.woken()
        await self.raise_failure(None)  # the machine may refuse what the decoder has taken
        return self.opened

    async def pieces(self) -> AsyncGenerator[pb.Committed, None]:
        """Yield committed tokens as they become final. Raises Rejected or Unavailable when a
        decoder or the cloud refuses or stays lost; closing the iterator cancels the request
        everywhere."""
        with self.running():
            while True:
                complete = self._complete
                while self._pieces:
                    yield self._pieces.popleft()
                await self.raise_failure(None)
                if complete:
                    break
                await self.woken()
            await self.raise_failure(self.finish_reason)

    @property
    def _complete(self) -> bool:
        """Nothing more will come: the answer has ended, and every token's text is known."""
        gone = self.finish_reason in (FinishReason.ERROR, FinishReason.CANCELLED)
        return self.finish_reason is not None and (gone or not self._unreported)

    def cancel(self) -> None:
        """End the answer: the caller wants no more, only a summary."""
        self.dispatch(self.cancel_machine)

    def send_to_peer(self, message: PeerMessage) -> None:
        self.machine.sized(self.send(message))

    def perform(self, output: SideOutput) -> None:
        match output:
            case Commit():
                self._unreported.append(output)
            case Finish(reason):
                self.finish_reason = reason
            case _:
                super().perform(output)

    def text(self, text: DecodingText) -> None:
        """Let the tokens leave whose text is now known; those behind a stop string never leave."""
        if not self._unreported or self.finish_reason is FinishReason.CANCELLED:
            return
        commit = self._unreported.popleft()
        token_ids = commit.token_ids[: text.tokens]
        piece = pb.Committed(
            position=self._tokens,
            token_ids=token_ids,
            text=text.text,
            unverified=commit.unverified,
            token_sources=token_sources_to_proto(commit.token_sources[: len(token_ids)]),
            token_texts=text.token_texts,
        )
        self._tokens += len(token_ids)
        self._pieces.append(piece)
        if text.stopped:
            self._unreported.clear()
            self.dispatch(lambda: self.machine.stop())
            self.finish_reason = FinishReason.STOP
        self.notify()

    def summary(self, opened: DecodingOpened) -> pb.Summary:
        """Return what the caller hears of the answer, which has ended."""
        machine = self.machine
        stats = machine.stats
        sides = {
            side: pb.SideSummary(
                drafted=stats.drafted[side],
                accepted=stats.accepted[side],
                decode_s=stats.decode_s[side],
            )
            for side in Side
        }
        sides[Side.DEVICE].documents = len(opened.document_tokens)
        sides[Side.DEVICE].document_tokens = sum(opened.document_tokens)
        sides[Side.DEVICE].log_mass = opened.log_mass
        if (peer := machine.peer_opened) is not None:
            sides[Side.CLOUD].documents = peer.documents
            sides[Side.CLOUD].document_tokens = peer.document_tokens
            sides[Side.CLOUD].log_mass = peer.log_mass
        preset = self._request.preset
        return pb.Summary(
            finish_reason=self.finish_reason or FinishReason.ERROR,
            preset=preset.name,
            prompt_tokens=len(opened.prompt_ids),
            tokens=self._tokens,
            rounds=stats.tokens,
            drafted=sum(stats.drafted.values()),
            accepted=sum(stats.accepted.values()),
            resumes=stats.resumes,
            unverified_tokens=min(stats.unverified_tokens, self._tokens),
            draft_s=stats.decode_s[Side.DEVICE],
            verify_s=stats.decode_s[Side.CLOUD],
            links_lost=stats.links_lost,
            loss_noticed_s=stats.loss_noticed_s,
            lossy=preset.lossy,
            side_moves=stats.side_moves,
            fetches=stats.fetches,
            uplink_bytes=self._traffic.uplink_bytes,
            downlink_bytes=self._traffic.downlink_bytes,
            device=sides[Side.DEVICE],
            cloud=sides[Side.CLOUD],
        )
