"""`auto` against the cloud alone and against every fixed preset.

In virtual time: pairs of declared acceptance over hardware, round trips, bandwidths and numbers of
sessions that share one verifier; conditions that change while answers are written; and a load on
passes that are bound by memory. All step times are declared, so figures do not depend on the
machine. With `--real`, instead, some cells as processes.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from math import exp, log
from pathlib import Path

from bench.harness.plots import panels
from bench.harness.report import Goal, Report, Row, duration_words, progress
from bench.harness.suite import Models
from bench.speculation.auto_cases import CHANGES, GRID, LOAD, MEMORY_BOUND, QUICK
from bench.speculation.auto_real import PAIRS, draw_real, measure_real
from bench.speculation.auto_rows import (
    Case,
    fixed_presets,
    keep_row,
    read_rows,
    rows_of,
    time_left,
)

NEVER_SLOWER, ON_AVERAGE, AT_WORST, TOGETHER, UNDER_LOAD = 0.98, 0.97, 0.92, 1.0, 1.15
COLUMNS = ("pacing", "rtt_s", "mbps", "declared", "sessions", "tokens_per_s")
OUTCOME = ("speedup_over_ar", "limit", "best", "over_best")


def run(
    report: Report,
    models: Models,
    kept: Path | None = None,
    minutes: float | None = None,
    processes: int = 1,
    real: bool = False,
    pairs: int = PAIRS,
) -> None:
    """Fill the report; `models` are not used, since distributions are declared. Cases come in an
    order in which every part of the grid is soon there: with `kept` a run that was ended goes on,
    and a part of it may be looked at."""
    if real:
        measure_real(report, pairs)
        return
    cases: list[Case] = [*(QUICK if report.quick else [*GRID, *LOAD]), *CHANGES]
    seeds = range(report.seed, report.seed + (1 if report.quick else 3))
    rows = _all_rows(cases, report, seeds, kept, minutes, processes)
    changing = [row for row in rows if "change" in row]
    load = [row for row in rows if row.get("pacing") == MEMORY_BOUND]
    grid = [row for row in rows if row not in changing and row not in load]
    report.add("Virtual time", (*COLUMNS, *OUTCOME), grid)
    report.add("Under load, passes bound by memory", (*COLUMNS, *OUTCOME), load)
    shown = ("change", "tokens_per_s", "speedup_over_ar", "best", "over_best")
    report.add("Conditions that change", shown, changing)
    report.goals += goals(grid, changing, load)
    report.notes.append(
        "limit: tokens/s of all sessions relative to ar, were drafts always ready for every pass,"
        " as many as pay: what the declared cost of passes leaves. A further token of a pass that"
        " costs less raises it."
    )


def _all_rows(
    cases: Sequence[Case],
    report: Report,
    seeds: Sequence[int],
    kept: Path | None,
    minutes: float | None,
    processes: int,
) -> list[Row]:
    """In the order of the cases; those that were kept are not computed again."""
    known = read_rows(kept, seeds)
    left = [case for case in cases if str(case) not in known]
    random.Random(report.seed).shuffle(left)
    began_s, fixed = time.monotonic(), fixed_presets(report.quick)
    done = rows_of(left, fixed, seeds, processes, time_left(minutes))
    for number, (case, row) in enumerate(done, start=1):
        known[str(case)] = row
        if kept is not None:
            keep_row(kept, case, seeds, row)
        left_s = (time.monotonic() - began_s) / number * (len(left) - number)
        progress(f"{number} of {len(left)}, {duration_words(left_s)} left: {case}")
    found = [known[str(case)] for case in cases if str(case) in known]
    if len(found) < len(cases):
        progress(f"{len(cases) - len(found)} of {len(cases)} cases are left")
    return found


def goals(grid: Sequence[Row], changing: Sequence[Row], load: Sequence[Row]) -> list[Goal]:
    """Never slower than the cloud alone, about as fast as the best, and faster under load."""
    found = []
    for rows, words in (
        (grid, f"of {len(grid)} cells"),
        (changing, f"of {len(changing)} changes"),
        (load, f"of {len(load)} cells bound by memory"),
    ):
        if rows:
            alone, best = _all(rows, "speedup_over_ar"), _all(rows, "over_best")
            found += [
                Goal(f"auto / ar, worst {words}", min(alone), NEVER_SLOWER, "at least"),
                Goal(f"auto / best preset, mean {words}", mean(best), ON_AVERAGE, "at least"),
                Goal(f"auto / best preset, worst {words}", min(best), AT_WORST, "at least"),
            ]
    return [*found, *_together(grid, "declared passes"), *_together(load, "bound by memory")]


def _together(rows: Sequence[Row], words: str) -> list[Goal]:
    """Tokens/s of all sessions by their number: relative to the one preset that is best for it, and
    to the cloud alone where there are many."""
    found = []
    for sessions in sorted({row["sessions"] for row in rows}):
        own = [row for row in rows if row["sessions"] == sessions]
        name = f"{sessions} sessions, {words}"
        best = min(ratios_to_each(own).values())
        found.append(Goal(f"auto / best one preset, {name}", best, TOGETHER, "at least"))
        if sessions >= 16:
            limit = mean(_all(own, "limit"))
            name += f" (passes leave {limit:.3g})"
            ratio = mean(_all(own, "speedup_over_ar"))
            found.append(Goal(f"auto / ar, {name}", ratio, UNDER_LOAD, "at least"))
    return found


def ratios_to_each(rows: Sequence[Row]) -> dict[str, float]:
    """`auto` relative to each other preset, in the geometric mean over the rows."""
    names = [name for name in rows[0]["first_seed"] if name != rows[0]["preset"]]
    speeds = [row["first_seed"] | {"own": row["first_seed"][row["preset"]]} for row in rows]
    return {name: mean([each["own"] / each[name] for each in speeds]) for name in names}


def mean(ratios: Sequence[float]) -> float:
    """Geometric."""
    return exp(sum(map(log, ratios)) / len(ratios))


def _all(rows: Sequence[Row], figure: str) -> list[float]:
    return [row[figure] for row in rows]


def draw(report: Report, folder: Path) -> None:
    """By acceptance and hardware, over sessions, a curve a round trip; of processes bars."""
    if any("virtual" in row for row in report.rows):
        draw_real(report.rows, folder)
        return
    rows = [
        row | {"pair": row["pacing"], "acceptance": row["declared"]}
        for row in sorted(report.rows, key=lambda row: row.get("declared", 0.0))
        if "limit" in row
    ]
    cells = [row | {"curve": f"{row['rtt_s'] * 1e3:g} ms"} for row in rows]
    limits = [row | {"curve": "limit", "speedup_over_ar": row["limit"]} for row in rows]
    for file, figure, words, drawn, goal in (
        ("auto_over_ar.png", "speedup_over_ar", "auto / ar", [*cells, *limits], 1.0),
        ("auto_over_best.png", "over_best", "auto / best preset", cells, AT_WORST),
    ):
        panels(
            folder / file,
            [row | {words: row[figure]} for row in drawn],
            x="sessions",
            y=words,
            columns="pair",
            lines="acceptance",
            by="curve",
            title=f"{words}: tokens/s of all sessions, by round trip, virtual time",
            limit=goal,
        )
