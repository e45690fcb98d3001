"""A streamed answer: in OpenAI's API server-sent events, ended by `data: [DONE]`. Invariant: an
answer that fails after it began ends with an event that has the API's error; when the caller
leaves, the answer is cancelled."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tandem.gateway.base_models import Answer
from tandem.gateway.connection_body import CallerLeft, cancel_on_disconnect
from tandem.gateway.errors import CHAT_PATH, ApiError, api_error, error_body, written
from tandem.gateway.parallel_choices import ChoiceDelta
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

KEEP_ALIVE_S = 15.0
"""Something to skip, in OpenAI's API a comment, is sent after so long a silence: proxies take a
silent connection for dead, and a caller who vanished is noticed by writing to it."""
EVENTS = "text/event-stream"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""No proxy may hold events back."""

Write = Callable[[bytes], Awaitable[None]]


def server_sent(content: Any) -> bytes:
    """Return a server-sent event; one that has a `type` is named by it."""
    kind = content.get("type") if isinstance(content, dict) else getattr(content, "type", None)
    name = f"event: {kind}\n" if kind else ""
    return name.encode() + b"data: " + written(content) + b"\n\n"


@dataclass(frozen=True, slots=True)
class StreamForm:
    """How an API writes streams. `path` tells the form of the event of an answer that is broken
    off, `keep_alive` is what callers skip, and `last` ends every stream."""

    path: str = CHAT_PATH
    media_type: str = EVENTS
    event: Callable[[Any], bytes] = server_sent
    keep_alive: bytes = b": keep-alive\n\n"
    last: bytes = b""


OPENAI_STREAM = StreamForm(last=b"data: [DONE]\n\n")


class AnswerWriter(Protocol):
    """Writes an answer as events, or whole."""

    @property
    def id(self) -> str: ...

    @property
    def stream_form(self) -> StreamForm: ...

    def whole(self, deltas: Sequence[ChoiceDelta]) -> Answer:
        """Return the whole answer, from the last piece of each choice."""

    def events(self, delta: ChoiceDelta) -> Iterator[Answer]:
        """Yield what a piece of the answer adds to a stream."""


@dataclass(frozen=True, slots=True)
class BegunAnswer:
    """An answer under way: `first` is what was heard of it so far; None if nobody waited for
    that."""

    writer: AnswerWriter
    first: ChoiceDelta | None
    rest: AsyncGenerator[ChoiceDelta]

    async def write_to(
        self, write: Write, guarded: Callable[[Coroutine[Any, Any, None]], Awaitable[None]]
    ) -> ApiError | None:
        """Write all events, or those until the failure with which `guarded` ends the writing, and
        then what the API has for it; returns that failure. Raises CallerLeft."""
        form = self.writer.stream_form
        failure = None
        async with aclosing(self.rest):
            try:
                await guarded(self._events(write))
            except CallerLeft:
                raise
            except Exception as error:
                failure = api_error(error)
                log.warning("answer broken off", status=failure.status, reason=failure.message)
                await write(form.event(error_body(failure, form.path)))
            if form.last:
                await write(form.last)
        return failure

    async def _events(self, write: Write) -> None:
        event = self.writer.stream_form.event
        for each in self.writer.events(self.first) if self.first is not None else ():
            await write(event(each))
        async for delta in self.rest:
            for each in self.writer.events(delta):
                await write(event(each))


class StreamResponse(Response):
    """A response of events that are written while it is sent."""

    def __init__(self, form: StreamForm) -> None:
        super().__init__(headers=HEADERS, media_type=form.media_type)
        del self.headers["content-length"]
        self._form = form
        self._sent_s = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write(body: bytes) -> None:
            self._sent_s = time.monotonic()
            await send({"type": "http.response.body", "body": body, "more_body": True})

        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        keeping = asyncio.create_task(self._keep_alive(write))
        try:
            with suppress(CallerLeft):
                await send(start)
                await self.write_events(receive, write)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def write_events(self, receive: Receive, write: Write) -> None:
        """Write the events until the last one. Raises CallerLeft."""
        raise NotImplementedError

    async def _keep_alive(self, write: Write) -> None:
        self._sent_s = time.monotonic()
        while True:
            await asyncio.sleep(KEEP_ALIVE_S)
            if time.monotonic() - self._sent_s >= KEEP_ALIVE_S:
                await write(self._form.keep_alive)


class EventStream(StreamResponse):
    """A stream that ends with its connection, or when `ending` is set."""

    def __init__(self, answer: BegunAnswer, ending: asyncio.Event) -> None:
        super().__init__(answer.writer.stream_form)
        self._answer = answer
        self._ending = ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._answer.rest):
            await super().__call__(scope, receive, send)

    async def write_events(self, receive: Receive, write: Write) -> None:
        await self._answer.write_to(write, partial(cancel_on_disconnect, receive, self._ending))
