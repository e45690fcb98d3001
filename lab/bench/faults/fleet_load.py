"""`bench fleet`: many chats over HTTP on edges and verifiers that are real processes.

Against the cloud alone (`ar`), and a cloud that drafts for itself (`cloud-draft`): TTFT, TPOT and
ITL, goodput, fairness. Then what a user of a fleet notices while it is killed, upgraded and
pressed. Models are scripted and paced by declared times; the machine has to be quick enough for
them, and figures of time say so only if it is quiet. A draft step in the cloud takes a fifth of one
at the edge, and does not wait for passes.
Under many streams all declared times are dilated (as in time-warped emulation: Gupta et al. 2006),
so that the machine's own work counts as much less, and figures are told in undilated time.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lab.bench.faults.chat_load import Traffic, chats, load_figures
from lab.bench.faults.fleet_arms import (
    CHEAP_TOKENS,
    PACING,
    Disturbed,
    Pressed,
    killed,
    pressed,
    upgraded,
)
from lab.bench.faults.fleet_suite import FleetShape, FleetSuite, fleet_suite
from lab.bench.faults.fleet_validation import VALIDATED, validated
from lab.bench.harness.baselines import ALONE, CLOUD_DRAFT
from lab.bench.harness.report import Goal, Report, Row, make_row, progress
from lab.bench.harness.suite import Models
from lab.commands.sim_fleet import simulated_row
from tandem.core.errors import InvalidArgument
from tandem.net.process import run_loop

CHOSEN = "auto"
LOAD = "load"
STREAMS = (1, 8, 32, 100, 200)
QUICK_STREAMS = (1, 8, 32)
MANY = 32
DILATION = 5.0
"""Of more streams than that, where it is not given."""
SLO_S = (1.5, 0.120)
"""TTFT and TPOT that an answer has to keep to."""
THINK_S = 1.0
PHASE_S = 20.0
QUICK_PHASE_S = 8.0
WARM_S = 2.0
DEFAULT_RUNNING = 16
"""Requests that an aggregator serves at once, where its settings do not say."""
VALIDATED_S = 240.0
QUICK_VALIDATED_S = 90.0
SIMULATED_WITHIN = 0.1
SIMULATED_EDGES = 10_000
SIMULATED_VERIFIERS = 200
SIMULATED_ROUNDS_PER_S = 100_000
SIMULATED_S = 20
QUICK_SIMULATED_S = 5
KILL_PAUSE_S = 3.0
DRAIN_PAUSE_S = 0.5
WORSE_AT_MOST = 1.5
LOAD_COLUMNS = (
    *(
        "preset",
        "streams",
        "dilation",
        "processors",
        "answers",
        "failed",
        "tokens_per_s",
        "goodput",
        "within_slo",
    ),
    *(f"{name}_p{share}_s" for name in ("ttft", "tpot", "itl") for share in (50, 95, 99)),
    "jain",
)
SIMULATED_COLUMNS = (
    *("preset", "answers", "tokens_per_s", "simulated_tokens_per_s"),
    *("tpot_p50_s", "simulated_tpot_p50_s", "tpot_p95_s", "simulated_tpot_p95_s"),
)
SPEED_COLUMNS = ("preset", "simulated_rounds", "rounds_per_processor_s", "rounds_per_s")
FAULT_COLUMNS = ("fault", "streams", "answers", "failed", "tokens_wrong", "usual_s", "pause_s")


def run(
    report: Report,
    models: Models,
    part: Sequence[str] = (),
    streams: Sequence[int] = (),
    preset: str | None = None,
    dilation: float | None = None,
) -> None:
    """Measure chats under load, and what faults do to them; all models are scripted, whatever
    `models` are. `part`: only these; empty: all. `streams`, `preset` and `dilation` are those of
    the load. Raises InvalidArgument for an unknown part."""
    if unknown := set(part) - set(PARTS):
        raise InvalidArgument("part", f"there is no {min(unknown)}; there are {', '.join(PARTS)}")
    for name in part or PARTS:
        with tempfile.TemporaryDirectory(prefix="tandem-fleet-") as place:
            progress(name)
            if name == LOAD:
                counts = streams or (QUICK_STREAMS if report.quick else STREAMS)
                run_loop(_load(report, Path(place), counts, preset or CHOSEN, dilation))
            else:
                run_loop(ARMS[name](report, Path(place)))


async def _load(
    report: Report, place: Path, streams: Sequence[int], preset: str, dilation: float | None
) -> None:
    rows = []
    by_dilation: dict[float, list[int]] = {}
    for count in streams:
        scale = dilation or (DILATION if count > MANY else 1.0)
        by_dilation.setdefault(scale, []).append(count)
    for factor, counts in by_dilation.items():
        logs = place / f"{factor:g}"
        logs.mkdir()
        shape = FleetShape(PACING, cloud_draft=True, replicas=True).dilated(factor)
        async with fleet_suite(logs, shape) as suite:
            for count in counts:
                for name in dict.fromkeys((ALONE, CLOUD_DRAFT, preset)):
                    progress(f"{count} chats by {name}")
                    figures = await _loaded(report, suite, name, count, factor)
                    rows.append(_load_row(report, name, count, figures))
    ttft_s, tpot_s = SLO_S
    report.add(
        "Chats over HTTP on 1 edge and 2 verifiers; goodput: answers/s with"
        f" TTFT ≤ {ttft_s:g} s and TPOT ≤ {tpot_s * 1e3:g} ms; all times ÷ dilation",
        LOAD_COLUMNS,
        rows,
    )
    report.goals.append(
        Goal("answers that failed", sum(row["failed"] for row in rows), 0, "at most")
    )


async def _loaded(
    report: Report, suite: FleetSuite, preset: str, count: int, dilation: float
) -> dict[str, object]:
    """Return the figures of one phase, in undilated time."""
    lasts_s = QUICK_PHASE_S if report.quick and count <= MANY else PHASE_S
    traffic = Traffic(preset, think_s=THINK_S * dilation, seed=report.seed)
    over = asyncio.Event()
    asking = asyncio.create_task(chats(suite.http, traffic, count, over))
    await asyncio.sleep(WARM_S * dilation)
    began_s, worked_s = time.monotonic(), suite.fleet.cpu_s() + time.process_time()
    await asyncio.sleep(lasts_s * dilation)
    ended_s = time.monotonic()
    worked_s = suite.fleet.cpu_s() + time.process_time() - worked_s
    over.set()
    turns = [turn.undilated(dilation) for turn in await asking]
    figures = load_figures(turns, began_s / dilation, ended_s / dilation, SLO_S)
    return {"dilation": dilation, "processors": worked_s / (ended_s - began_s)} | figures


def _load_row(report: Report, preset: str, streams: int, figures: dict[str, object]) -> Row:
    common = {"pacing": PACING.to_json(), "seed": report.seed}
    return make_row(preset=preset, **common, streams=streams, **figures)


async def _killed(report: Report, place: Path) -> None:
    _tell(report, await killed(place, MANY), KILL_PAUSE_S)


async def _upgraded(report: Report, place: Path) -> None:
    for pacing in (PACING, CHEAP_TOKENS):
        _tell(report, await upgraded(place, MANY, pacing), DRAIN_PAUSE_S)


def _tell(report: Report, disturbed: Disturbed, pause_s: float) -> None:
    row = make_row(
        fault=disturbed.what,
        seed=report.seed,
        streams=disturbed.chats,
        answers=len(disturbed.turns),
        failed=disturbed.failed,
        tokens_wrong=disturbed.wrong,
        usual_s=disturbed.usual_s,
        pause_s=disturbed.pause_s,
        lasted_s=disturbed.took_s,
        moves=disturbed.moves,
    )
    report.add(f"{disturbed.what}, {disturbed.chats} streams", FAULT_COLUMNS, [row])
    report.goals += [
        Goal(f"tokens lost or different, {disturbed.what}", disturbed.wrong, 0, "at most"),
        Goal(f"longest pause (s), {disturbed.what}", disturbed.pause_s, pause_s, "at most"),
        Goal(
            f"sessions that moved, {disturbed.what}", sum(disturbed.moves.values()), 1, "at least"
        ),
    ]


async def _greedy(report: Report, place: Path) -> None:
    lasts_s = QUICK_PHASE_S if report.quick else PHASE_S
    load: Pressed = await pressed(place, lasts_s, DEFAULT_RUNNING)
    rows = [
        make_row(
            pressure=name,
            seed=report.seed,
            answers=len(turns),
            **{"failed": sum(bool(turn.failure) for turn in turns)},
            tpot_p95_s=load.tpot_s(turns),
        )
        for name, turns in (("nobody", load.alone), ("greedy", load.beside))
    ]
    columns = ("pressure", "answers", "failed", "tpot_p95_s")
    report.add("Nine holders, beside one with 64 long answers at once", columns, rows)
    report.goals += [
        Goal("p95 TPOT ÷ alone, greedy", load.worse, WORSE_AT_MOST, "at most"),
        Goal("answers that failed, greedy", load.failed, 0, "at most"),
    ]


async def _simulated(report: Report, place: Path) -> None:
    validations = await validated(
        place, QUICK_VALIDATED_S if report.quick else VALIDATED_S, report.seed
    )
    rows = [
        make_row(
            preset=validation.preset,
            seed=report.seed,
            acceptance_rate=validation.acceptance_rate,
            answers=validation.answers,
            failed=validation.failed,
            tokens_per_s=validation.tokens_per_s[0],
            simulated_tokens_per_s=validation.tokens_per_s[1],
            tpot_p50_s=validation.tpot_p50_s[0],
            simulated_tpot_p50_s=validation.tpot_p50_s[1],
            tpot_p95_s=validation.tpot_p95_s[0],
            simulated_tpot_p95_s=validation.tpot_p95_s[1],
        )
        for validation in validations
    ]
    report.add("16 edges, 2 verifiers: real processes, and simulated", SIMULATED_COLUMNS, rows)
    for validation in validations:
        for name, pair in (
            ("tokens/s", validation.tokens_per_s),
            ("p95 TPOT", validation.tpot_p95_s),
        ):
            off = abs(validation.ratio(pair) - 1)
            what = f"|simulated ÷ measured − 1|, {name}, {validation.preset}"
            report.goals.append(Goal(what, off, SIMULATED_WITHIN, "at most"))


async def _speed(report: Report, place: Path) -> None:
    """Measure how fast the simulation itself is, by processor time, which other processes do not
    affect."""
    seconds = QUICK_SIMULATED_S if report.quick else SIMULATED_S
    fleet = f"--edges {SIMULATED_EDGES} --verifiers {SIMULATED_VERIFIERS} --seconds {seconds}"
    options = f"{fleet} --seed {report.seed}".split()
    rows = []
    for name in VALIDATED:
        progress(f"{SIMULATED_EDGES} edges by {name}")
        rows.append(make_row(seed=report.seed, **simulated_row([*options, "--preset", name])))
    report.add(f"Simulated: {fleet}", SPEED_COLUMNS, rows)
    for row in rows:
        what = f"simulated rounds in a second of processor time, {row['preset']}"
        goal = Goal(what, row["rounds_per_processor_s"], SIMULATED_ROUNDS_PER_S, "at least")
        report.goals.append(goal)


_Part = Callable[[Report, Path], Coroutine[Any, Any, None]]
ARMS: Mapping[str, _Part] = MappingProxyType(
    {"kill": _killed, "drain": _upgraded, "greedy": _greedy, "simulated": _simulated}
    | {"speed": _speed}
)
PARTS = (LOAD, *ARMS)
