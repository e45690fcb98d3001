"""A request's machine and its stream to another service, which is opened anew after every loss.
Invariants: the machine is used on the event loop only, one event (a frame, a stream's end, a tick,
what the session adds) after the other; frames of an abandoned stream never arrive; whatever fails
is raised to whoever reads the session."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

import grpc

from tandem.core.errors import InvalidArgument, ProtocolError, Unavailable
from tandem.core.foreign_words import cleaned
from tandem.core.hashing import hash_words, unit
from tandem.core.stopping import FinishReason
from tandem.core.tokens import PrefixMismatch
from tandem.net.frame_stream import BROKEN, FATAL, LASTING, end_status, retry_s, stuck_s
from tandem.net.status import STATUS_LOST, Rejected, upstream_rejection
from tandem.net.uncancelled import uncancelled
from tandem.specdec.events import Commit, Reconnect
from tandem.specdec.liveness import Phase
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

TICK_S = 0.2
MOST_REASON = 400
"""Characters of why a conversation broke: our own words, and a quotation."""
MAX_RESYNCS = 3
BACKOFF_S = 0.05
MAX_BACKOFF_S = 1.0
CANCEL_FLUSH_S = 0.2
ASK_AFTER_S = 1.4
"""Silence before the peer is diagnosed: longer than a slow link's round trip, short enough that the
answer is there when a silent peer is given up by default."""
ANSWER_WITHIN_S = 0.3
"""What a caller who is about to hear that the peer is lost still waits to hear why."""

Out = TypeVar("Out")
In = TypeVar("In")
Output = TypeVar("Output")

Sent = TypeVar("Sent", contravariant=True)


class OpenedStream(Protocol[Sent]):
    """Interface of an open stream for a session; see `FrameStream`."""

    def send(self, message: Sent) -> int: ...
    def close_in_background(
        self, closing_tasks: set[asyncio.Task[None]], flush_s: float = 0.0, lost: bool = False
    ) -> None: ...


OpenStream = Callable[
    [Callable[[In, int], None], Callable[[BaseException | None], None]], OpenedStream[Out]
]
"""Given what to call with each frame and its size, and at the stream's end."""


class ResumableMachine(Protocol[Output]):
    """Common interface of machines that survive the loss of their stream."""

    phase: Phase

    @property
    def goes_on_alone(self) -> bool:
        """True if the session goes on without a peer that stays lost."""

    def connect(self, now: float) -> list[Output]: ...
    def lost(self, now: float, stuck_s: float = 0.0) -> list[Output]: ...
    def tick(self, now: float) -> list[Output]: ...


