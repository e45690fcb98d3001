"""Presets that choose while an answer is written (draft length, tree, truncation), each against the
best of its own fixed settings in hindsight, over links of two directions.

In virtual time through the state machines; step times are declared (24 ms a draft, 72 + 3 ms a
pass), as are acceptance, or how alike two models are whose distributions have long tails. Every
fixed setting writes an answer, and those that are best a further one for each seed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

from lab.bench.harness.report import Goal, Report, Row, duration_words, make_row, progress
from lab.bench.harness.suite import Models
from lab.bench.speculation.adaptive_cells import FIRST_TOKENS, SEEDS, Cell, grid
from lab.bench.speculation.auto_rows import keep_row, read_rows, time_left
from tandem.specdec.presets import Preset

ON_AVERAGE = 0.97
AT_WORST = 0.93
SEMIFINALISTS = 10
FINALISTS = 3
"""So many of the fixed settings that are best in a short answer write a long one, and so many of
these are compared with every seed."""
COLUMNS = (
    "preset",
    "mbps_up",
    "mbps_down",
    "rtt_s",
    "declared",
    "tokens_per_s",
    "best",
    "over_best",
)


def run(
    report: Report, models: Models, kept: Path | None = None, minutes: float | None = None
) -> None:
    """Fill the report; `models` are not used, since distributions are declared. With `kept`, a run
    that was ended goes on; after `minutes` no further cell begins."""
    seeds = range(report.seed, report.seed + (1 if report.quick else SEEDS))
    made = {"seeds": list(seeds), "commit": report.machine.commit, "experiment": "adaptive"}
    cells = grid(report.quick)
    known = read_rows(kept, made)
    may_begin = time_left(minutes)
    began_s = time.monotonic()
    left = [cell for cell in cells if str(cell) not in known]
    for number, cell in enumerate(left, start=1):
        if not may_begin():
            progress(f"{len(left) - number + 1} of {len(cells)} cells are left")
            break
        known[str(cell)] = row = cell_row(cell, seeds)
        if kept is not None:
            keep_row(kept, cell, made, row)
        left_s = (time.monotonic() - began_s) / number * (len(left) - number)
        progress(f"{number} of {len(left)}, {duration_words(left_s)} left: {cell}")
    rows = [known[str(cell)] for cell in cells if str(cell) in known]
    report.add("Virtual time", COLUMNS, rows)
    report.goals += goals(rows)
    report.notes.append(
        "best: the fixed setting that is fastest in hindsight, over all seeds; over_best: tokens"
        " per second relative to it. Draft distributions of tslt and mc-dsd follow Zipf's law over"
        " 8192 tokens; those of the other presets count as if the vocabulary had 32,000."
    )


def cell_row(cell: Cell, seeds: Sequence[int]) -> Row:
    """Return the row of a cell: a preset that chooses while it runs, against the best of its fixed
    settings."""
    fixed = cell.fixed()
    first, *others = seeds
    names = list(fixed)
    if len(names) > SEMIFINALISTS:
        names = _fastest(cell, fixed, first, SEMIFINALISTS)
    speeds = {words: [cell.tokens_per_s(fixed[words], first)] for words in names}
    finalists = sorted(speeds, key=lambda words: speeds[words][0], reverse=True)[:FINALISTS]
    for words in finalists:
        speeds[words] += [cell.tokens_per_s(fixed[words], seed) for seed in others]
    chosen = fmean(cell.tokens_per_s(cell.chosen, seed) for seed in seeds)
    means = {words: fmean(speeds[words]) for words in finalists}
    best = max(means, key=lambda words: means[words])
    return make_row(
        preset=cell.preset,
        rtt_s=cell.rtt_s,
        tokens_per_s=chosen,
        mbps_up=cell.mbps_up,
        mbps_down=cell.mbps_down,
        declared=cell.rate,
        best=best,
        over_best=chosen / means[best],
    )


def _fastest(cell: Cell, fixed: Mapping[str, Preset], seed: int, count: int) -> list[str]:
    """Return the names of the `count` fixed settings that write a short answer fastest."""
    speeds = {
        words: cell.tokens_per_s(preset, seed, FIRST_TOKENS) for words, preset in fixed.items()
    }
    return sorted(speeds, key=lambda words: speeds[words], reverse=True)[:count]


def goals(rows: Sequence[Mapping[str, Any]]) -> list[Goal]:
    """Return the goals: for the mean of each preset's cells, and for the worst of them."""
    goals_ = []
    for preset in dict.fromkeys(row["preset"] for row in rows):
        ratios = [row["over_best"] for row in rows if row["preset"] == preset]
        words = f"{preset} / its best fixed setting"
        mean = exp(fmean(map(log, ratios)))
        goals_ += [
            Goal(f"{words}, mean of {len(ratios)} cells", mean, ON_AVERAGE, "at least"),
            Goal(f"{words}, worst cell", min(ratios), AT_WORST, "at least"),
        ]
    return goals_
