"""What `bench auto` holds its rows against: never slower than the cloud without an edge, which may
draft itself, about as fast as the best preset in each cell, and no slower than the best one preset
for all sessions together.

Invariant: ratios are of the same texts: each seed's figure is relative to the same seed's of the
other preset, and the spread is what such ratios differ by from seed to seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import fmean

from lab.bench.harness.report import Goal, Row

NEVER_SLOWER = 0.98
ON_AVERAGE = 0.97
AT_WORST = 0.92
TOGETHER = 1.0
UNDER_LOAD = 1.15
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
    return [*goals_, *_together(grid, "declared passes"), *_together(load, "bound by memory")]


def _together(rows: Sequence[Row], words: str) -> list[Goal]:
    """Return goals for the tokens/s of all sessions, by number of sessions: relative to the one
    preset that is best for that number, and relative to the cloud alone where there are many. Which
    drafts are right is partly chance, so the first kind is missed only by more than the standard
    error over the seeds. Where what passes leave is less than what a goal asks for, its name says
    so."""
    goals_ = []
    for sessions in sorted({row["sessions"] for row in rows}):
        matching = [row for row in rows if row["sessions"] == sessions]
        name = f"{sessions} sessions, {words}"
        best, ratio = min(ratios_to_each(matching).items(), key=lambda item: item[1].mean)
        spread = f"± {ratio.error:.2g}" if ratio.error else "one seed"
        against = f"auto / best one preset ({best}), {name} ({spread})"
        goals_.append(Goal(against, ratio.mean, TOGETHER - ratio.error, "at least"))
        if sessions >= 16:
            limit = mean(_all(matching, "limit"))
            out_of_reach = ": out of reach" if limit < UNDER_LOAD else ""
            name += f" (passes leave {limit:.3g}{out_of_reach})"
            faster = mean(_all(matching, "speedup_over_ar"))
            goals_.append(Goal(f"auto / ar, {name}", faster, UNDER_LOAD, "at least"))
    return goals_


@dataclass(frozen=True, slots=True)
class Ratio:
    """A geometric mean, and its standard error over seeds; 0 where no row has several."""

    mean: float
    error: float


def ratios_to_each(rows: Sequence[Row]) -> dict[str, Ratio]:
    """Return the ratio of `auto` to each other preset that all rows have, over the rows and the
    seeds of both. Where the cloud has no draft model there is no `cloud-draft`."""
    chosen = rows[0]["preset"]
    everywhere = set.intersection(*(set(row["speeds"]) for row in rows))
    names = [name for name in rows[0]["speeds"] if name in everywhere and name != chosen]
    return {name: _ratio([_logs(row, name) for row in rows]) for name in names}


def _logs(row: Row, name: str) -> list[float]:
    """Return the logarithm of `auto` ÷ preset `name` for each seed; a preset that was not among the
    best has only the first seed."""
    chosen = row["speeds"][row["preset"]]
    other = row["speeds"][name]
    return [log(a / b) for a, b in zip(chosen, other, strict=False)]


def _ratio(logs: Sequence[Sequence[float]]) -> Ratio:
    """Return the geometric mean of ratios and its standard error. `logs`: their logarithms, by row
    and seed. The variance between seeds is taken to be the same in all rows."""
    squares = sum((value - fmean(of_row)) ** 2 for of_row in logs for value in of_row)
    freedom = sum(len(of_row) - 1 for of_row in logs)
    variance = squares / freedom if freedom else 0.0
    error = sqrt(variance * sum(1 / len(of_row) for of_row in logs)) / len(logs)
    return Ratio(exp(fmean(map(fmean, logs))), error)


def mean(ratios: Sequence[float]) -> float:
    """Return the geometric mean."""
    return exp(fmean(map(log, ratios)))


def _all(rows: Sequence[Row], figure: str) -> list[float]:
    return [row[figure] for row in rows]
