"""`auto` against the cloud alone and against every fixed preset, in virtual time.

Pairs of declared acceptance over hardware, round trips, bandwidths and numbers of sessions that
share one verifier; then conditions that change while answers are written. All step times are
declared, so figures do not depend on the machine.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from math import exp, log
from pathlib import Path
from statistics import fmean

from bench.harness.report import Goal, Report, Row, make_row, progress
from bench.harness.suite import Models
from bench.speculation.methods_grid import HARDWARE, VOCABULARY
from tandem.netem.link_model import settings_from
from tandem.simulation.answer import Conditions, Question, SimulatedAnswer, simulate_answers
from tandem.simulation.answer_figures import tokens_per_s_together, verified_acceptance
from tandem.simulation.declared_pair import declared_pair
from tandem.simulation.model_pair import SimulatedPair
from tandem.simulation.simulator import ModelTimes
from tandem.specdec.presets import MAX_DRAFT_LENGTH, PRESETS, Preset

ALONE, CHOSEN = "ar", "auto"
TOKENS = {1: 160, 4: 80, 16: 48, 64: 40}
"""Of each answer, by sessions."""
NEVER_SLOWER, ON_AVERAGE, AT_WORST, UNDER_LOAD = 0.98, 0.97, 0.92, 1.15
JUMPS_S = (2.0, 6.0)
"""When a condition changes, and when it changes back."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What is declared. `rate`: acceptance of every draft."""

    hardware: str
    rtt_s: float
    mbps: float
    rate: float
    sessions: int

    def __str__(self) -> str:
        link = f"{self.rtt_s * 1e3:g} ms, {self.mbps:g} Mbit/s"
        return f"{self.hardware}, {link}, acceptance {self.rate:g}, {self.sessions} sessions"


QUICK = tuple(
    Cell(*choice) for choice in product(("server",), (0.030,), (100.0,), (0.05, 0.6, 0.9), (1, 4))
)
FULL = tuple(
    Cell(*choice)
    for choice in product(
        HARDWARE, (0.0, 0.030, 0.100, 0.300), (10.0, 100.0), (0.05, 0.3, 0.6, 0.9), TOKENS
    )
)


def run(
    report: Report, models: Models, kept: Path | None = None, minutes: float | None = None
) -> None:
    """Fill the report; `models` are not used, since distributions are declared. Cells come in an
    order in which every part of the grid is soon there: with `kept` a run that was ended goes on,
    and a part of it may be looked at."""
    cells = QUICK if report.quick else FULL
    seeds = range(report.seed, report.seed + (1 if report.quick else 3))
    fixed = fixed_presets(report.quick)
    known = read_rows(kept, seeds)
    done = [cell for cell in cells if str(cell) in known]
    rows = [known[str(cell)] | {"limit": limit_over_ar(cell)} for cell in done]
    left = [cell for cell in cells if str(cell) not in known]
    random.Random(report.seed).shuffle(left)
    began_s = time.monotonic()
    for number, cell in enumerate(left):
        spent_min = (time.monotonic() - began_s) / 60
        if minutes is not None and spent_min >= minutes:
            progress(f"{len(left) - number} of {len(cells)} cells are left")
            break
        rest = f", {spent_min / number * (len(left) - number):.0f} min left" if number else ""
        progress(f"cell {len(rows) + 1} of {len(cells)}{rest}: {cell}")
        rows.append(_cell_row(cell, fixed, seeds))
        if kept is not None:
            keep_row(kept, cell, seeds, rows[-1])
    columns = ("pacing", "rtt_s", "mbps", "declared", "sessions", "tokens_per_s")
    report.add("Virtual time", (*columns, "speedup_over_ar", "limit", "best", "over_best"), rows)
    changing = [_changing_row(name, report.seed) for name in CHANGES]
    report.add("Conditions that change", ("change", "tokens_per_s", "speedup_over_ar"), changing)
    report.goals += goals(rows, changing)
    report.notes.append(
        "limit: tokens/s of all sessions relative to ar, were drafts always ready for every pass,"
        f" as many as pay. Mean of the full grid: {_mean_limit(16):.3g} of 16 sessions,"
        f" {_mean_limit(64):.3g} of 64."
    )


