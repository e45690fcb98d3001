"""An answer from two sides at the device: a machine beside its decoder, its stream to the cloud,
and its messages to the caller.

Invariant: tokens leave when their text is known, so that nothing follows a stop string."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import grpc

from tandem.core.errors import InvalidArgument, ProtocolError
from tandem.core.stopping import FinishReason
from tandem.core.tokens import PrefixMismatch, TokenSource
from tandem.net.frame_stream import FATAL, Traffic
from tandem.net.session_runner import OpenStream
from tandem.net.status import Rejected
from tandem.specdec.events import Commit, Finish
from tandem.two_sided.protocol.counters import AggregationStats
from tandem.two_sided.protocol.decoder_messages import DecodingDraft, DecodingOpened, DecodingText
from tandem.two_sided.protocol.messages import (
    CloudSideMessage,
    CollaborationOpened,
    PeerMessage,
    SideOutput,
)
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import AggregationPreset
from tandem.two_sided.serving.decoder_link import DecoderEvents, DecoderLink
from tandem.two_sided.serving.side_session import MakeMachine, SideSession
from tandem.wire.common_codec import token_sources_to_proto
from tandem_api.common.v1 import generation_pb2 as pb


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


class DeviceSession(SideSession[CloudSideMessage]):
    """Runs one request: await `begun`, iterate `pieces`, then read the machine's stats."""

    def __init__(
        self,
        *,
        make_machine: MakeMachine,
        open_decoder: Callable[[DecoderEvents], DecoderLink],
        open_stream: OpenStream[CloudSideMessage, Any] | None,
        closing_tasks: set[asyncio.Task[None]],
        why_silent: Callable[[], Awaitable[str]],
        spread: int,
    ) -> None:
        """Open the decoder. The stream to the cloud follows: `open_stream` is called once `opened`
        is known. For the last four parameters see `SessionRunner`."""
        super().__init__(
            make_machine,
            open_stream,
            closing_tasks=closing_tasks,
            why_silent=why_silent,
            spread=spread,
            # A deadline of the cloud's own says nothing about the next stream.
            fatal=FATAL - {grpc.StatusCode.DEADLINE_EXCEEDED},
        )
        self.finish_reason: FinishReason | None = None
        self._unreported: deque[Commit] = deque()
        self._pieces: deque[TextPiece] = deque()
        self.decoder = open_decoder(replace(self.events, opened=self._decoder_opened))

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

    def drafted(self, draft: DecodingDraft) -> list[SideOutput]:
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
