"""`bench overload`: what nine honest tenants notice of one who takes all that he can get.

Real processes with TLS and a key for each tenant. The honest ask for short answers, six over gRPC
and three over HTTP, and one of them puts and searches documents. First they are alone; then, one
after the other, the tenth sends as many long requests as he can, leaves answers unread, and holds
streams open that say nothing. The models are scripted and paced, so that the machine computes
little: on two cores the load, both its ends and the services share them all the same.

Then, on a pair with a real vocabulary, he asks over HTTP for one kind of dear thing after another;
before each the honest are measured alone again. Where the kind takes no answer, one of them asks
for a little of it too, since that has other queues than answers have.

Where the processors are too slow for what the honest alone send, everybody waits for them, and
nobody can share them out. `slower` tells this apart: passes and pauses take so many times as long,
as on a machine whose processors are that much faster, while the tenth presses as before.

A request that is refused or fails has no first token: it counts as infinitely late. Nobody is
refused so that others may be served: a single key with no others beside it gets all that ten get.
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from lab.bench.faults.expensive_calls import CONTEXT_TOKENS, Expensive, Served, expensive_calls
from lab.bench.faults.fleet import HOST, Fleet, Member, flags_of
from lab.bench.faults.http_caller import answered, streamed
from lab.bench.faults.single_key import SINGLE_KEY, add_single_key, measured_single_key
from lab.bench.faults.suite_members import WholeSuite, access_with, whole_suite
from lab.bench.faults.tenants import GREEDY, HONEST, make_tenants
from lab.bench.faults.texts_arm import MODEL
from lab.bench.harness.models import Models
from lab.bench.harness.report import Goal, Report, Row, make_row, progress
from tandem.core.errors import InvalidArgument
from tandem.generation.client import AggregatorClient
from tandem.generation.request import GenerationRequest
from tandem.net.process import run_loop
from tandem.net.retriever_client import RetrieverClient, Upload
from tandem.net.status import Rejected
from tandem.specdec.messages import GenerationParams

OVER_HTTP = 3
PRESSURES = ("greedy", "slow-readers", "idle")
PHASE_S = 30.0
QUICK_PHASE_S = 10.0
SETTLE_S = 2.0
MAX_TOKENS = 12
THINK_S = 0.3
CALL_S = 10.0
PACES = {"verifier": (0.010, 0.001), "drafter": (0.004, 0.0)}
WORSE_AT_MOST = 2.0
LAG_AT_MOST_S = 0.1
LAG_METRIC = "tandem_event_loop_lag_seconds"
COLUMNS = (
    *("slower", "pressure", "requests", "failed", "ttft_p50_s", "ttft_p95_s", "worse"),
    "lag_p99_s",
)

CROWDING = "crowding"
ARMS = (
    *("grammars", "choices", "logprobs", "images", "contexts", "embeddings", "windows"),
    *("documents", "tokenising", "turns", "letters"),
)
ARM_COLUMNS = (
    *(
        "slower",
        "asks_for",
        "requests",
        "failed",
        "alone_p95_s",
        "beside_p95_s",
        "worse",
        "lag_p99_s",
    ),
    *("calls", "calls_alone_p95_s", "calls_worse"),
)
CONTEXTS = 8
"""Whole contexts that the verifier's memory holds in the arms: the greedy one wants 16."""
SCRIPTED = Served("scripted")
_SCRIPTED = {name: {"engine": "scripted", "model": MODEL} for name in PACES}

Buckets = Mapping[str, Mapping[float, float]]
"""By service: how many observations were at most so many seconds."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long each measurement lasts, and how many times as long passes and pauses take."""

    lasts_s: float
    slower: float = 1.0

    @property
    def think_s(self) -> float:
        return self.slower * THINK_S

    @property
    def label(self) -> str:
        """What goals and tables add to their names."""
        return "" if self.slower == 1.0 else f", passes and pauses × {self.slower:g}"

    def settings(self, models: Mapping[str, Mapping[str, object]]) -> dict[str, dict[str, object]]:
        """Return the settings of the services with these models, whose passes take a declared
        time."""
        return {
            name: {
                **models[name],
                "pace-first-s": first * self.slower,
                "pace-further-s": more * self.slower,
            }
            for name, (first, more) in PACES.items()
        }