def _mean_limit(sessions: int) -> float:
    return _geometric([limit_over_ar(cell) for cell in FULL if cell.sessions == sessions])


def limit_over_ar(cell: Cell) -> float:
    """What no chain of drafts gets beyond, by what passes cost alone."""
    pacing = HARDWARE[cell.hardware]
    times = ModelTimes(pacing.draft_s, pacing.verify_first_s, pacing.verify_further_s)

    def tokens_per_s(length: int) -> float:
        tokens = sum(cell.rate**count for count in range(length + 1))
        return cell.sessions * tokens / times.pass_s(cell.sessions * (1 + length))

    return max(map(tokens_per_s, range(MAX_DRAFT_LENGTH + 1))) / tokens_per_s(0)


def read_rows(kept: Path | None, seeds: Sequence[int]) -> dict[str, Row]:
    """Of earlier runs over the same seeds, by cell; a line that was cut short is none."""
    found: dict[str, Row] = {}
    for line in kept.read_text().splitlines() if kept is not None and kept.exists() else ():
        with suppress(json.JSONDecodeError):
            stored = json.loads(line)
            if stored["seeds"] == list(seeds):
                found[stored["cell"]] = stored["row"]
    return found


def keep_row(kept: Path, cell: Cell, seeds: Sequence[int], row: Row) -> None:
    """Add it, on a line of its own whatever was cut short before."""
    with kept.open("a") as file:
        stored = {"cell": str(cell), "seeds": list(seeds), "row": row}
        file.write(f"\n{json.dumps(stored)}\n")


def fixed_presets(quick: bool) -> dict[str, Preset]:
    """What is chosen from in hindsight, by names: presets, in stop and wait of several lengths."""
    found = {name: PRESETS[name] for name in ("picospec", "stream")}
    for length in (4,) if quick else (2, 4, 8):
        for name in ("coupled", "dssd", "predraft"):
            found[f"{name} {length}"] = PRESETS[name].with_draft_length(length)
    return found


def _cell_row(cell: Cell, fixed: Mapping[str, Preset], seeds: Sequence[int]) -> Row:
    speeds = {
        name: fmean(_tokens_per_s(preset, cell, seed) for seed in seeds)
        for name, preset in {ALONE: PRESETS[ALONE], CHOSEN: PRESETS[CHOSEN], **fixed}.items()
    }
    chosen, alone = speeds.pop(CHOSEN), speeds[ALONE]
    best = max(speeds, key=lambda name: speeds[name])
    return make_row(
        preset=CHOSEN,
        pacing=cell.hardware,
        rtt_s=cell.rtt_s,
        mbps=cell.mbps,
        tokens_per_s=chosen,
        speedup_over_ar=chosen / alone,
        declared=cell.rate,
        sessions=cell.sessions,
        best=best,
        over_best=chosen / speeds[best],
        limit=limit_over_ar(cell),
    )


def _tokens_per_s(preset: Preset, cell: Cell, seed: int) -> float:
    pacing = HARDWARE[cell.hardware]
    times = ModelTimes(pacing.draft_s, pacing.verify_first_s, pacing.verify_further_s)
    conditions = Conditions(times, cell.rtt_s, cell.mbps, padded_vocabulary=VOCABULARY)
    pair, tokens = declared_pair(cell.rate, seed=seed), TOKENS[cell.sessions]
    questions = [
        Question((number + 1, seed), tokens, seed, start_s=number * 0.618 % 1 * 4 * times.pass_s(1))
        for number in range(cell.sessions)
    ]
    return tokens_per_s_together(simulate_answers(preset, pair, conditions, questions))


