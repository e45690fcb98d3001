"""`bench soak`: hours in small. Mixed traffic with faults; nothing that is held may grow.

Real processes with the demo pair and an emulated link: answers over gRPC and HTTP by every preset,
answers from documents on both sides, documents that come and go, callers that leave in the middle.
Every half a minute something breaks for a moment: the link is cut or reset, the verifier stands
still, the retriever's disk refuses. No process is restarted, as that would hide what it holds. Of
each, resident memory, descriptors, threads and the number of its metrics' label values are sampled.
The bytes of keys and values follow the traffic: now and then all callers pause, and what sessions
still hold is sampled. `lab.bench.faults.slopes` says what counts as growth.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpc import StatusCode

from lab.bench.faults.fleet import HOST
from lab.bench.faults.http_caller import streamed
from lab.bench.faults.process_samples import BUSY_FIGURES, DOCUMENTS_HELD, HELD, Samples
from lab.bench.faults.slopes import BLOCKS, Trend, trend_of
from lab.bench.faults.suite_members import SERVICES, WholeSuite, whole_suite
from lab.bench.harness.models import Models
from lab.bench.harness.report import Goal, Report, Row, make_row, progress
from lab.bench.harness.texts import prompts
from tandem.generation.client import AggregatorClient
from tandem.generation.request import GenerationRequest
from tandem.net.frame_stream import BROKEN
from tandem.net.process import run_loop
from tandem.net.retriever_client import RetrieverClient, Upload
from tandem.net.status import Rejected
from tandem.specdec.choices import CloudDrafts
from tandem.specdec.liveness import LostCloud
from tandem.specdec.messages import GenerationParams
from tandem.specdec.presets import PRESETS

QUICK_MINUTES = 1.5
SAMPLES = 300
"""Of each figure in a run, at least 5 s apart and at most 60 in the quick one."""
MEMORY_MINUTES = 10.0
"""Shorter runs say nothing of memory: torch takes more with every new shape of a batch, and texts
are remembered until there are `MEMORY_TOKENS`."""
PAUSES = 2 * BLOCKS
"""In a run, in which nothing is asked."""
SETTLE_S = 1.0
"""Of a pause, before its sample: sessions end after their callers' calls."""
FAULT_EVERY_S = 30.0
MAX_TOKENS = 32
PROMPTS = 60
SERVED = [
    name
    for name, preset in PRESETS.items()
    if not preset.split_layers and preset.cloud_drafts is not CloudDrafts.MODEL
]
"""What a drafter without the target's layers and a verifier without a draft model serve."""
ANSWER_S = 60.0
CALL_S = 10.0
DOCUMENT_KV_BYTES = 8 << 20
"""So small that it is full before the second half begins."""
MEMORY_TOKENS = 2**14
"""Of earlier texts, for each tenant. What a drafter remembers by default would fill for hours."""
BLAMING = BROKEN | {StatusCode.INVALID_ARGUMENT, StatusCode.FAILED_PRECONDITION}
COLUMNS = (
    *("service", "figure", "first", "mean", "last"),
    *("slope_per_h", "margin_per_h", "growth", "verdict"),
)