@dataclass(slots=True)
class Phase:
    """What the honest tenants saw under one pressure: times to first tokens, and of calls that take
    no answer, in seconds."""

    pressure: str
    think_s: float = THINK_S
    ttfts_s: list[float] = field(default_factory=list)
    calls_s: list[float] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)
    lag_p99_s: float | None = None

    def ttft_s(self, quantile: float) -> float:
        """Return a quantile of the TTFT of all requests, in seconds; a request that failed counts
        as infinitely late."""
        return _quantile([*self.ttfts_s, *[inf] * sum(self.failures.values())], quantile)

    def failed(self, why: str) -> None:
        self.failures[why] = self.failures.get(why, 0) + 1


def _quantile(times_s: Sequence[float], quantile: float) -> float:
    ordered = sorted(times_s)
    return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))] if ordered else inf


def run(
    report: Report, models: Models, part: Sequence[str] = (), slower: Sequence[float] = ()
) -> None:
    """Measure the honest tenants alone, and beside the one who takes all that he can get. The goals
    of time are for a machine without other work. `part`: only these, "single-key", "crowding" or
    names of arms; empty: all. `slower`: all but the first part, whose passes are long, is measured
    with passes and pauses that take these many times as long; empty: as they are. The models of
    the first two parts are always the scripted ones. Raises InvalidArgument for an unknown part."""
    known = (SINGLE_KEY, CROWDING, *ARMS)
    if unknown := set(part) - set(known):
        raise InvalidArgument("part", f"{sorted(unknown)} are none of {', '.join(known)}")
    lasts_s = QUICK_PHASE_S if report.quick else PHASE_S
    if not part or SINGLE_KEY in part:
        with tempfile.TemporaryDirectory(prefix="tandem-overload-") as place:
            settings = Pace(lasts_s).settings(_SCRIPTED)
            measured = run_loop(measured_single_key(Path(place), settings, lasts_s))
        add_single_key(report, measured, lasts_s)
    for pace in (Pace(lasts_s, times) for times in slower or (1.0,)):
        if not part or CROWDING in part:
            _crowding(report, pace)
        if wanted := [arm for arm in ARMS if not part or arm in part]:
            with tempfile.TemporaryDirectory(prefix="tandem-overload-") as place:
                arms = run_loop(_arms(Path(place), models, wanted, pace))
            _add_arms(report, arms, pace)


def _crowding(report: Report, pace: Pace) -> None:
    with tempfile.TemporaryDirectory(prefix="tandem-overload-") as place:
        phases = run_loop(_phases(Path(place), pace))
    alone = phases[0].ttft_s(0.95)
    report.add(
        f"Nine honest tenants and one that is not, {pace.lasts_s:g} s each, paced scripted pair"
        f"{pace.label}",
        COLUMNS,
        [_row(phase, alone, pace) for phase in phases],
    )
    report.goals += goals(phases, pace.label)
    report.notes += [
        f"{phase.pressure}{pace.label}: {', '.join(f'{n} x {why}' for why, n in failures.items())}"
        for phase in phases
        if (failures := phase.failures)
    ]


@dataclass(frozen=True, slots=True)
class Arm:
    """What the honest tenants saw alone, and beside who asks for this."""

    name: str
    alone: Phase
    beside: Phase

    @property
    def worse(self) -> float:
        return self.beside.ttft_s(0.95) / self.alone.ttft_s(0.95)

    @property
    def failed(self) -> int:
        return sum(self.beside.failures.values())

    @property
    def calls_worse(self) -> float | None:
        """None where the kind takes an answer."""
        if not self.alone.calls_s:
            return None
        return _quantile(self.beside.calls_s, 0.95) / _quantile(self.alone.calls_s, 0.95)