class SessionRunner(ABC, Generic[Out, In, Output]):
    """Base of the sessions that may lose and resume their stream."""

    def __init__(
        self,
        open_stream: OpenStream[In, Out] | None,
        opened: type[Any],
        closing_tasks: set[asyncio.Task[None]],
        why_silent: Callable[[], Awaitable[str]],
        spread: int,
        fatal: frozenset[grpc.StatusCode] = FATAL,
    ) -> None:
        """Prepare a session; its first stream is opened later.

        Args:
            open_stream: opens a stream to the other service; None where it is not needed.
            opened: the message that admits the stream.
            closing_tasks: holds the closing of streams, which may outlast the session.
            why_silent: called where nothing received says why the peer is lost.
            spread: different for each session, which keeps those that one peer has lost from coming
                back at once.
            fatal: statuses that another stream would meet again."""
        self.failure: Exception | None = None
        self._open_stream = open_stream
        self._opened = opened
        self._closing_tasks = closing_tasks
        self._diagnosis = Diagnosis(why_silent, time.monotonic())
        self._spread = spread
        self._fatal = fatal
        self._stream: OpenedStream[Out] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._attempts = 0
        self._resyncs = 0
        self._is_admitted = False
        self._last_error = ""
        self._refusal: Rejected | None = None
        self._refused_after_opening = 0
        self._retry_after_s = 0.0
        self._closed = False

    @property
    @abstractmethod
    def machine(self) -> ResumableMachine[Output]: ...

    @abstractmethod
    def receive(self, message: In, size_bytes: int, now: float) -> Sequence[Output]:
        """Hand a frame to the machine."""

    @abstractmethod
    def perform(self, output: Output) -> None:
        """Do what the machine asks for, other than `Reconnect`."""

    @abstractmethod
    def cancel_machine(self) -> Sequence[Output]:
        """End the machine's request, whoever ended it."""

    def time_passed(self, now: float) -> Sequence[Output]:
        """Tell the machine that time has passed, and return what it wants done."""
        return self.machine.tick(now)

    def peer_failed(self, code: grpc.StatusCode) -> bool:
        """Handle a stream that the peer ended; return whether the next stream will be to another
        peer."""
        return False

    def admits(self, message: In) -> bool:
        """Return whether the stream is admitted with this message."""
        return isinstance(message, self._opened)

    def start_work(self) -> None:
        """Begin what the machine's new state makes due."""

    def notify(self) -> None:
        """Wake whoever reads, after an event was taken."""

    @property
    def ended(self) -> bool:
        """True if further events no longer matter."""
        return self._closed or self.failure is not None

    def dispatch(self, event: Callable[[], Sequence[Output]]) -> None:
        """Take one event in; `event` returns what the machine asks for."""
        if self.ended:
            return
        try:
            self.apply(event())
            self.start_work()
        except Exception as error:  # raised again by `raise_failure`
            self.failure = error
        self.notify()

    def apply(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            if isinstance(output, Reconnect):
                self._reconnect(output.lost)
                continue
            if isinstance(output, Commit):
                self._attempts = 0
                self._last_error = ""
            self.perform(output)

    def send(self, message: Out) -> int:
        """Send a frame; return its size in bytes, 0 where there is no stream for it."""
        return 0 if self._stream is None else self._stream.send(message)

    def connect(self) -> None:
        """Open a stream where the machine waits for one."""
        if self._open_stream is not None and self._stream is None:
            self._dispatch_from_stream(self._connect)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let time pass for the machine while inside; at the end the request is cancelled on both
        ends."""
        self._diagnosis.heard(time.monotonic())
        ticking = asyncio.create_task(self._tick())
        try:
            yield
        finally:
            ticking.cancel()
            self.close()

    def close(self) -> None:
        """Cancel what is left of the request, and let that reach the peer."""
        if not self._closed:
            self._closed = True
            self.apply(self.cancel_machine())
        self._diagnosis.close()
        if self._retry is not None:
            self._retry.cancel()
        self._leave_stream(flush_s=CANCEL_FLUSH_S)

    async def raise_failure(self, reason: FinishReason | None) -> None:
        """Raise what ended the session; Unavailable where its machine gave the cloud up."""
        if self.failure is not None:
            raise self.failure
        if reason is FinishReason.ERROR:
            if self._refusal is not None:
                raise self._refusal
            why = self._last_error or await self._diagnosis.answer() or "no response"
            raise Unavailable(f"the cloud is lost: {why}")

    def _dispatch_from_stream(self, event: Callable[[], Sequence[Output]]) -> None:
        if not self.ended and self.machine.phase is not Phase.DONE:
            self.dispatch(event)

    def _connect(self) -> Sequence[Output]:
        if self.machine.phase is not Phase.CONNECTING or self._open_stream is None:
            return ()
        self._is_admitted = False
        self._stream = self._open_stream(
            lambda message, size_bytes: self._dispatch_from_stream(
                lambda: self._receive(message, size_bytes)
            ),
            lambda error: self._dispatch_from_stream(lambda: self._stream_ended(error)),
        )
        return self.machine.connect(time.monotonic())

    def _receive(self, message: In, size_bytes: int) -> Sequence[Output]:
        now = time.monotonic()
        self._diagnosis.heard(now)
        if self.admits(message):
            self._is_admitted = True
            if self._refusal is not None:
                self._refusal = None
                self._last_error = ""
        try:
            return self.receive(message, size_bytes, now)
        except (PrefixMismatch, ProtocolError, InvalidArgument) as error:
            return self._resync(str(error))

    def _stream_ended(self, error: BaseException | None) -> Sequence[Output]:
        code, details = end_status(error)
        goes_elsewhere = code not in BROKEN and self.peer_failed(code)
        if details != STATUS_LOST:  # an end that says nothing leaves what an earlier one said
            self._refusal = None
        if code in self._fatal:
            again_s = retry_s(error)
            refusal = upstream_rejection(code, details or "the cloud refused", again_s)
            is_final = self._is_final(code)
            too_often = self._refused_after_opening > MAX_RESYNCS
            if is_final and (too_often or not goes_elsewhere):
                raise refusal
            if too_often:
                self._open_stream = None  # it is given up, as one that stays lost
            self._refusal = refusal
            self._retry_after_s = 0.0 if goes_elsewhere else again_s or 0.0
        log.warning("stream ended", status=code.name, reason=details)
        if code in BROKEN:
            return self._resync(details or f"the stream ended with {code.name}")
        if details != STATUS_LOST:
            self._last_error = details or code.name
        return self.machine.lost(time.monotonic(), stuck_s(error))

    def _is_final(self, code: grpc.StatusCode) -> bool:
        """Return whether a refusal ends the request at once. A peer without room may have some
        soon, so it is asked again until it counts as lost. Asking again is no use where it took the
        request and then has no room for it, or refuses for ever; but where the request goes on
        alone once the peer is lost, such a refusal is a loss as well."""
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            self._refused_after_opening += self._is_admitted
            return self._is_admitted and not self.machine.goes_on_alone
        return not (code in LASTING and self.machine.goes_on_alone)

    def _resync(self, reason: str) -> Sequence[Output]:
        """Start both ends afresh from the committed text, over a fresh stream: the peer broke the
        protocol. Raises Rejected where that was tried often enough. `reason` may quote what it
        sent."""
        self._resyncs += 1
        reason = cleaned(reason, MOST_REASON)
        log.warning("resync", reason=reason, resyncs=self._resyncs)
        if self._resyncs > MAX_RESYNCS:
            times = f"the cloud violated the protocol {self._resyncs} times"
            raise Rejected(grpc.StatusCode.DATA_LOSS, f"{times}; the last time: {reason}")
        return self.machine.lost(time.monotonic())

    def _reconnect(self, lost: bool) -> None:
        """Leave this stream and open another, later after each that committed nothing. Only a
        stream that is `lost` takes its channel out of use."""
        self._leave_stream(lost=lost)
        delay_s = max(backoff_s(self._attempts, self._spread), self._retry_after_s)
        self._attempts += 1
        self._retry_after_s = 0.0
        self._retry = asyncio.get_running_loop().call_later(delay_s, self.connect)

    def _leave_stream(self, flush_s: float = 0.0, lost: bool = False) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close_in_background(self._closing_tasks, flush_s, lost)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._dispatch_from_stream(self._time_passed)

    def _time_passed(self) -> Sequence[Output]:
        now = time.monotonic()
        if self._open_stream is not None:
            self._diagnosis.tick(now)
        return self.time_passed(now)


def backoff_s(attempt: int, spread: int) -> float:
    """Return the delay before reconnecting, `attempt` from 0: nothing, then twice as long each time
    up to a limit, of which sessions of different `spread` take from a half to all."""
    if not attempt:
        return 0.0
    longest_s: float = min(MAX_BACKOFF_S, BACKOFF_S * 2 ** min(attempt, 16))
    return longest_s * (0.5 + 0.5 * unit(hash_words(spread, attempt)))


class Diagnosis:
    """Diagnosis of a silent peer: `ask`, a call that must end by itself, is made once a silence,
    while there is still time to tell the caller. A stream that waits for its connection never hears
    what stands in its way. Used on the event loop."""

    def __init__(self, ask: Callable[[], Awaitable[str]], now: float) -> None:
        self._ask = ask
        self._heard_s = now
        self._asking: asyncio.Future[str] | None = None

    def heard(self, now: float) -> None:
        self._heard_s = now
        self.close()

    def tick(self, now: float) -> None:
        if self._asking is None and now - self._heard_s >= ASK_AFTER_S:
            self._asking = asyncio.ensure_future(uncancelled(self._ask()))

    async def answer(self) -> str:
        """Return why the peer is silent; empty if nothing is known within ANSWER_WITHIN_S."""
        if self._asking is None:
            self._asking = asyncio.ensure_future(uncancelled(self._ask()))
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                return await self._asking
        except TimeoutError:
            return ""

    def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None
