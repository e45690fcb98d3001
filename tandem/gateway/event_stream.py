"""A streamed answer: in OpenAI's API server-sent events, ended by `data: [DONE]`. Invariant: an
answer that fails after it began ends with an event that has the API's error; when the caller
leaves, the answer is cancelled."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tandem.gateway.connection_body import CallerLeft, unless_gone
from tandem.gateway.errors import ApiError, api_error
from tandem.gateway.parallel_choices import ChoiceDelta
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE_S = 15.0
"""Something to skip, in OpenAI's API a comment, is sent after so long a silence: proxies take a
silent connection for dead, and a caller who vanished is noticed by writing to it."""


@dataclass(frozen=True, slots=True)
class StreamForm:
    """How an API writes streams. `error` is the event of an answer that is broken off, `keep_alive`
    what callers skip, and `last` ends every stream."""

    media_type: str
    event: Callable[[dict[str, Any]], bytes]
    error: Callable[[ApiError], dict[str, Any]]
    keep_alive: bytes
    last: bytes = b""


def server_sent(content: dict[str, Any]) -> bytes:
    """Return a server-sent event; one that has a `type` is named by it."""
    name = f"event: {content['type']}\n" if "type" in content else ""
    return f"{name}data: {json.dumps(content)}\n\n".encode()


OPENAI_STREAM = StreamForm(
    media_type="text/event-stream",
    event=server_sent,
    error=lambda refused: {"error": refused.body},
    keep_alive=b": \n\n",
    last=DONE,
)


class StreamWriter(Protocol):
    """Writes an answer as events."""

    @property
    def stream_form(self) -> StreamForm: ...

    def events(self, delta: ChoiceDelta) -> Iterator[dict[str, Any]]: ...

    def closing(self) -> Iterator[dict[str, Any]]:
        """Yield what follows the last piece."""


class EventStream(Response):
    """`first` is what was heard of the answer before the stream was begun."""

    def __init__(
        self,
        writer: StreamWriter,
        first: ChoiceDelta,
        rest: AsyncGenerator[ChoiceDelta],
        ending: asyncio.Event,
    ) -> None:
        """Create the response. If `ending` is set before the answer is complete, the answer is
        broken off."""
        # No proxy may hold events back.
        super().__init__(
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
            media_type=writer.stream_form.media_type,
        )
        del self.headers["content-length"]
        self._writer = writer
        self._form = writer.stream_form
        self._first = first
        self._rest = rest
        self._ending = ending
        self._sent_s = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._rest):
            with suppress(CallerLeft):
                await send(
                    {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
                )
                try:
                    await unless_gone(receive, self._ending, self._answer(send))
                except CallerLeft:
                    raise
                except Exception as error:
                    refused = api_error(error)
                    log.warning("answer broken off", status=refused.status, reason=str(refused))
                    await self._event(send, self._form.error(refused))
                last = self._form.last
                await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _answer(self, send: Send) -> None:
        keeping = asyncio.create_task(self._keep_alive(send))
        try:
            await self._events(send)
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _events(self, send: Send) -> None:
        for event in self._writer.events(self._first):
            await self._event(send, event)
        async for delta in self._rest:
            for event in self._writer.events(delta):
                await self._event(send, event)
        for event in self._writer.closing():
            await self._event(send, event)

    async def _event(self, send: Send, content: dict[str, Any]) -> None:
        self._sent_s = time.monotonic()
        body = self._form.event(content)
        await send({"type": "http.response.body", "body": body, "more_body": True})

    async def _keep_alive(self, send: Send) -> None:
        while True:
            await asyncio.sleep(KEEP_ALIVE_S)
            if time.monotonic() - self._sent_s >= KEEP_ALIVE_S:
                silence = self._form.keep_alive
                await send({"type": "http.response.body", "body": silence, "more_body": True})
