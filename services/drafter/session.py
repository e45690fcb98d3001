"""One request at the drafter: an `EdgeMachine` between the draft engine and the verifier's stream.

Invariant: the machine is used on the event loop only, by one thing that happens (a frame, a draft,
a stream's end, a tick) after the other; each is handled as it arrives, since a round waits for it.
Must not import torch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import grpc

from services.drafter.draft_works import DraftsReady, DraftWorks
from services.drafter.round_spans import RoundSpans
from tandem.core.errors import InvalidArgument, ProtocolError, Unavailable
from tandem.core.stopping import FinishReason
from tandem.engine.base import Session
from tandem.engine.jobs import EngineThread
from tandem.protocol.edge import EdgeMachine
from tandem.protocol.messages import CloudMessage, Opened
from tandem.protocol.outputs import (
    Commit,
    EdgeOutput,
    Finish,
    Interrupt,
    Reconnect,
    Send,
)
from tandem.protocol.prefixes import PrefixMismatch
from tandem.rpc.diagnosis import Diagnosis
from tandem.rpc.frame_stream import Traffic
from tandem.rpc.status import STATUS_LOST, Rejected, refused_below
from tandem.rpc.stream_end import BROKEN, FATAL, end_status
from tandem.rpc.verifier_stream import VerifierStream
from tandem.telemetry.logging import get_logger
from tandem.telemetry.tracing import Span

log = get_logger(__name__)

TICK_S = 0.2
MAX_RESYNCS = 3
MAX_BACKOFF_S = 1.0
CANCEL_FLUSH_S = 0.2
RELAY_HOLD_S = 0.003
"""How long committed text may wait for the drafts that follow it: relaying it costs time of the
processor that the next round waits for, and while the cloud verifies there is time for it."""

OpenStream = Callable[
    [Callable[[CloudMessage, int], None], Callable[[BaseException | None], None]], VerifierStream
]


@dataclass(frozen=True, slots=True)
class _Frame:
    message: CloudMessage


@dataclass(frozen=True, slots=True)
class _StreamEnd:
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class _Tick:
    at_s: float


@dataclass(frozen=True, slots=True)
class _Retry:
    pass


_Happening = _Frame | _StreamEnd | DraftsReady | _Tick | _Retry


class DrafterSession:
    """Runs one machine to its end; iterate `commits`, then read the machine's stats."""

    def __init__(
        self,
        machine: EdgeMachine,
        thread: EngineThread,
        kv: Session,
        open_stream: OpenStream,
        traffic: Traffic,
        farewells: set[asyncio.Task[None]],
        why_silent: Callable[[], Awaitable[str]],
        span: Span,
    ) -> None:
        """`farewells` holds the closing of streams, which may outlast the session; `why_silent` is
        asked when the cloud was given up and nothing it said tells why."""
        self.machine = machine
        self.traffic = traffic
        self._open_stream = open_stream
        self._works = DraftWorks(machine, thread, kv, self._happen)
        self._relayable = asyncio.Event()
        self._holding: asyncio.TimerHandle | None = None
        self._failure: Exception | None = None
        self._stream: VerifierStream | None = None
        self._farewells = farewells
        self._diagnosis = Diagnosis(why_silent, time.monotonic())
        self._rounds = RoundSpans(span)
        self._commits: list[Commit] = []
        self._finish: Finish | None = None
        self._ended = False
        self._failures = 0
        self._resyncs = 0
        self._admitted = False
        self._opened = False
        self._last_error: BaseException | None = None

    async def commits(self) -> AsyncGenerator[Commit, None]:
        """Committed tokens as they become final. Raises Rejected or Unavailable when the cloud
        refuses or stays lost; closing the iterator cancels the request at the cloud."""
        ticking = asyncio.create_task(self._tick())
        try:
            self._happen(_Retry())
            ended = False
            while not ended:
                await self._relayable.wait()
                self._relayable.clear()
                ended = self._ended  # as of the commits taken now: more may come while they leave
                for commit in self._take_commits():
                    yield commit
            if self._failure is not None:
                raise self._failure
            if self._finish is not None and self._finish.reason is FinishReason.ERROR:
                why = self._describe_last_error() or await self._diagnosis.answer()
                raise Unavailable(f"the cloud is lost: {why or 'no sign of life'}")
        finally:
            ticking.cancel()
            self._ended = True
            self._apply(self.machine.cancel())
            self._close()

    def _happen(self, happening: _Happening) -> None:
        """Take one thing in: the machine, the draft work that is due, then whoever wants text."""
        if self._ended:
            return
        try:
            self._handle(happening)
            self._pump()
        except Exception as error:  # raised again by `commits`
            self._failure = error
        self._ended = self._finish is not None or self._failure is not None
        self._relay()

    def _relay(self) -> None:
        """Let `commits` go on: at once when the edge has nothing to draft, else a little later."""
        if self._ended or (self._commits and self._works.idle):
            self._relay_now()
        elif self._commits and self._holding is None:
            loop = asyncio.get_running_loop()
            self._holding = loop.call_later(RELAY_HOLD_S, self._relay_now)

    def _relay_now(self) -> None:
        if self._holding is not None:
            self._holding.cancel()
            self._holding = None
        self._relayable.set()

    def _handle(self, happening: _Happening) -> None:
        match happening:
            case _Frame(message):
                self._receive(message)
            case DraftsReady():
                self._apply(
                    self.machine.drafted(happening.work, *happening.outcome(), time.monotonic())
                )
            case _StreamEnd(error):
                self._stream_ended(error)
            case _Retry():
                self._connect()
            case _Tick(at_s):
                self._diagnosis.tick(at_s)
                # Its own time: what came before it was handled before it, however late that is.
                self._apply(self.machine.tick(at_s))

    def _receive(self, message: CloudMessage) -> None:
        self._diagnosis.heard(time.monotonic())
        if isinstance(message, Opened):
            self._admitted = self._opened = True
        self._rounds.heard(message)
        try:
            self._apply(self.machine.receive(message, time.monotonic()))
        except (PrefixMismatch, ProtocolError, InvalidArgument) as error:
            self._resync(str(error))

    def _resync(self, reason: str) -> None:
        """The conversation broke. The committed text stands; a fresh stream starts both ends from
        it, unless that has been tried often enough. Raises Rejected then."""
        self._resyncs += 1
        log.warning("resync", reason=reason, resyncs=self._resyncs)
        if self._resyncs > MAX_RESYNCS:
            times = f"the cloud broke the conversation {self._resyncs} times"
            raise Rejected(grpc.StatusCode.DATA_LOSS, f"{times}; the last time: {reason}")
        self._apply(self.machine.lost(time.monotonic()))

    def _stream_ended(self, error: BaseException | None) -> None:
        code, details = end_status(error)
        if self._is_final(code):
            raise refused_below(code, details)
        log.warning("stream ended", status=code.name, reason=details)
        if code in BROKEN:
            self._resync(details or f"the stream ended with {code.name}")
            return
        self._last_error = error
        self._apply(self.machine.lost(time.monotonic()))

    def _is_final(self, code: grpc.StatusCode) -> bool:
        """Whether another stream would end the same way. A cloud that has admitted this request may
        have no room while the streams that a cut left behind still hold theirs."""
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return self._opened or not self._admitted
        return code in FATAL

    def _connect(self) -> None:
        if self.machine.phase != "connecting" or self._stream is not None:
            return
        self._opened = False
        self._stream = self._open_stream(
            lambda message, _size_bytes: self._happen(_Frame(message)),
            lambda error: self._happen(_StreamEnd(error)),
        )
        self._apply(self.machine.connect(time.monotonic()))

    def _pump(self) -> None:
        """Start the draft work that is due."""
        while (work := self.machine.work(time.monotonic())) is not None:
            self._rounds.drafting()
            self._works.start(work)

    def _apply(self, outputs: list[EdgeOutput]) -> None:
        for output in outputs:
            match output:
                case Send(message):
                    if self._stream:
                        self._stream.send(message)
                case Commit():
                    self._failures = 0
                    self._commits.append(output)
                case Interrupt(work):
                    self._works.interrupt(work)
                case Reconnect():
                    self._leave_stream()
                case Finish():
                    self._finish = output

    def _take_commits(self) -> list[Commit]:
        """What became final since the last time, in as few pieces as its marks allow."""
        merged: list[Commit] = []
        for commit in self._commits:
            if merged and merged[-1].unverified == commit.unverified:
                before = merged.pop()
                commit = Commit(
                    (*before.token_ids, *commit.token_ids),
                    commit.unverified,
                    (*before.makers, *commit.makers),
                    (*before.logprobs, *commit.logprobs),
                )
            merged.append(commit)
        self._commits.clear()
        return merged

    def _leave_stream(self) -> None:
        """Close this stream and come back on a fresh one, later each time that brings nothing."""
        if self._stream:
            self._close_later(self._stream, flush_s=0.0, lost=True)
            self._stream = None
        delay_s = min(MAX_BACKOFF_S, 0.05 * 2**self._failures) if self._failures else 0.0
        self._failures += 1
        asyncio.get_running_loop().call_later(delay_s, self._happen, _Retry())

    def _close_later(self, stream: VerifierStream, flush_s: float, lost: bool) -> None:
        task = asyncio.create_task(stream.close(flush_s, lost))
        self._farewells.add(task)
        task.add_done_callback(self._farewells.discard)

    def _close(self) -> None:
        self._diagnosis.close()
        self._works.close()
        if self._stream:
            self._close_later(self._stream, flush_s=CANCEL_FLUSH_S, lost=False)
            self._stream = None

    async def _tick(self) -> None:
        with suppress(asyncio.CancelledError):
            while True:
                await asyncio.sleep(TICK_S)
                self._happen(_Tick(time.monotonic()))

    def _describe_last_error(self) -> str:
        """Empty if nothing was heard of the cloud."""
        if self._last_error is None:
            return ""
        code, details = end_status(self._last_error)
        return "" if details == STATUS_LOST else details or code.name