def arm_goals(arms: Sequence[Arm], label: str = "") -> list[Goal]:
    """Return the goals of each arm: how much later first tokens come, how much longer the modest
    calls of its kind take, and that no honest request fails."""
    goals_ = list[Goal]()
    for arm in arms:
        of = f"{arm.name}{label}"
        goals_.append(Goal(f"p95 TTFT ÷ alone, {of}", arm.worse, WORSE_AT_MOST, "at most"))
        if (worse := arm.calls_worse) is not None:
            name = f"p95 of modest calls ÷ alone, {of}"
            goals_.append(Goal(name, worse, WORSE_AT_MOST, "at most"))
        goals_.append(Goal(f"honest requests failed, {of}", arm.failed, 0, "at most"))
    return goals_


def _add_arms(report: Report, arms: Sequence[Arm], pace: Pace) -> None:
    report.add(
        f"Nine honest tenants and one who asks for what is dear, {pace.lasts_s:g} s each, a pair"
        f" with a real vocabulary{pace.label}",
        ARM_COLUMNS,
        [
            make_row(
                slower=pace.slower,
                asks_for=arm.name,
                requests=len(arm.beside.ttfts_s) + arm.failed,
                failed=arm.failed,
                alone_p95_s=arm.alone.ttft_s(0.95),
                beside_p95_s=arm.beside.ttft_s(0.95),
                worse=arm.worse,
                lag_p99_s=arm.beside.lag_p99_s,
                calls=len(arm.beside.calls_s),
                calls_alone_p95_s=_quantile(arm.alone.calls_s, 0.95) if arm.alone.calls_s else None,
                calls_worse=arm.calls_worse,
            )
            for arm in arms
        ],
    )
    report.goals += arm_goals(arms, pace.label)
    for arm in arms:
        for beside, phase in (("alone", arm.alone), ("beside", arm.beside)):
            if phase.failures:
                counts = ", ".join(f"{n} x {why}" for why, n in phase.failures.items())
                report.notes.append(f"{arm.name}, {beside}{pace.label}: {counts}")


async def _arms(place: Path, models: Models, wanted: Sequence[str], pace: Pace) -> list[Arm]:
    folder = place / "certs"
    make_tenants(folder)
    settings = pace.settings(
        {"verifier": {"model": models.target}, "drafter": {"model": models.draft}}
    )
    settings["drafter"]["memory-tokens"] = 0  # the same chats are measured alone and beside others
    settings["aggregator"] = {"http-keys-file": folder / "edge.keys", "http-documents": "true"}
    settings["device-retriever"] = {"embedding": "auto"}
    if "contexts" in wanted:
        settings["verifier"]["kv-budget-bytes"] = CONTEXTS * CONTEXT_TOKENS * _kv_bytes(models)
    arms = list[Arm]()
    async with whole_suite(place, settings, folder) as suite:
        served = await _served(suite, folder)
        calls = expensive_calls(served)
        for name in wanted:
            if name not in calls:
                progress(f"{name}: the suite has none")
                continue
            call = calls[name]
            alone = await _measured(suite, folder, "nobody", pace, served.model, call)
            async with _pressed(suite, folder, name, place, served):
                await asyncio.sleep(SETTLE_S)
                beside = await _measured(suite, folder, name, pace, served.model, call)
            arms.append(Arm(name, alone, beside))
            await asyncio.sleep(SETTLE_S)
    return arms


def _kv_bytes(models: Models) -> int:
    """Return the bytes of keys and values of a token of the target, in float32."""
    config = json.loads(Path(models.target, "config.json").read_text())
    return int(
        2 * 4 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
    )


async def _served(suite: WholeSuite, folder: Path) -> Served:
    """Return the models that /v1/models lists: the pair, and the embedding model where there is
    one."""
    key = (folder / GREEDY).read_text().strip()
    request = urllib.request.Request(
        f"http://{HOST}:{suite.http}/v1/models", headers={"Authorization": f"Bearer {key}"}
    )

    def read() -> list[str]:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return [card["id"] for card in json.load(answer)["data"]]

    return Served(*(await asyncio.to_thread(read))[:2])


