"""An answer from two sides at the device: a machine beside its decoder, its stream to the cloud,
and its messages to the caller.

Invariant: tokens leave when their text is known, so that nothing follows a stop string."""

import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace

import grpc

from tandem.core.errors import InvalidArgument, ProtocolError
from tandem.core.prompt import Prompt
from tandem.core.stopping import FinishReason
from tandem.core.tokens import PrefixMismatch, TokenSource
from tandem.net.connection import Connection
from tandem.net.failover_connection import FailoverConnection
from tandem.net.frame_stream import FATAL, FrameStream, Traffic
from tandem.net.status import Rejected
from tandem.specdec.events import Commit, Finish
from tandem.specdec.liveness import Liveness, LivenessTimes, LostCloud
from tandem.specdec.messages import GenerationParams
from tandem.telemetry.tracing import Sent
from tandem.two_sided.protocol.messages import (
    AggregationRequest,
    CloudSideMessage,
    ContextDocument,
    DecodingOpened,
    DecodingText,
    DeviceMessage,
    PeerMessage,
    SideDraftFrame,
    SideOutput,
)
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import AggregationPreset, DocumentTransfer, Sources
from tandem.two_sided.protocol.side_machine import SideMachine
from tandem.two_sided.serving.decoder_link import DecoderLink
from tandem.two_sided.serving.document_transfer import Search
from tandem.two_sided.serving.peer_codec import DeviceCodec
from tandem.two_sided.serving.side_session import SideDecoding, SideSession, never_silent
from tandem_api.aggregator.v1 import aggregator_pb2_grpc


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Committed tokens with their text."""

    token_ids: tuple[int, ...]
    text: str
    commit: Commit
    """What they were committed with; those behind a stop string are not in `token_ids`."""
    token_texts: tuple[str, ...] = ()

    @property
    def token_sources(self) -> tuple[TokenSource, ...]:
        return self.commit.token_sources[: len(self.token_ids)]


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
class PreparedRequest:
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


class DeviceSession(SideSession[CloudSideMessage]):
    """Runs one request: await `begun`, iterate `pieces`, then read the machine's stats."""

    def __init__(
        self,
        prepared: PreparedRequest,
        decoding: SideDecoding,
        cloud: Connection | None,
        *,
        give_up_after_s: float,
    ) -> None:
        """Open the decoder; the stream to the cloud follows when that has taken the request.

        Args:
            cloud: to the cloud's aggregator; None where it takes no part.
            give_up_after_s: silence of the cloud after which it counts as lost."""
        super().__init__(
            decoding,
            None if cloud is None else self._stream_to_cloud,
            why_silent=never_silent if cloud is None else cloud.why_silent,
            spread=prepared.aggregation.session,
            # A deadline of the cloud's own says nothing about the next stream.
            fatal=FATAL - {grpc.StatusCode.DEADLINE_EXCEEDED},
        )
        self.finish_reason: FinishReason | None = None
        self._prepared = prepared
        self._cloud = None if cloud is None else cloud.for_request()
        times = LivenessTimes(give_up_after_s=give_up_after_s)
        self._liveness_times = (
            times.with_others() if isinstance(cloud, FailoverConnection) else times
        )
        self._unreported: deque[Commit] = deque()
        self._pieces: deque[TextPiece] = deque()
        self.decoder = self._open_decoder()

    def _open_decoder(self) -> DecoderLink:
        prepared = self._prepared
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
        events = replace(self.events, opened=self._decoder_opened)
        return self._decoding.link(opening, events, request.timeout_s, request.headers)

    def make_machine(self, opened: DecodingOpened) -> SideMachine:
        request = replace(
            self._prepared.aggregation,
            prompt_ids=opened.prompt_ids,
            vocabulary_hash=opened.vocabulary_hash,
            vocabulary_size=opened.vocabulary_size,
            max_tokens=opened.max_tokens,
            eos_token_ids=opened.eos_token_ids,
        )
        request.sampling.validate(request.vocabulary_size)
        policy = self._prepared.request.lost_cloud
        liveness = Liveness(policy, self._liveness_times, time.monotonic())
        return self._decoding.machine(
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
        request = self._prepared.request
        return FrameStream(
            self._cloud,
            lambda channel: aggregator_pb2_grpc.AggregatorServiceStub(channel).Collaborate(
                timeout=request.timeout_s, wait_for_ready=True, metadata=request.headers
            ),
            codec=DeviceCodec(self.opened.vocabulary_size, self._prepared.preset.probs),
            traffic=self._prepared.traffic,
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

    async def pieces(self) -> AsyncGenerator[TextPiece, None]:
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

    def _decoder_opened(self, opened: DecodingOpened) -> None:
        self.dispatch(lambda: self.begin(opened))
        self.connect()

    def drafted(self, draft: SideDraftFrame) -> list[SideOutput]:
        try:
            return super().drafted(draft)
        except (ProtocolError, InvalidArgument, PrefixMismatch) as error:
            why = f"decoder: broke the conversation: {error}"
            raise Rejected(grpc.StatusCode.DATA_LOSS, why) from None

    def text(self, text: DecodingText) -> None:
        """Let the tokens leave whose text is now known; those behind a stop string never leave."""
        if not self._unreported or self.finish_reason is FinishReason.CANCELLED:
            return
        commit = self._unreported.popleft()
        piece = TextPiece(
            token_ids=commit.token_ids[: text.tokens],
            text=text.text,
            commit=commit,
            token_texts=text.token_texts,
        )
        self._pieces.append(piece)
        if text.stopped:
            self._unreported.clear()
            self.dispatch(lambda: self.machine.stop())
            self.finish_reason = FinishReason.STOP
        self.notify()
