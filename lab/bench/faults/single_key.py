"""What one key gets that has a suite for itself: all that ten keys get together.

Two suites of the same settings, one for each. They are asked in turn, a few seconds each, so that
what else the machine does meets both alike, and the median of the turns counts. The cloud decodes
alone: `auto` may settle at drafting in one suite and not in the other, and earlier texts are
drafted from by each key for itself. Neither says anything of what a key may have.
"""

from __future__ import annotations

import asyncio
import re
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from statistics import median

from lab.bench.faults.fleet import HOST
from lab.bench.faults.suite_members import WholeSuite, access_with, whole_suite
from lab.bench.faults.tenants import GREEDY, HONEST, make_tenants
from lab.bench.harness.report import Goal, Report, make_row, progress
from tandem.generation.client import AggregatorClient
from tandem.generation.request import GenerationRequest
from tandem.net.status import Rejected
from tandem.specdec.messages import GenerationParams

SINGLE_KEY = "single-key"
AT_ONCE = 20
SLOTS = 16
"""Fewer than are wanted at once."""
MAX_TOKENS = 16
PRESET = "ar"
PASS_S = 0.04
"""So long that slots are short, and not the machine."""
TURNS = 5
"""Of each suite, after one that is not counted."""
SAMPLED_S = 0.1
AS_MUCH = 0.95
"""Of what ten keys get; the rest is the noise of a measurement."""
COLUMNS = ("keys", "tokens_per_s", "slots_at_most", "failed")
RUNNING = re.compile(r"^tandem_num_requests_running{.*} (\S+)$", re.MULTILINE)


@dataclass(slots=True)
class Got:
    """What the holders of some keys got together; `rates` are tokens per second, of each turn."""

    keys: int
    rates: list[float] = field(default_factory=list)
    slots_at_most: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class _Holders:
    """The holders of some keys, who have a suite for themselves; one client for each request."""

    suite: WholeSuite
    clients: Sequence[AggregatorClient]
    got: Got

    async def ask(self, lasts_s: float) -> None:
        """Ask for `AT_ONCE` answers at once, again and again for so long."""
        ends_s, tokens = time.monotonic() + lasts_s, 0

        async def answers(number: int, client: AggregatorClient) -> None:
            nonlocal tokens
            params = GenerationParams(max_tokens=MAX_TOKENS, seed=number, ignore_eos=True)
            request = GenerationRequest("A list of things", preset=PRESET, params=params)
            while time.monotonic() < ends_s:
                try:
                    had = 0
                    async for answer in client.stream(request, 10 * lasts_s):
                        if time.monotonic() >= ends_s:
                            return
                        tokens += len(answer.token_ids) - had
                        had = len(answer.token_ids)
                except Rejected:
                    self.got.failed += 1
                    await asyncio.sleep(SAMPLED_S)

        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch(ends_s))
            for number, client in enumerate(self.clients):
                group.create_task(answers(number, client))
        self.got.rates.append(tokens / lasts_s)

    async def _watch(self, ends_s: float) -> None:
        while time.monotonic() < ends_s:
            running = await asyncio.to_thread(_running, self.suite.metrics["aggregator"])
            self.got.slots_at_most = max(self.got.slots_at_most, running)
            await asyncio.sleep(SAMPLED_S)


async def measured_single_key(
    place: Path, settings: Mapping[str, Mapping[str, object]], lasts_s: float
) -> tuple[Got, Got]:
    """Return what one key gets and what ten get, each asked for so long."""
    folder = place / "certs"
    make_tenants(folder)
    flags = {name: dict(own) for name, own in settings.items()}
    flags["verifier"]["pace-first-s"] = PASS_S
    flags["aggregator"] = {"http-keys-file": folder / "edge.keys", "max-running": SLOTS}
    everybody = [GREEDY, *(f"honest{number}" for number in range(HONEST))]
    async with AsyncExitStack() as stack:
        sides = list[_Holders]()
        for keys in ([GREEDY], everybody):
            logs = place / f"{len(keys)} keys"
            logs.mkdir()
            suite = await stack.enter_async_context(whole_suite(logs, flags, folder))
            clients = [
                await stack.enter_async_context(
                    AggregatorClient(
                        suite.address("aggregator"), access=access_with(folder, "edge", key)
                    )
                )
                for key in islice(cycle(keys), AT_ONCE)
            ]
            sides.append(_Holders(suite, clients, Got(len(keys))))
        for turn in range(1 + TURNS):
            progress(f"{AT_ONCE} requests at once, turn {turn} of {TURNS}")
            for side in sides[:: 1 if turn % 2 else -1]:
                await side.ask(lasts_s / TURNS)
        for side in sides:
            del side.got.rates[0]
    return sides[0].got, sides[1].got


def add_single_key(report: Report, measured: tuple[Got, Got], lasts_s: float) -> None:
    """Add the table and the goals."""
    alone, together = measured
    report.add(
        f"{AT_ONCE} requests at once for {SLOTS} slots, {TURNS} turns of {lasts_s / TURNS:g} s,"
        f" preset {PRESET}, paced scripted pair",
        COLUMNS,
        [
            make_row(
                keys=got.keys,
                tokens_per_s=median(got.rates),
                slots_at_most=got.slots_at_most,
                failed=got.failed,
            )
            for got in measured
        ],
    )
    share = median(one / ten for one, ten in zip(alone.rates, together.rates, strict=True))
    report.goals += [
        Goal("slots of a single key ÷ all", alone.slots_at_most / SLOTS, 1.0, "at least"),
        Goal("tokens/s of a single key ÷ those of ten", share, AS_MUCH, "at least"),
        Goal("requests of a single key that failed", alone.failed, 0, "at most"),
    ]


def _running(port: int) -> int:
    """Return how many requests an aggregator serves, as its metrics tell."""
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=30) as answer:
        return int(sum(float(count) for count in RUNNING.findall(answer.read().decode())))