def goals(phases: list[Phase], label: str = "") -> list[Goal]:
    """Return the goals of all phases. In the first one the honest tenants are alone."""
    alone = phases[0].ttft_s(0.95)
    goals_ = [
        Goal(
            f"p95 TTFT ÷ alone, {phase.pressure}{label}",
            phase.ttft_s(0.95) / alone,
            WORSE_AT_MOST,
            "at most",
        )
        for phase in phases[1:]
    ]
    lags = [phase.lag_p99_s for phase in phases if phase.lag_p99_s is not None]
    if lags:
        worst = f"event loop lag, p99 (s), worst{label}"
        goals_.append(Goal(worst, max(lags), LAG_AT_MOST_S, "at most"))
    return goals_


async def _phases(place: Path, pace: Pace) -> list[Phase]:
    folder = place / "certs"
    make_tenants(folder)
    settings = pace.settings(_SCRIPTED)
    settings["aggregator"] = {"http-keys-file": folder / "edge.keys"}
    async with whole_suite(place, settings, folder) as suite:
        phases = [await _measured(suite, folder, "nobody", pace)]
        for pressure in PRESSURES:
            async with _pressed(suite, folder, pressure, place):
                await asyncio.sleep(SETTLE_S)
                phases.append(await _measured(suite, folder, pressure, pace))
            await asyncio.sleep(SETTLE_S)
    return phases


async def _measured(
    suite: WholeSuite,
    folder: Path,
    pressure: str,
    pace: Pace,
    model: str = SCRIPTED.model,
    call: Expensive | None = None,
) -> Phase:
    progress(f"honest tenants, pressed by {pressure}")
    phase, ends_s = Phase(pressure, pace.think_s), time.monotonic() + pace.lasts_s
    before = await asyncio.to_thread(_lags, suite)
    async with asyncio.TaskGroup() as group:
        for number in range(HONEST):
            if number < OVER_HTTP:
                group.create_task(_over_http(suite, folder, number, phase, ends_s, model))
            else:
                group.create_task(_over_grpc(suite, folder, number, phase, ends_s))
        group.create_task(_documents(suite, folder, phase, ends_s))
        if call is not None and call.modest is not None:
            group.create_task(_modest_calls(suite, folder, phase, ends_s, call))
    after = await asyncio.to_thread(_lags, suite)
    phase.lag_p99_s = worst_quantile(before, after, 0.99)
    return phase


@asynccontextmanager
async def _pressed(
    suite: WholeSuite, folder: Path, pressure: str, place: Path, served: Served = SCRIPTED
) -> AsyncIterator[None]:
    flags = {
        "model": served.model,
        "embedding": served.embedding,
        "kind": pressure,
        "aggregator": suite.address("aggregator"),
        "retriever": suite.address("device-retriever"),
        "http": suite.http,
        "certs": folder,
        "key": GREEDY,
    }
    member = Member("lab.bench.faults.pressure", flags_of(flags))
    async with Fleet({pressure: member}, place) as presser:
        yield
        presser.check_alive()


async def _over_grpc(
    suite: WholeSuite, folder: Path, number: int, phase: Phase, ends_s: float
) -> None:
    access = access_with(folder, "edge", f"honest{number}")
    async with AggregatorClient(suite.address("aggregator"), access=access) as client:
        seed = 0
        while time.monotonic() < ends_s:
            seed += 1
            request = GenerationRequest(
                prompt="A list of things",
                params=GenerationParams(max_tokens=MAX_TOKENS, seed=seed, ignore_eos=True),
            )
            try:
                answer = await client.generate(request, CALL_S)
                phase.ttfts_s.append(answer.ttft_s or inf)
            except Rejected as error:
                phase.failed(error.code.name)
            await asyncio.sleep(phase.think_s)


