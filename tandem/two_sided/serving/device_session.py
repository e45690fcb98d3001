"""An answer from two sides, or more, at the device: a `SideMachine` beside its decoder, its streams
to the other sides, and its messages to the caller.

Invariants: tokens leave when their text is known, so that nothing follows a stop string; the
streams begin and end together, as an answer needs every side."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

import grpc

from tandem.core.errors import InvalidArgument, ProtocolError
from tandem.core.stopping import FinishReason
from tandem.core.tokens import PrefixMismatch, TokenSource
from tandem.net.frame_stream import FATAL, Traffic
from tandem.net.session_runner import OpenedStream, OpenStream, SessionRunner
from tandem.net.status import Rejected
from tandem.specdec.events import Commit, Finish
from tandem.two_sided.protocol.decoder_messages import DecodingDraft, DecodingOpened, DecodingText
from tandem.two_sided.protocol.messages import (
    CloudSideMessage,
    CollaborationOpen,
    CollaborationOpened,
    DeviceMessage,
    SideOutput,
    ToDecoder,
    ToPeer,
)
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import AggregationPreset
from tandem.two_sided.protocol.side_machine import SideMachine
from tandem.two_sided.serving.decoder_link import DecoderEvents, DecoderLink
from tandem.wire.common_codec import token_sources_to_proto
from tandem_api.common.v1 import generation_pb2 as pb

OpenSideStream = OpenStream[CloudSideMessage, DeviceMessage]


@dataclass(frozen=True, slots=True)
class FromPeer:
    """A frame, and the link that it came by: 0 is the cloud's."""

    message: CloudSideMessage
    link: int


OpenSideStreams = OpenStream[FromPeer, ToPeer]


