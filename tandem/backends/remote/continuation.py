"""The likeliest continuation of a text, which a server streams: a row for every position, for as
long as the text goes on as the server guessed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from tandem.backends.remote.dialects import Dialect, Emitted, TopLogprobs


class Continuation:
    """The stream after a text of `length` tokens. Made and read on the server's loop; `stop` is for
    any thread."""

    def __init__(
        self, length: int, events: AsyncIterator[Any], dialect: Dialect, count: int
    ) -> None:
        """Begin to read. `count`: tokens of a row."""
        self._loop = asyncio.get_running_loop()
        self._length = length
        self._events = events
        self._dialect = dialect
        self._count = count
        self._emitted = list[Emitted]()
        self._followed = 0
        """Tokens of it that the text is known to go on with."""
        self._more = asyncio.Condition()
        self._error: Exception | None = None
        self._ended = False
        self._reading = asyncio.create_task(self._read())

    async def row_after(self, length: int, token_ids: tuple[int, ...]) -> TopLogprobs | None:
        """Return the row after `token_ids`, which follow the first `length` tokens of the text.
        None if these went on otherwise than the server did, or the stream is over. Raises what
        ended the stream too early."""
        first = length - self._length
        if not 0 <= first <= self._followed:
            return None
        end = first + len(token_ids)
        async with self._more:
            while True:
                begun = self._emitted[first:end]
                fed = token_ids[: len(begun)]
                if any(one.token_id != fed_id for one, fed_id in zip(begun, fed, strict=True)):
                    return None
                if len(self._emitted) > end:
                    self._followed = end
                    return self._emitted[end].top
                if self._error is not None:
                    raise self._error
                if self._ended:
                    return None
                await self._more.wait()

    def stop(self) -> None:
        """Close the stream, which frees the server's slot."""
        with suppress(RuntimeError):  # the loop is closed, and the stream with it
            self._loop.call_soon_threadsafe(self._reading.cancel)

    async def _read(self) -> None:
        try:
            async for event in self._events:
                new = self._dialect.emitted(event, self._count, len(self._emitted))
                async with self._more:
                    self._emitted += new
                    self._more.notify_all()
        except Exception as error:
            self._error = error
        finally:
            self._ended = True
            aclose = getattr(self._events, "aclose", None)
            if aclose is not None:
                await aclose()
            async with self._more:
                self._more.notify_all()
