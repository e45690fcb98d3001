"""What `bench auto` holds its rows against: never slower than the cloud without an edge, which may
draft itself, and about as fast as the best preset in each cell."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from statistics import fmean

from lab.bench.harness.report import Goal, Row

NEVER_SLOWER = 0.98
ON_AVERAGE = 0.97
AT_WORST = 0.92
BASELINE = "better of ar and cloud-draft"
"""What the cloud does without an edge."""


def goals(grid: Sequence[Row], changing: Sequence[Row], load: Sequence[Row]) -> list[Goal]:
    """Return the goals of the cells of the grid, of conditions that change, and of passes bound by
    memory."""
    goals_ = []
    for rows, words in (
        (grid, f"of {len(grid)} cells"),
        (changing, f"of {len(changing)} changes"),
        (load, f"of {len(load)} cells bound by memory"),
    ):
        if rows:
            alone, best = _all(rows, "over_baseline"), _all(rows, "over_best")
            slowest = f"auto / {BASELINE}, worst {words}"
            goals_ += [
                Goal(slowest, min(alone), NEVER_SLOWER, "at least"),
                Goal(f"auto / best preset, mean {words}", mean(best), ON_AVERAGE, "at least"),
                Goal(f"auto / best preset, worst {words}", min(best), AT_WORST, "at least"),
            ]
    return goals_


def mean(ratios: Sequence[float]) -> float:
    """Return the geometric mean."""
    return exp(fmean(map(log, ratios)))


def _all(rows: Sequence[Row], figure: str) -> list[float]:
    return [row[figure] for row in rows]