@dataclass(frozen=True, slots=True)
class Change:
    """Something that changes and changes back: the pair, the link, or who else asks."""

    pair: Callable[[int], SimulatedPair] = lambda seed: declared_pair(0.8, seed=seed)
    before: float | None = None
    after: float | None = None
    mbps: tuple[float, float] | None = None
    others: int = 0


CHANGES = {
    "acceptance 0.9, 0.05, 0.9": Change(
        lambda seed: declared_pair(lambda at: 0.05 if 40 <= at < 120 else 0.9, seed=seed)
    ),
    "acceptance 0.05, 0.9, 0.05": Change(
        lambda seed: declared_pair(lambda at: 0.9 if 40 <= at < 120 else 0.05, seed=seed)
    ),
    "round trip 10, 300, 10 ms": Change(before=0.010, after=0.300),
    "round trip 300, 10, 300 ms": Change(before=0.300, after=0.010),
    "bandwidth 100, 1, 100 Mbit/s": Change(mbps=(100.0, 1.0)),
    "verifier idle, 15 others, idle": Change(others=15),
}


def _changing_row(name: str, seed: int) -> Row:
    speeds = [_speed(_changing(PRESETS[preset], CHANGES[name], seed)) for preset in (ALONE, CHOSEN)]
    return make_row(
        preset=CHOSEN,
        seed=seed,
        tokens_per_s=speeds[1],
        speedup_over_ar=speeds[1] / speeds[0],
        acceptance_rate=verified_acceptance(_changing(PRESETS[CHOSEN], CHANGES[name], seed)),
        change=name,
    )


def _changing(preset: Preset, change: Change, seed: int) -> list[SimulatedAnswer]:
    rtt_s, (mbps, narrow) = change.before or 0.030, change.mbps or (100.0, 100.0)
    conditions = Conditions(ModelTimes(), rtt_s, mbps)
    if change.after is not None or change.mbps is not None:
        other = settings_from(change.after or rtt_s, narrow)
        moments = zip(JUMPS_S, (other, settings_from(rtt_s, mbps)), strict=True)
        conditions = replace(conditions, link_changes=tuple(moments))
    questions = [Question((1, seed), 200, seed)]
    questions += [
        Question((number + 2, seed), 20, seed, start_s=JUMPS_S[0] + 0.05 * number)
        for number in range(change.others)
    ]
    return simulate_answers(preset, change.pair(seed), conditions, questions)


def _speed(answers: Sequence[SimulatedAnswer]) -> float:
    """Tokens of each answer per second that it took, summed."""
    return sum(len(answer.token_ids) / answer.last_commit_s for answer in answers)


def goals(rows: Sequence[Row], changing: Sequence[Row]) -> list[Goal]:
    """Never slower than the cloud alone, about as fast as the best, and faster under load."""
    over_ar = [row["speedup_over_ar"] for row in rows]
    over_best = [row["over_best"] for row in rows]
    words = f"of {len(rows)} cells"
    found = []
    if rows:
        found += [
            Goal(f"auto / ar, worst {words}", min(over_ar), NEVER_SLOWER, "at least"),
            Goal(
                f"auto / best preset, mean {words}", _geometric(over_best), ON_AVERAGE, "at least"
            ),
            Goal(f"auto / best preset, worst {words}", min(over_best), AT_WORST, "at least"),
        ]
    if changing:
        worst = min(row["speedup_over_ar"] for row in changing)
        name = f"auto / ar while conditions change, worst of {len(changing)}"
        found.append(Goal(name, worst, NEVER_SLOWER, "at least"))
    for sessions in (16, 64):
        ratios = [row["speedup_over_ar"] for row in rows if row["sessions"] == sessions]
        if ratios:
            name = f"auto / ar, {sessions} sessions, mean of {len(ratios)} cells"
            found.append(Goal(name, _geometric(ratios), UNDER_LOAD, "at least"))
    return found


def _geometric(ratios: Sequence[float]) -> float:
    return exp(sum(map(log, ratios)) / len(ratios))
