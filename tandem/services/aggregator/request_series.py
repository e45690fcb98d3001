"""The series that a request is counted and timed in, by preset and target model. Invariant:
counting waits for nobody. The target's name is asked for when the first request comes, and taken
from every later description; what is counted before it is known is counted as "unknown"."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from tandem.core.errors import TandemError
from tandem.telemetry.metrics import UNKNOWN_MODEL, MethodSeries, Metrics
from tandem_api.common.v1.generation_pb2 import GenerateResponse


class RequestSeries:
    """Used on the event loop only; `describe` asks what is served, and calls `learned` with it."""

    def __init__(self, metrics: Metrics, describe: Callable[[], Awaitable[object]]) -> None:
        self._metrics = metrics
        self._describe = describe
        self._asking: asyncio.Task[None] | None = None
        self._known: dict[tuple[str, str], MethodSeries] = {}
        self.target_name = UNKNOWN_MODEL

    def learned(self, target_name: str) -> None:
        self.target_name = target_name or self.target_name

    def learn(self) -> None:
        """Have the name asked for, if it is not known and nobody is asking."""
        asking = self._asking is not None and not self._asking.done()
        if self.target_name == UNKNOWN_MODEL and not asking:
            self._asking = asyncio.create_task(self._ask())

    def now(self, preset: str) -> MethodSeries:
        """Return the series of `preset`, which is one of ours, with the target as it is known
        now."""
        key = (preset, self.target_name)
        if key not in self._known:
            self._known[key] = self._metrics.method(preset, self.target_name)
        return self._known[key]

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _ask(self) -> None:
        with suppress(TandemError):  # the next request asks again
            await self._describe()


class RequestTiming:
    """TTFT, ITL, TPOT and end-to-end latency of one request, as its commits pass by."""

    def __init__(self, series: Callable[[], MethodSeries], arrived_s: float) -> None:
        self._series = series
        self._arrived_s = arrived_s
        self._first_s: float | None = None
        self._last_s = arrived_s
        self.tokens = 0

    def elapsed_s(self) -> float:
        return time.monotonic() - self._arrived_s

    def observe(self, answer: GenerateResponse) -> None:
        now = time.monotonic()
        series = self._series()
        if answer.HasField("committed") and answer.committed.token_ids:
            if self._first_s is None:
                self._first_s = now
                series.time_to_first_token.observe(now - self._arrived_s)
            else:
                series.inter_token_latency.observe(now - self._last_s)
            self._last_s = now
            self.tokens += len(answer.committed.token_ids)
            series.tokens.inc(len(answer.committed.token_ids))
        elif answer.HasField("summary"):
            series.e2e_request_latency.observe(now - self._arrived_s)
            if self._first_s is not None and answer.summary.tokens > 1:
                tpot_s = (self._last_s - self._first_s) / (answer.summary.tokens - 1)
                series.time_per_output_token.observe(tpot_s)
