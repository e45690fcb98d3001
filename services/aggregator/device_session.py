"""One answer from two sides at the device: a `SideMachine` between its decoder and the cloud.

Invariant: the machine is used on the event loop only, by one thing that happens after the other.
Tokens leave when their text is known, so that nothing follows a stop string. Must not import torch.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

import grpc

from services.aggregator.decoder_link import DecoderEvents, DecoderLink
from services.aggregator.peer_link import PeerEvents, PeerLink
from tandem.core.errors import InvalidArgument, ProtocolError, Unavailable
from tandem.core.stopping import FinishReason
from tandem.protocol.aggregating import SideMachine
from tandem.protocol.aggregation_messages import CloudSideMessage, CollaborationOpened
from tandem.protocol.aggregation_outputs import SideOutput, ToDecoder, ToPeer
from tandem.protocol.decoding_messages import DecodingDraft, DecodingOpened, DecodingText
from tandem.protocol.outputs import Commit, Finish, Maker, Reconnect
from tandem.protocol.phase import Phase
from tandem.protocol.prefixes import PrefixMismatch
from tandem.rpc.status import Rejected
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

TICK_S = 0.2
MAX_RESYNCS = 3


@dataclass(frozen=True, slots=True)
class Piece:
    """Committed tokens with their text."""

    token_ids: tuple[int, ...]
    text: str
    unverified: bool
    makers: tuple[Maker, ...]


class DeviceSession:
    """Runs one request to its end; iterate `pieces`, then read the machine's stats."""

    def __init__(
        self,
        make_machine: Callable[[DecodingOpened], SideMachine],
        open_decoder: Callable[[DecoderEvents], DecoderLink],
        open_peer: Callable[[DecodingOpened, PeerEvents], PeerLink | None],
    ) -> None:
        """`open_peer` gives None where the cloud is not needed."""
        self._make_machine = make_machine
        self._open_peer = open_peer
        self._machine: SideMachine | None = None
        self._peer: PeerLink | None = None
        self.opened: DecodingOpened | None = None
        self.cloud: CollaborationOpened | None = None
        self.finish_reason: FinishReason | None = None
        self._failure: Exception | None = None
        self._untold: deque[Commit] = deque()
        self._pieces: deque[Piece] = deque()
        self._wake = asyncio.Event()
        self._resyncs = 0
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
            if self._failure is not None:
                raise self._failure
            await self._next()
        return self.opened

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """Committed tokens as they become final. Raises Rejected or Unavailable when a decoder or
        the cloud refuses or stays lost; closing the iterator cancels the request everywhere."""
        ticking = asyncio.create_task(self._tick())
        try:
            while True:
                complete = self._complete
                while self._pieces:
                    yield self._pieces.popleft()
                if self._failure is not None:
                    raise self._failure
                if complete:
                    break
                await self._next()
            if self.finish_reason is FinishReason.ERROR:
                why = await self._peer.why_lost() if self._peer else ""
                raise Unavailable(f"the cloud is lost: {why}")
        finally:
            ticking.cancel()
            self.close()

    @property
    def _complete(self) -> bool:
        """Nothing more will come: the answer has ended, and every token's text is known."""
        gone = self.finish_reason in (FinishReason.ERROR, FinishReason.CANCELLED)
        return self.finish_reason is not None and (gone or not self._untold)

    def cancel(self) -> None:
        """The caller wants no more, but to hear what there was."""
        if self._machine is not None:
            self._apply(self._machine.cancel(time.monotonic()))

    def close(self) -> None:
        """Let go of decoder and cloud."""
        if self._machine is not None and self._machine.phase is not Phase.DONE:
            self._apply(self._machine.cancel(time.monotonic()))
        self._decoder.close()
        if self._peer is not None:
            self._peer.close()

    async def _next(self) -> None:
        await self._wake.wait()
        self._wake.clear()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            if self._peer is not None:
                self._peer.tick(now)
            self._apply(self.machine.tick(now))

    # What happens

    def _decoder_opened(self, opened: DecodingOpened) -> None:
        self.opened = opened
        try:
            self._machine = self._make_machine(opened)
        except Exception as error:  # raised again by `begun`
            self._fail(error)
            return
        events = PeerEvents(self._peer_ready, self._received, self._lost, self._resync, self._fail)
        self._peer = self._open_peer(opened, events)
        if self._peer is not None:
            self._peer.begin()
        self._wake.set()

    def _peer_ready(self) -> None:
        if self.machine.phase is Phase.CONNECTING:
            self._apply(self.machine.connect(time.monotonic()))

    def _drafted(self, draft: DecodingDraft) -> None:
        try:
            self._apply(self.machine.drafted(draft, time.monotonic()))
        except (ProtocolError, InvalidArgument, PrefixMismatch) as error:
            why = f"decoder: broke the conversation: {error}"
            self._fail(Rejected(grpc.StatusCode.DATA_LOSS, why))

    def _restarted(self) -> None:
        self.machine.decoder_restarted()

    def _received(self, message: CloudSideMessage, size_bytes: int) -> None:
        if isinstance(message, CollaborationOpened):
            self.cloud = message
        try:
            self._apply(self.machine.receive(message, time.monotonic(), size_bytes))
        except (ProtocolError, InvalidArgument, PrefixMismatch) as error:
            self._resync(str(error))

    def _resync(self, reason: str) -> None:
        """The conversation broke. The committed text stands; a fresh stream starts both sides from
        it, unless that has been tried often enough."""
        self._resyncs += 1
        log.warning("resync", reason=reason, resyncs=self._resyncs)
        if self._resyncs > MAX_RESYNCS:
            times = f"the cloud broke the conversation {self._resyncs} times"
            why = f"{times}; the last time: {reason}"
            self._fail(Rejected(grpc.StatusCode.DATA_LOSS, why))
            return
        self._lost()

    def _lost(self) -> None:
        self._apply(self.machine.lost(time.monotonic()))

    def _text(self, text: DecodingText) -> None:
        """Tokens whose text is known leave; those behind a stop string never do."""
        if not self._untold or self.finish_reason is FinishReason.CANCELLED:
            return
        commit = self._untold.popleft()
        token_ids, makers = commit.token_ids[: text.tokens], commit.makers[: text.tokens]
        self._pieces.append(Piece(token_ids, text.text, commit.unverified, makers))
        if text.stopped:
            self._untold.clear()
            self._apply(self.machine.stop(time.monotonic()))
            self.finish_reason = FinishReason.STOP
        self._wake.set()

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self._wake.set()

    def _apply(self, outputs: Sequence[SideOutput]) -> None:
        for output in outputs:
            match output:
                case ToDecoder(message):
                    self._decoder.settle(message)
                case ToPeer(message):
                    if self._peer is not None:
                        # What this machine sends is the device's own.
                        self.machine.sized(self._peer.send(message))  # type: ignore[arg-type]
                case Commit():
                    self._untold.append(output)
                case Reconnect():
                    if self._peer is not None:
                        self._peer.reconnect()
                case Finish(reason):
                    self.finish_reason = reason
                    self._wake.set()