async def _over_http(
    suite: WholeSuite, folder: Path, number: int, phase: Phase, ends_s: float, model: str
) -> None:
    key, seed = (folder / f"honest{number}").read_text().strip(), 0
    while time.monotonic() < ends_s:
        seed += 1
        body = {"model": model, "prompt": "A", "max_tokens": MAX_TOKENS, "seed": seed}
        began_s, first_s = time.monotonic(), inf
        try:
            async with asyncio.timeout(CALL_S):
                async for event in streamed(HOST, suite.http, body, key):
                    if event.get("choices", [{}])[0].get("text") and first_s == inf:
                        first_s = time.monotonic() - began_s
            phase.ttfts_s.append(first_s)
        except (OSError, ValueError, TimeoutError) as error:
            phase.failed(f"HTTP: {str(error) or type(error).__name__}")
        await asyncio.sleep(phase.think_s)


async def _documents(suite: WholeSuite, folder: Path, phase: Phase, ends_s: float) -> None:
    """Put and search documents again and again until `ends_s`. Only failures are recorded, as times
    are measured of answers."""
    access = access_with(folder, "edge", "honest0")
    async with RetrieverClient(suite.address("device-retriever"), access) as client:
        while time.monotonic() < ends_s:
            try:
                async for _ in client.ingest([Upload("mine", b"honest things")], CALL_S):
                    pass
                await client.search("honest things", timeout_s=CALL_S)
            except Rejected as error:
                phase.failed(f"documents: {error.code.name}")
            await asyncio.sleep(phase.think_s)


async def _modest_calls(
    suite: WholeSuite, folder: Path, phase: Phase, ends_s: float, call: Expensive
) -> None:
    """Ask for a little of what takes no answer, again and again until `ends_s`."""
    assert call.modest is not None, "callers ask only for what there is"
    key, number = (folder / "honest0").read_text().strip(), 0
    while time.monotonic() < ends_s:
        number += 1
        content = json.dumps(call.modest(number)).encode()
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(CALL_S):
                status, _ = await answered(HOST, suite.http, call.path, content, key)
            if status < 300:
                phase.calls_s.append(time.monotonic() - began_s)
            else:
                phase.failed(f"{call.path}: {status}")
        except (OSError, ValueError, TimeoutError) as error:
            phase.failed(f"{call.path}: {str(error) or type(error).__name__}")
        await asyncio.sleep(phase.think_s)


def _lags(suite: WholeSuite) -> Buckets:
    """Return the histogram of event loop lag of every service that has one."""
    lags: dict[str, dict[float, float]] = {}
    for name, port in suite.metrics.items():
        with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=30) as answer:
            if buckets := lag_buckets(answer.read().decode()):
                lags[name] = buckets
    return lags


def lag_buckets(text: str) -> dict[float, float]:
    """Return the counts of the lag histogram on a metrics page, by upper bound."""
    wanted = re.compile(rf'^{LAG_METRIC}_bucket{{.*le="([^"]+)".*}} (\S+)$', re.MULTILINE)
    buckets: dict[float, float] = defaultdict(float)
    for bound, count in wanted.findall(text):
        buckets[float(bound)] += float(count)
    return dict(buckets)


def worst_quantile(before: Buckets, after: Buckets, quantile: float) -> float | None:
    """Return the upper bound within which this share of the observations between `before` and
    `after` lies, in the service where it is largest; None without observations."""
    worst: float | None = None
    for name, counts in after.items():
        earlier = before.get(name, {})
        between = {bound: count - earlier.get(bound, 0.0) for bound, count in counts.items()}
        wanted = quantile * max(between.values())
        if wanted > 0:
            bound = min(bound for bound, count in between.items() if count >= wanted)
            worst = max(bound, worst or 0.0)
    return worst


def _row(phase: Phase, alone: float, pace: Pace) -> Row:
    return make_row(
        slower=pace.slower,
        pressure=phase.pressure,
        requests=len(phase.ttfts_s) + sum(phase.failures.values()),
        failed=sum(phase.failures.values()),
        ttft_p50_s=phase.ttft_s(0.5),
        ttft_p95_s=phase.ttft_s(0.95),
        worse=phase.ttft_s(0.95) / alone,
        lag_p99_s=phase.lag_p99_s,
    )