class SideStreams:
    """Opens one stream a side, in the order of the links."""

    def __init__(
        self,
        openers: Sequence[OpenSideStream],
        closing_tasks: set[asyncio.Task[None]],
        on_frame: Callable[[FromPeer, int], None],
        on_end: Callable[[BaseException | None], None],
    ) -> None:
        """`closing_tasks` holds the closing of those that had been opened before one could not
        be."""

        def received(link: int, message: CloudSideMessage, size_bytes: int) -> None:
            on_frame(FromPeer(message, link), size_bytes)

        self._streams: list[OpenedStream[DeviceMessage]] = []
        try:
            for link, opener in enumerate(openers):
                self._streams.append(opener(partial(received, link), on_end))
        except BaseException:
            self.close_in_background(closing_tasks)
            raise

    def send(self, message: ToPeer) -> int:
        """Queue a frame for one side and return its size in bytes."""
        # What the device's machine sends is the device's own.
        return self._streams[message.link].send(message.message)  # type: ignore[arg-type]

    def close_in_background(
        self, closing_tasks: set[asyncio.Task[None]], flush_s: float = 0.0, lost: bool = False
    ) -> None:
        """End all; see `FrameStream.close`."""
        for stream in self._streams:
            stream.close_in_background(closing_tasks, flush_s, lost)


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Committed tokens with their text."""

    token_ids: tuple[int, ...]
    text: str
    unverified: bool
    token_sources: tuple[TokenSource, ...]
    token_texts: tuple[str, ...] = ()
    token_sides: tuple[tuple[int, ...], ...] = ()


class DeviceSession(SessionRunner[ToPeer, FromPeer, SideOutput]):
    """Runs one request: await `begun`, iterate `pieces`, then read the machine's stats."""

    def __init__(
        self,
        make_machine: Callable[[DecodingOpened], SideMachine],
        open_decoder: Callable[[DecoderEvents], DecoderLink],
        open_others: OpenSideStreams | None,
        closing_tasks: set[asyncio.Task[None]],
        why_silent: Callable[[], Awaitable[str]],
        spread: int,
    ) -> None:
        """For the last four see `SessionRunner`; `open_others` is called once `opened` is known."""
        # A deadline of the cloud's own says nothing about the next stream.
        fatal = FATAL - {grpc.StatusCode.DEADLINE_EXCEEDED}
        super().__init__(
            open_others,
            CollaborationOpened,
            closing_tasks=closing_tasks,
            why_silent=why_silent,
            spread=spread,
            fatal=fatal,
        )
        self.opened: DecodingOpened | None = None
        self.others: dict[int, CollaborationOpened] = {}
        """What the other sides said of themselves, by their links."""
        self._missing: set[int] = set()
        self.finish_reason: FinishReason | None = None
        self._make_machine = make_machine
        self._machine: SideMachine | None = None
        self._unreported: deque[Commit] = deque()
        self._pieces: deque[TextPiece] = deque()
        self._wake = asyncio.Event()
        self._decoder = open_decoder(
            DecoderEvents(
                opened=self._decoder_opened,
                drafted=self._drafted,
                text=self._text,
                restarted=self._restarted,
                failed=self._fail,
            )
        )

    @property
    def machine(self) -> SideMachine:
        assert self._machine is not None, "the decoder has opened"
        return self._machine

    async def begun(self) -> DecodingOpened:
        """Once the decoder has taken the request. Raises what it refused it with."""
        while self.opened is None:
            await self.raise_failure(None)
            await self._next()
        await self.raise_failure(None)  # the machine may refuse what the decoder has taken
        return self.opened

    async def pieces(self) -> AsyncGenerator[TextPiece, None]:
        """Committed tokens as they become final. Raises Rejected or Unavailable when a decoder or
        the cloud refuses or stays lost; closing the iterator cancels the request everywhere."""
        with self.running():
            while True:
                complete = self._complete
                while self._pieces:
                    yield self._pieces.popleft()
                await self.raise_failure(None)
                if complete:
                    break
                await self._next()
            await self.raise_failure(self.finish_reason)

    @property
    def _complete(self) -> bool:
        """Nothing more will come: the answer has ended, and every token's text is known."""
        gone = self.finish_reason in (FinishReason.ERROR, FinishReason.CANCELLED)
        return self.finish_reason is not None and (gone or not self._unreported)

    def cancel(self) -> None:
        """The caller wants no more, only a summary."""
        self.dispatch(self.cancel_machine)

    def close(self) -> None:
        super().close()
        self._decoder.close()

    def admits(self, message: FromPeer) -> bool:
        """With the last side's."""
        if not isinstance(message.message, CollaborationOpened):
            return False
        self._missing.discard(message.link)
        return not self._missing

    def receive(self, message: FromPeer, size_bytes: int, now: float) -> list[SideOutput]:
        if isinstance(message.message, CollaborationOpened):
            self.others[message.link] = message.message
        return self.machine.receive(message.message, now, size_bytes, message.link)

    def perform(self, output: SideOutput) -> None:
        match output:
            case ToDecoder(message):
                self._decoder.send_target(message)
            case ToPeer(message, link):
                if isinstance(message, CollaborationOpen):
                    self._missing.add(link)
                self.machine.sized(self.send(output), link)
            case Commit():
                self._unreported.append(output)
            case Finish(reason):
                self.finish_reason = reason

    def cancel_machine(self) -> list[SideOutput]:
        return [] if self._machine is None else self._machine.cancel()

    def notify(self) -> None:
        self._wake.set()

    async def _next(self) -> None:
        await self._wake.wait()
        self._wake.clear()

    def _decoder_opened(self, opened: DecodingOpened) -> None:
        self.opened = opened

        def begin() -> list[SideOutput]:
            self._machine = self._make_machine(opened)
            return []

        self.dispatch(begin)
        self.connect()

    def _drafted(self, draft: DecodingDraft) -> None:
        def take() -> list[SideOutput]:
            try:
                return self.machine.drafted(draft, time.monotonic())
            except (ProtocolError, InvalidArgument, PrefixMismatch) as error:
                why = f"decoder: broke the conversation: {error}"
                raise Rejected(grpc.StatusCode.DATA_LOSS, why) from None

        self.dispatch(take)

    def _restarted(self) -> None:
        self.machine.decoder_restarted()

    def _text(self, text: DecodingText) -> None:
        """Tokens whose text is known leave; those behind a stop string never do."""
        if not self._unreported or self.finish_reason is FinishReason.CANCELLED:
            return
        commit = self._unreported.popleft()
        piece = TextPiece(
            token_ids=commit.token_ids[: text.tokens],
            text=text.text,
            unverified=commit.unverified,
            token_sources=commit.token_sources[: text.tokens],
            token_texts=text.token_texts,
            token_sides=commit.token_sides[: text.tokens],
        )
        self._pieces.append(piece)
        if text.stopped:
            self._unreported.clear()
            self.dispatch(lambda: self.machine.stop())
            self.finish_reason = FinishReason.STOP
        self.notify()

    def _fail(self, error: Exception) -> None:
        self.failure = error
        self.notify()