@dataclass(slots=True)
class Traffic:
    """Callers of a suite, and how their calls ended, by kind and status."""

    suite: WholeSuite
    seed: int
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    improper: list[str] = field(default_factory=list)
    """Ends that blame the caller or the code, in their own words: every call is a good one."""
    _under_way: int = 0
    _paused: bool = False
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def run(self, stop: asyncio.Event) -> None:
        """Run all callers at once, and break something now and then, until `stop` is set."""
        callers: list[Callable[[random.Random], Awaitable[None]]] = [
            *(self._generate, self._generate, self._from_documents),
            *(self._leave, self._over_http, self._leave_http, self._documents),
        ]
        async with asyncio.TaskGroup() as group:
            for number, call in enumerate(callers):
                group.create_task(self._again_and_again(number, call, stop))
            group.create_task(self._break(stop))

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Have nothing asked, and nothing broken, while the context is open."""
        self._paused = True
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: not self._under_way)
            yield
        finally:
            self._paused = False
            async with self._changed:
                self._changed.notify_all()

    @asynccontextmanager
    async def _no_pause(self) -> AsyncIterator[None]:
        """Wait for the end of a pause, and begin none while the context is open."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._paused)
            self._under_way += 1
        try:
            yield
        finally:
            async with self._changed:
                self._under_way -= 1
                self._changed.notify_all()

    async def _again_and_again(
        self, number: int, call: Callable[[random.Random], Awaitable[None]], stop: asyncio.Event
    ) -> None:
        source, kind = random.Random(f"soak {self.seed} {number}"), call.__name__.strip("_")
        while not stop.is_set():
            try:
                async with self._no_pause():
                    await call(source)
                self.ended[kind, "ok"] += 1
            except Rejected as error:
                self.ended[kind, error.code.name] += 1
                if error.code in BLAMING:
                    self.improper.append(f"{kind} ended with {error.code.name}: {error}")
            except (OSError, ValueError) as error:
                self.ended[kind, type(error).__name__] += 1
            await _pause(stop, source.uniform(0.1, 0.5))

    async def _generate(self, source: random.Random) -> None:
        async with AggregatorClient(self.suite.address("aggregator")) as client:
            await client.generate(_request(source), ANSWER_S)

    async def _from_documents(self, source: random.Random) -> None:
        async with AggregatorClient(self.suite.address("aggregator")) as client:
            await client.generate(_request(source, preset="dragon-coupled"), ANSWER_S)

    async def _leave(self, source: random.Random) -> None:
        """Ask for an answer, and leave in the middle of it."""
        async with AggregatorClient(self.suite.address("aggregator")) as client:
            async for result in client.stream(_request(source), ANSWER_S):
                if len(result.token_ids) > 4:
                    break

    async def _over_http(self, source: random.Random) -> None:
        async with asyncio.timeout(ANSWER_S):
            async for _ in streamed(HOST, self.suite.http, _body(source)):
                pass

    async def _leave_http(self, source: random.Random) -> None:
        async with asyncio.timeout(ANSWER_S):
            async for _ in streamed(HOST, self.suite.http, _body(source)):
                break

    async def _documents(self, source: random.Random) -> None:
        """Put a few documents, search for them, and remove some; the names are the same again and
        again."""
        async with RetrieverClient(self.suite.address("device-retriever")) as client:
            names = [f"note{source.randrange(20)}" for _ in range(3)]
            size = source.choice((20, 200, 2000))
            words = " ".join(f"w{source.randrange(500)}" for _ in range(size))
            uploads = [Upload(name, f"{name} of things {words}".encode()) for name in names]
            async for _ in client.ingest(uploads, CALL_S):
                pass
            await client.search(names[0], 5, timeout_s=CALL_S)
            await client.delete(names[:2], CALL_S)

    async def _break(self, stop: asyncio.Event) -> None:
        source = random.Random(f"soak faults {self.seed}")
        kinds = (self._cut, self._reset, self._stand_still, self._refuse_writes)
        while not await _pause(stop, FAULT_EVERY_S):
            kind = source.choice(kinds)
            self.faults[kind.__name__.strip("_")] += 1
            async with self._no_pause():
                await kind(source.uniform(0.5, 4.0))

    async def _cut(self, lasts_s: float) -> None:
        self.suite.link.cut()
        await asyncio.sleep(lasts_s)
        self.suite.link.restore()

    async def _reset(self, lasts_s: float) -> None:
        self.suite.link.drop()

    async def _stand_still(self, lasts_s: float) -> None:
        verifier = self.suite.fleet.pid("verifier")
        os.kill(verifier, signal.SIGSTOP)
        try:
            await asyncio.sleep(lasts_s)
        finally:
            os.kill(verifier, signal.SIGCONT)

    async def _refuse_writes(self, lasts_s: float) -> None:
        self.suite.fleet.limit("device-retriever", "file size", 0)
        try:
            await asyncio.sleep(lasts_s)
        finally:
            self.suite.fleet.limit("device-retriever", "file size", None)


