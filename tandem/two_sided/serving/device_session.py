"""An answer from two sides, or more, at the device: a `SideMachine` beside its decoder.
Invariant: tokens leave when their text is known, so that nothing follows a stop string."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

import grpc

from tandem.core.errors import InvalidArgument, ProtocolError
from tandem.core.stopping import FinishReason
from tandem.core.tokens import PrefixMismatch, TokenSource
from tandem.net.frame_stream import FATAL
from tandem.net.session_runner import SessionRunner
from tandem.net.status import Rejected
from tandem.specdec.events import Commit, Finish
from tandem.two_sided.protocol.decoder_messages import DecodingDraft, DecodingOpened, DecodingText
from tandem.two_sided.protocol.messages import (
    CollaborationOpen,
    CollaborationOpened,
    SideOutput,
    ToDecoder,
    ToPeer,
)
from tandem.two_sided.protocol.side_machine import SideMachine
from tandem.two_sided.serving.decoder_link import DecoderEvents, DecoderLink
from tandem.two_sided.serving.side_streams import FromPeer, OpenSideStreams


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
        super().__init__(open_others, CollaborationOpened, closing_tasks, why_silent, spread, fatal)
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
                self._decoder_opened, self._drafted, self._text, self._restarted, self._fail
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
        token_ids = commit.token_ids[: text.tokens]
        token_sources = commit.token_sources[: text.tokens]
        told = text.text, commit.unverified, token_sources, text.token_texts
        sides = commit.token_sides[: text.tokens]
        self._pieces.append(TextPiece(token_ids, *told, sides))
        if text.stopped:
            self._unreported.clear()
            self.dispatch(lambda: self.machine.stop())
            self.finish_reason = FinishReason.STOP
        self.notify()

    def _fail(self, error: Exception) -> None:
        self.failure = error
        self.notify()
