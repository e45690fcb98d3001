"""The cost model against the machines: predicted ÷ simulated tokens per second of all sessions.

Pairs of declared acceptance over hardware, links, numbers of sessions on one verifier, and every
exact preset of a schedule that the model knows. Both sides are in virtual time, so a figure does
not depend on the machine. A cell's simulation may be kept in a file and used again; the prediction
is always made anew, from the acceptance and the pre-draft hits that the simulation saw.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from itertools import product
from pathlib import Path
from statistics import median

from lab.analysis.cost_models import LinkTimes
from lab.analysis.cost_of_preset import Sizes, predict
from lab.bench.harness.report import Goal, Report, Row, Table, make_row, progress
from lab.bench.harness.suite import Models
from lab.bench.speculation.methods_grid import HARDWARE, RATES_MBPS, RTTS_S, VOCABULARY
from lab.simulation.answer_figures import steady_tokens_per_s, undrafted_rate
from tandem.control.conditions import PairTimes
from tandem.core.errors import InvalidArgument
from tandem.specdec.choices import Control
from tandem.specdec.presets import PRESETS
from tandem.testing.simulation.answer import (
    Conditions,
    Question,
    simulate_answers,
    verified_acceptance,
)
from tandem.testing.simulation.declared_pair import declared_pair
from tandem.testing.simulation.model_times import ModelTimes

CLOSE = 0.07
WANTED_SHARE = 0.95
ACCEPTANCES = (0.05, 0.3, 0.6, 0.9)
TOKENS = {1: 960, 4: 320, 16: 128, 64: 96}
"""Of each answer, by sessions; chance weighs a few hundredths then. With fewer of many sessions the
first are done before all have fallen into step."""
WORDS = 64
"""Vocabulary of the declared pair: small ones draw sooner; whole distributions count padded."""
WARM = 0.25
"""The share of each answer that is left out, while controllers learn and sessions fall into
step."""
SAMPLED = 200
QUICK_SAMPLED = 40


@dataclass(frozen=True, slots=True)
class Cell:
    """A preset, and what is declared."""

    preset: str
    hardware: str
    rtt_s: float
    mbps: float
    rate: float
    sessions: int

    @property
    def times(self) -> ModelTimes:
        pacing = HARDWARE[self.hardware]
        return ModelTimes(pacing.draft_s, pacing.verify_first_s, pacing.verify_further_s)

    def __str__(self) -> str:
        link = f"{self.rtt_s * 1e3:g} ms, {self.mbps:g} Mbit/s"
        return f"{self.preset}, {self.hardware}, {link}, {self.rate:g}, {self.sessions} sessions"


@dataclass(frozen=True, slots=True)
class Simulated:
    """What the machines did in a cell. `acceptance_rate` is None where nothing was judged."""

    tokens_per_s: float
    acceptance_rate: float | None
    miss_rate: float | None


def run(report: Report, models: Models, cells: int | None = None, kept: Path | None = None) -> None:
    """Fill the report; `models` are not used, since distributions are declared. `cells`: how many,
    chosen by the seed, 0 for all; `kept`: a file of simulations, to go on with."""
    count = (QUICK_SAMPLED if report.quick else SAMPLED) if cells is None else cells
    chosen = chosen_cells(count, report.seed)
    known = dict(_read(kept, report.seed))
    rows = []
    for number, cell in enumerate(chosen, start=1):
        if cell not in known:
            progress(f"cell {number} of {len(chosen)}: {cell}")
            known[cell] = simulate(cell, report.seed)
            _keep(kept, report.seed, cell, known[cell])
        rows.append(_row(cell, known[cell], report.seed))
    worst = sorted(rows, key=lambda row: -abs(row["ratio"] - 1))[:20]
    columns = ("preset", "pacing", "rtt_s", "mbps", "declared", "sessions", "tokens_per_s", "ratio")
    report.rows += rows
    report.tables.append(Table("The cells furthest off: predicted / simulated", columns, worst))
    for name in ("preset", "sessions", "declared"):
        shares = list(_shares(rows, name))
        shown = (name, "cells", "close", "lowest", "median", "highest")
        report.tables.append(Table(f"By {name}", shown, shares))
    report.goals += goals(rows)
    report.notes.append(
        f"Close: predicted within {CLOSE:.0%} of simulated tokens/s of all sessions, after the"
        f" first {WARM:.0%} of each answer. {len(rows)} of {len(all_cells())} cells."
    )


def all_cells() -> list[Cell]:
    """Return every cell of an exact preset that has a cost model: `auto`, which changes its
    schedule, has none, nor has a cloud that drafts."""
    names = [
        name
        for name, preset in PRESETS.items()
        if not (preset.lossy or preset.drafts_in_cloud) and preset.control is not Control.LEAST_COST
    ]
    axes = (HARDWARE, RTTS_S, RATES_MBPS, ACCEPTANCES, TOKENS)
    return [Cell(*choice) for choice in product(names, *axes)]


def chosen_cells(count: int, seed: int) -> list[Cell]:
    """Return `count` cells chosen at random by the seed; 0: all."""
    cells = all_cells()
    random.Random(seed).shuffle(cells)
    return cells[: count or len(cells)]


def simulate(cell: Cell, seed: int) -> Simulated:
    """Run the state machines in a cell. Its sessions begin at slightly different moments."""
    pair = declared_pair(cell.rate, seed=seed, vocabulary_size=WORDS)
    tokens = TOKENS[cell.sessions]
    conditions = Conditions(cell.times, cell.rtt_s, cell.mbps, padded_vocabulary=VOCABULARY)
    first_s = 4 * cell.times.pass_s(1)
    questions = [
        Question((number, 7, seed % WORDS), tokens, seed, start_s=number * 0.618 % 1 * first_s)
        for number in range(cell.sessions)
    ]
    answers = simulate_answers(PRESETS[cell.preset], pair, conditions, questions)
    return Simulated(
        steady_tokens_per_s(answers, int(WARM * tokens)),
        verified_acceptance(answers),
        undrafted_rate(answers),
    )


def predicted_tokens_per_s(cell: Cell, seen: Simulated) -> float:
    """Return the tokens/s of all sessions, by the preset's cost model."""
    times = cell.times
    bytes_per_s = cell.mbps * 1e6 / 8
    predicted = predict(
        PRESETS[cell.preset],
        PairTimes(times.draft_s, times.verify_first_s, times.verify_further_s),
        LinkTimes(cell.rtt_s, bytes_per_s, bytes_per_s),
        acceptance_rate=cell.rate if seen.acceptance_rate is None else seen.acceptance_rate,
        sizes=Sizes(VOCABULARY),
        miss_rate=1.0 if seen.miss_rate is None else seen.miss_rate,
        sessions=cell.sessions,
    )
    return cell.sessions / predicted.tpot_s