def run(report: Report, models: Models, minutes: float) -> None:
    """Run mixed traffic with faults for `minutes`, and report what grows. The goals hold on any
    machine: they are about what services hold, not about time."""
    minutes = QUICK_MINUTES if report.quick else minutes
    with tempfile.TemporaryDirectory(prefix="tandem-soak-") as place:
        busy, idle, traffic = run_loop(_soak(Path(place), models, report.seed, minutes * 60))
    trends, rows = dict[tuple[str, str], Trend](), list[Row]()
    for samples in (busy, idle):
        for key, values in samples.values.items():
            trends[key] = trend_of(key[1], samples.times_s, values)
            rows.append(_row(key, values, trends[key]))
    report.add(f"{minutes:g} minutes of mixed traffic with faults, demo pair", COLUMNS, rows)
    figures = (*(BUSY_FIGURES[1:] if minutes < MEMORY_MINUTES else BUSY_FIGURES), HELD)
    for figure in figures:
        growing = sum(
            trend.grows for (_, trend_figure), trend in trends.items() if trend_figure == figure
        )
        report.goals.append(Goal(f"services whose {figure} grow", growing, 0, "at most"))
    most = max(max(values) for (_, kind), values in idle.values.items() if kind == DOCUMENTS_HELD)
    report.goals.append(
        Goal("bytes of kept documents ÷ their budget", most / DOCUMENT_KV_BYTES, 1.0, "at most")
    )
    answered = sum(count for (_, status), count in traffic.ended.items() if status == "ok")
    report.goals.append(Goal("calls served", answered, minutes * 20, "at least"))
    report.goals.append(
        Goal("good calls that were refused as bad ones", len(traffic.improper), 0, "at most")
    )
    report.notes += [
        *traffic.improper[:5],
        f"calls: {_counted(traffic.ended)}",
        f"faults: {_counted(traffic.faults)}",
        f"{len(busy.times_s)} samples under load, {len(idle.times_s)} in pauses; the first half is"
        " warm-up",
    ]


async def _soak(
    place: Path, models: Models, seed: int, lasts_s: float
) -> tuple[Samples, Samples, Traffic]:
    """Return the samples under load, those of pauses, and who asked."""
    busy, idle = Samples(BUSY_FIGURES), Samples((HELD, DOCUMENTS_HELD))
    budget = {"document-kv-budget-bytes": DOCUMENT_KV_BYTES}
    more: Mapping[str, Mapping[str, object]] = {
        "verifier": {"model": models.target, **budget},
        "drafter": {"model": models.draft, "memory-tokens": MEMORY_TOKENS, **budget},
    }
    every_s = max(lasts_s / SAMPLES, min(5.0, lasts_s / (5 * BLOCKS)))
    async with whole_suite(place, more) as suite:
        traffic, stop = Traffic(suite, seed), asyncio.Event()
        running = asyncio.create_task(traffic.run(stop))
        pids = {name: suite.fleet.pid(name) for name in SERVICES}
        metrics = {name: f"{HOST}:{port}" for name, port in suite.metrics.items()}
        try:
            began_s, passed_s = time.monotonic(), 0.0
            while not running.done() and (passed_s < lasts_s or len(idle.times_s) < PAUSES):
                await busy.take(pids, metrics)
                suite.fleet.check_alive()
                if len(busy.times_s) % 30 == 0:
                    progress(f"{passed_s / 60:.1f} minutes; {_counted(traffic.ended)}")
                await asyncio.sleep(every_s)
                passed_s = time.monotonic() - began_s
                if len(idle.times_s) * lasts_s <= PAUSES * passed_s:
                    async with traffic.paused():
                        await asyncio.sleep(SETTLE_S)
                        await idle.take(pids, metrics)
        finally:
            stop.set()
            await running
    return busy, idle, traffic


def _request(source: random.Random, preset: str | None = None) -> GenerationRequest:
    return GenerationRequest(
        prompt=source.choice(prompts(PROMPTS)),
        preset=preset or source.choice(SERVED),
        params=GenerationParams(
            max_tokens=source.choice((4, MAX_TOKENS)), seed=source.randrange(2**32)
        ),
        lost_cloud=source.choice(list(LostCloud)),
    )


def _body(source: random.Random) -> dict[str, object]:
    return {
        "model": "demo-target",
        "prompt": source.choice(prompts(PROMPTS)),
        "max_tokens": MAX_TOKENS,
        "seed": source.randrange(2**32),
        "tandem": {"preset": source.choice(SERVED)},
    }


def _row(key: tuple[str, str], values: Sequence[float], trend: Trend) -> Row:
    return make_row(
        service=key[0],
        figure=key[1],
        first=values[0],
        mean=trend.mean,
        last=values[-1],
        slope_per_h=trend.slope_per_h,
        margin_per_h=trend.margin_per_h,
        growth=trend.growth,
        verdict="GROWS" if trend.grows else "flat",
    )


def _counted(counts: Mapping[Any, int]) -> str:
    def words(key: object) -> str:
        return " ".join(map(str, key)) if isinstance(key, tuple) else str(key)

    return ", ".join(f"{words(key)} {count}" for key, count in sorted(counts.items(), key=str))


async def _pause(stop: asyncio.Event, seconds: float) -> bool:
    """Wait for `seconds`, or until `stop` is set; return whether it is."""
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return False
    return True
