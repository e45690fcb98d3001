"""The series that a request is counted in, by preset and by the target model that serves it.

Invariant: counting waits for nobody. The target's name is asked for when the first request comes,
and taken from every later description; what is counted before it is known is counted as "unknown".
Must not import torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from tandem.core.errors import TandemError
from tandem.telemetry.metrics import UNKNOWN_MODEL, MethodSeries, Metrics


class RequestSeries:
    """Used on the event loop only."""

    def __init__(self, metrics: Metrics, describe: Callable[[], Awaitable[object]]) -> None:
        """`describe` asks what is served, and calls `learned` with it."""
        self._metrics = metrics
        self._describe = describe
        self._asking: asyncio.Task[None] | None = None
        self._known: dict[tuple[str, str], MethodSeries] = {}
        self.target_name = UNKNOWN_MODEL

    def learned(self, target_name: str) -> None:
        """The target model is called so."""
        self.target_name = target_name or self.target_name

    def learn(self) -> None:
        """Have the name asked for, if it is not known and nobody is asking."""
        asking = self._asking is not None and not self._asking.done()
        if self.target_name == UNKNOWN_MODEL and not asking:
            self._asking = asyncio.create_task(self._ask())

    def now(self, preset: str) -> MethodSeries:
        """The series of `preset`, one of ours, with the target as it is known now."""
        key = (preset, self.target_name)
        if key not in self._known:
            self._known[key] = self._metrics.method(*key)
        return self._known[key]

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _ask(self) -> None:
        with suppress(TandemError):  # the next request asks again
            await self._describe()