SIDE_NAMES = ("device", "cloud")
"""In the order of their numbers, before those that settings name."""


def started_message(
    session: int, preset: AggregationPreset, opened: DecodingOpened, more_sides: Sequence[str]
) -> pb.GenerateResponse:
    """Return the caller's first message.

    Args:
        session: the request's number.
        preset: the method that answers.
        opened: what the device's decoder said.
        more_sides: names of the sides beyond the cloud that take part."""
    return pb.GenerateResponse(
        started=pb.Started(
            session=f"{session:08x}",
            preset=preset.name,
            prompt_tokens=len(opened.prompt_ids),
            max_tokens=opened.max_tokens,
            sides=(*SIDE_NAMES, *more_sides) if more_sides else (),
        )
    )


def committed_message(position: int, piece: TextPiece) -> pb.GenerateResponse:
    """Return the message with a piece whose first token is the answer's token `position`."""
    return pb.GenerateResponse(
        committed=pb.Committed(
            position=position,
            token_ids=piece.token_ids,
            text=piece.text,
            unverified=piece.unverified,
            token_sources=token_sources_to_proto(piece.token_sources),
            token_texts=piece.token_texts,
            token_sides=[sum(1 << number for number in sides) for sides in piece.token_sides],
        )
    )


def summary_message(
    session: DeviceSession,
    preset: AggregationPreset,
    tokens: int,
    traffics: Sequence[Traffic],
    more_sides: Sequence[str] = (),
) -> pb.GenerateResponse:
    """Return the caller's last message.

    Args:
        session: the answer's, which has ended.
        preset: the method that answered.
        tokens: how many the caller got.
        traffics: bytes exchanged with each other side, the cloud first.
        more_sides: names of those beyond the cloud."""
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
        uplink_bytes=sum(traffic.uplink_bytes for traffic in traffics),
        downlink_bytes=sum(traffic.downlink_bytes for traffic in traffics),
        resumes=stats.resumes,
        unverified_tokens=min(stats.unverified_tokens, tokens),
        draft_s=stats.decode_s[Side.DEVICE],
        verify_s=stats.decode_s[Side.CLOUD],
        links_lost=stats.links_lost,
        loss_noticed_s=stats.loss_noticed_s,
        lossy=preset.lossy,
        side_moves=stats.side_moves,
        fetches=stats.fetches,
    )
    further = [summary.more_sides.add(name=name) for name in more_sides]
    for number, into in enumerate((summary.device, summary.cloud, *further)):
        into.drafted = stats.drafted[number]
        into.accepted = stats.accepted[number]
        into.decode_s = stats.decode_s[number]
        into.made = stats.made[number]
        if (other := session.others.get(number - Side.CLOUD)) is not None:
            into.documents = other.documents
            into.document_tokens = other.document_tokens
            into.log_mass = other.log_mass
        if (trip_s := stats.round_trip_s(number)) is not None:
            into.round_trip_s = trip_s
    for into, traffic in zip((summary.cloud, *further), traffics, strict=False):
        into.uplink_bytes = traffic.uplink_bytes
        into.downlink_bytes = traffic.downlink_bytes
    summary.device.documents = len(opened.documents)
    summary.device.document_tokens = sum(use.tokens for use in opened.documents)
    summary.device.log_mass = opened.log_mass
    return pb.GenerateResponse(summary=summary)
