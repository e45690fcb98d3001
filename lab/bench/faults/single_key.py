"""What one key gets that has a suite for itself: all that ten keys get together."""

from __future__ import annotations

import asyncio
import re
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
MAX_TOKENS = 64
SAMPLED_S = 0.1
AS_MUCH = 0.95
"""Of what ten keys get; the rest is the noise of a measurement."""
COLUMNS = ("keys", "tokens_per_s", "slots_at_most", "failed")
RUNNING = re.compile(r"^tandem_num_requests_running{.*} (\S+)$", re.MULTILINE)


@dataclass(slots=True)
class Got:
    """What the holders of some keys got together."""

    keys: int
    tokens_per_s: float = 0.0
    slots_at_most: int = 0
    failed: int = 0


async def measured_single_key(
    place: Path, settings: dict[str, dict[str, object]], lasts_s: float
) -> tuple[Got, Got]:
    """Return what one key gets and then what ten get, from a suite with these settings."""
    folder = place / "certs"
    make_tenants(folder)
    aggregator: Mapping[str, object] = {"http-keys-file": folder / "edge.keys"}
    flags = {**settings, "aggregator": {**aggregator, "max-running": SLOTS}}
    async with whole_suite(place, flags, folder) as suite:
        alone = await _got(suite, folder, [GREEDY], lasts_s)
        honest = [f"honest{number}" for number in range(HONEST)]
        return alone, await _got(suite, folder, [GREEDY, *honest], lasts_s)


def add_single_key(report: Report, measured: tuple[Got, Got], lasts_s: float) -> None:
    """Add the table and the goals."""
    alone, together = measured
    report.add(
        f"{AT_ONCE} requests at once for {SLOTS} slots, {lasts_s:g} s each, paced scripted pair",
        COLUMNS,
        [
            make_row(
                keys=got.keys,
                tokens_per_s=got.tokens_per_s,
                slots_at_most=got.slots_at_most,
                failed=got.failed,
            )
            for got in measured
        ],
    )
    share = alone.tokens_per_s / together.tokens_per_s
    report.goals += [
        Goal("slots of a single key ÷ all", alone.slots_at_most / SLOTS, 1.0, "at least"),
        Goal("tokens/s of a single key ÷ those of ten", share, AS_MUCH, "at least"),
        Goal("requests of a single key that failed", alone.failed, 0, "at most"),
    ]


async def _got(suite: WholeSuite, folder: Path, keys: Sequence[str], lasts_s: float) -> Got:
    progress(f"{AT_ONCE} requests at once, keys: {len(keys)}")
    got, tokens = Got(len(keys)), [0] * AT_ONCE
    ends_s = time.monotonic() + lasts_s

    async def ask(number: int) -> None:
        access = access_with(folder, "edge", keys[number % len(keys)])
        async with AggregatorClient(suite.address("aggregator"), access=access) as client:
            while time.monotonic() < ends_s:
                params = GenerationParams(max_tokens=MAX_TOKENS, seed=number, ignore_eos=True)
                request = GenerationRequest("A list of things", params=params)
                try:
                    answer = await client.generate(request, lasts_s)
                    tokens[number] += len(answer.token_ids)
                except Rejected:
                    got.failed += 1
                    await asyncio.sleep(SAMPLED_S)

    async def watch() -> None:
        while time.monotonic() < ends_s:
            running = await asyncio.to_thread(_running, suite.metrics["aggregator"])
            got.slots_at_most = max(got.slots_at_most, running)
            await asyncio.sleep(SAMPLED_S)

    began_s = time.monotonic()
    async with asyncio.TaskGroup() as group:
        group.create_task(watch())
        for number in range(AT_ONCE):
            group.create_task(ask(number))
    got.tokens_per_s = sum(tokens) / (time.monotonic() - began_s)
    return got


def _running(port: int) -> int:
    """Return how many requests an aggregator serves, as its metrics tell."""
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=30) as answer:
        return int(sum(float(count) for count in RUNNING.findall(answer.read().decode())))
