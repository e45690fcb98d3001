"""Why a peer is silent, found out while there is still time to tell the caller.

A stream that waits for its connection never hears what stands in its way, so somebody else must
ask; asked only once the peer is given up, the answer would come too late. Invariant: one question a
silence, ended with it. Must not import torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

ASK_AFTER_S = 1.4
"""Longer than a slow link's round trip; short enough that the answer is there by the time a silent
peer is given up by default."""


class Diagnosis:
    """Of one request; used on the event loop. `ask` must come to an end by itself."""

    def __init__(self, ask: Callable[[], Awaitable[str]], now: float) -> None:
        self._ask = ask
        self._heard_s = now
        self._asking: asyncio.Future[str] | None = None

    def heard(self, now: float) -> None:
        """The peer lives."""
        self._heard_s = now
        self.close()

    def tick(self, now: float) -> None:
        """Time passed."""
        if self._asking is None and now - self._heard_s >= ASK_AFTER_S:
            self._asking = asyncio.ensure_future(self._ask())

    async def answer(self) -> str:
        """Why the peer is silent; empty if nothing is known."""
        if self._asking is None:
            self._asking = asyncio.ensure_future(self._ask())
        return await self._asking

    def close(self) -> None:
        """Nobody wants to know any more."""
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None
