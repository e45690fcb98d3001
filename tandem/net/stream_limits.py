"""A caller's stream at the service it called, with limits in time: how long the first message, any
further one and a caller that does not read may take. Invariants: what a stream holds is given back
when a limit passes, whatever its caller does; only waiting for the caller counts, never our own
work, and any frame, a ping too, is life.

    async with served(context, limits) as stream:
        opening = await stream.first(pb.VerifyRequest)
        await stream.write(answer)
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc

from tandem.core.errors import InvalidArgument
from tandem.net.status import Overdue, errors_as_status
from tandem.net.uncancelled import uncancelled
from tandem.settings import ServiceSettings

Frame = TypeVar("Frame")
Request = TypeVar("Request")
Response = TypeVar("Response")


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """The time limits of a stream, in seconds."""

    first_message_s: float = 10.0
    idle_s: float = 60.0
    write_s: float = 20.0


def stream_limits(settings: ServiceSettings) -> StreamLimits:
    """Return the stream limits in a service's settings."""
    return StreamLimits(settings.first_message_s, settings.idle_stream_s, settings.unread_answer_s)


class StreamClock:
    """Deadlines of a stream; nothing here reads a clock. `idle_s` counts from the last sign of life
    while a message is waited for, `write_s` from the beginning of a frame's writing."""

    def __init__(self, limits: StreamLimits) -> None:
        self._limits = limits
        self._waited_s: float | None = None
        self._wait_limit: tuple[str, float] = ("", 0.0)
        self._writing_s: float | None = None

    def waits(self, now: float, first: bool = False) -> None:
        """Begin to wait for a message of the caller."""
        limits = self._limits
        self._waited_s = now
        self._wait_limit = (
            ("no first message", limits.first_message_s)
            if first
            else ("nothing was said", limits.idle_s)
        )

    def heard(self) -> None:
        """Note that the awaited message came."""
        self._waited_s = None

    def writes(self, now: float) -> None:
        self._writing_s = now

    def written(self, now: float) -> None:
        """Note that the caller had room for what was written, so it reads."""
        self._writing_s = None
        if self._waited_s is not None:
            self._waited_s = now

    @property
    def writing(self) -> bool:
        """True if a frame is being written, or its writing was interrupted."""
        return self._writing_s is not None

    def due_s(self, now: float) -> float:
        """Return when to look again at the latest."""
        due_s = now + min(self._limits.write_s, self._limits.idle_s, self._limits.first_message_s)
        if self._waited_s is not None:
            due_s = min(due_s, self._waited_s + self._wait_limit[1])
        if self._writing_s is not None:
            due_s = min(due_s, self._writing_s + self._limits.write_s)
        return due_s

    def overdue(self, now: float) -> Overdue | None:
        """Return the status to end the stream with if a limit has passed."""
        if self._writing_s is not None and now - self._writing_s >= self._limits.write_s:
            return Overdue(f"stream: an answer was not read for {self._limits.write_s:g} s")
        what, limit_s = self._wait_limit
        if self._waited_s is not None and now - self._waited_s >= limit_s:
            return Overdue(f"stream: {what} for {limit_s:g} s")
        return None


class ServedStream(Generic[Request, Response]):
    """One call's stream; made by `served`. Used on the event loop, by one reader and one writer."""

    def __init__(
        self, context: grpc.aio.ServicerContext[Request, Response], clock: StreamClock
    ) -> None:
        self._context = context
        self._clock = clock
        self.invocation_metadata = context.invocation_metadata
        self.time_remaining = context.time_remaining
        self.peer = context.peer

    async def first(self, kind: type[Frame], field: str = "open") -> Frame:
        """Return the first message. Raises InvalidArgument for `field` if the caller hangs up
        instead."""
        frame = await self.read(first=True)
        if not isinstance(frame, kind):  # EOF
            raise InvalidArgument(field, "the stream ended before it")
        return frame

    async def read(self, first: bool = False) -> Any:
        """Return the next message, or `grpc.aio.EOF` once the caller has half-closed."""
        self._clock.waits(time.monotonic(), first)
        frame = await uncancelled(self._context.read())
        self._clock.heard()
        return frame

    async def read_in_its_time(self) -> Any:
        """Read like `read`, while the caller has nothing to say except that it leaves."""
        return await uncancelled(self._context.read())

    async def write(self, message: Response) -> None:
        self._clock.writes(time.monotonic())
        await self._context.write(message)
        self._clock.written(time.monotonic())


@asynccontextmanager
async def served(
    context: grpc.aio.ServicerContext[Request, Response], limits: StreamLimits
) -> AsyncIterator[ServedStream[Request, Response]]:
    """Yield the stream of `context`. What is raised inside, or a limit that passes there, which
    cancels what is inside, ends the call with a status."""
    async with errors_as_status(context):
        clock = StreamClock(limits)
        watch = _Watch(clock)
        try:
            async with watch.cutting:
                watch.look()
                yield ServedStream(context, clock)
            if clock.writing:
                raise Overdue("stream: it ended before its caller had read what was being sent")
        except TimeoutError:
            if watch.overdue is None:
                raise
            raise watch.overdue from None
        finally:
            watch.looking.cancel()


class _Watch:
    """Looks at a clock when it must be looked at; `cutting` cancels what is inside it."""

    looking: asyncio.TimerHandle

    def __init__(self, clock: StreamClock) -> None:
        self.overdue: Overdue | None = None
        self.cutting = asyncio.timeout(None)
        self._clock = clock

    def look(self) -> None:
        loop = asyncio.get_running_loop()
        now = time.monotonic()
        self.overdue = self._clock.overdue(now)
        self.looking = loop.call_later(self._clock.due_s(now) - now, self.look)
        if self.overdue is not None:
            self.looking.cancel()
            self.cutting.reschedule(loop.time())
