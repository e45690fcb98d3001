"""Server-sent events: a streamed answer, ended by `data: [DONE]`.

Invariant: an answer that fails after it began ends with an event that has OpenAI's `error`; when
the caller leaves, the answer is cancelled. Must not import grpc or torch.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tandem.gateway.bodies import Writer
from tandem.gateway.caller import CallerLeft, unless_gone
from tandem.gateway.choices import Piece
from tandem.gateway.errors import api_error
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)


class EventStream(Response):
    """`first` is what was heard of the answer before the stream was begun."""

    media_type = "text/event-stream"

    def __init__(self, writer: Writer, first: Piece, rest: AsyncGenerator[Piece]) -> None:
        # No proxy may hold events back.
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._writer = writer
        self._first = first
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(CallerLeft):
            await unless_gone(receive, self._answer(send))

    async def _answer(self, send: Send) -> None:
        async with aclosing(self._rest) as rest:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            try:
                await _event(send, self._writer.chunk(self._first))
                async for piece in rest:
                    await _event(send, self._writer.chunk(piece))
                if self._writer.include_usage:
                    await _event(send, self._writer.usage_chunk())
            except Exception as error:
                refused = api_error(error)
                log.warning("answer broken off", status=refused.status, reason=str(refused))
                await _event(send, {"error": refused.body})
            body = b"data: [DONE]\n\n"
            await send({"type": "http.response.body", "body": body, "more_body": False})


async def _event(send: Send, content: dict[str, Any] | None) -> None:
    if content is not None:
        body = b"data: " + json.dumps(content).encode() + b"\n\n"
        await send({"type": "http.response.body", "body": body, "more_body": True})