def _row(cell: Cell, seen: Simulated, seed: int) -> Row:
    predicted = predicted_tokens_per_s(cell, seen)
    return make_row(
        preset=cell.preset,
        pacing=cell.hardware,
        rtt_s=cell.rtt_s,
        mbps=cell.mbps,
        seed=seed,
        tokens_per_s=seen.tokens_per_s,
        acceptance_rate=seen.acceptance_rate,
        declared=cell.rate,
        sessions=cell.sessions,
        predicted_tokens_per_s=predicted,
        ratio=predicted / seen.tokens_per_s,
    )


def _shares(rows: Sequence[Row], name: str) -> Iterator[Row]:
    for value in dict.fromkeys(row[name] for row in sorted(rows, key=lambda row: str(row[name]))):
        ratios = [row["ratio"] for row in rows if row[name] == value]
        yield {
            name: value,
            "cells": len(ratios),
            "close": share_close(ratios),
            "lowest": min(ratios),
            "median": median(ratios),
            "highest": max(ratios),
        }


def share_close(ratios: Sequence[float]) -> float:
    """Return the share of predictions that are close."""
    return sum(abs(ratio - 1) <= CLOSE for ratio in ratios) / len(ratios)


def goals(rows: Sequence[Row]) -> list[Goal]:
    """Return the goal that nearly all predictions are close."""
    share = share_close([row["ratio"] for row in rows])
    name = f"share of {len(rows)} cells predicted within {CLOSE:.0%}"
    return [Goal(name, share, WANTED_SHARE, "at least")]


def _read(kept: Path | None, seed: int) -> Iterator[tuple[Cell, Simulated]]:
    if kept is None or not kept.exists():
        return
    for number, line in enumerate(kept.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
            if row["seed"] == seed:
                yield Cell(*row["cell"]), Simulated(**row["simulated"])
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidArgument("kept", f"{kept}, line {number}: {error!r}") from None


def _keep(kept: Path | None, seed: int, cell: Cell, simulated: Simulated) -> None:
    if kept is None:
        return
    row = {"seed": seed, "cell": astuple(cell), "simulated": asdict(simulated)}
    with kept.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
