"""`auto` against the cloud without an edge, which may draft itself, and every fixed preset.

In virtual time: pairs of declared acceptance over hardware, round trips, bandwidths and numbers of
sessions that share one verifier; conditions that change while answers are written; and a load on
passes that are bound by memory. All step times are declared, so figures do not depend on the
machine. With `--real`, instead, real models as processes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.bench.harness.models import Models
from lab.bench.harness.report import Report, Row, duration_words, progress
from lab.bench.speculation.auto_cases import (
    CHANGES,
    GRID,
    LOAD,
    MEMORY_BOUND,
    QUICK,
    SEEDS,
    covering,
)
from lab.bench.speculation.auto_goals import BASELINE, goals
from lab.bench.speculation.auto_real import RealRun, measure_real
from lab.bench.speculation.auto_rows import (
    Case,
    cells_named,
    fixed_presets,
    keep_row,
    read_rows,
    rows_of,
    time_left,
)
from tandem.specdec.presets import Preset

COLUMNS = (
    *("pacing", "rtt_s", "mbps_up", "mbps", "declared", "sessions", "cloud_draft"),
    "tokens_per_s",
)
OUTCOME = ("speedup_over_ar", "limit", "baseline", "over_baseline", "best", "over_best")


def run(
    report: Report,
    models: Models,
    kept: Path | None = None,
    minutes: float | None = None,
    processes: int = 1,
    real: bool = False,
    rounds: int | None = None,
    only: Sequence[str] = (),
    cells: int = 0,
    against_cloud: bool = False,
) -> None:
    """Fill the report; `models` are not used, since distributions are declared. Cases come in an
    order that soon covers every part of the grid, so that the figures of an unfinished run mean
    something. With `kept`, a run that was ended goes on. `cells`: how many cases, from the first
    on; 0: all. `rounds` concerns real models alone. `against_cloud`: leave
    out the fixed presets of an edge."""
    if real:
        measure_real(report, RealRun(rounds=rounds, only=only, kept=kept, minutes=minutes))
        return
    of_grid = QUICK if report.quick else covering([*GRID, *LOAD], report.seed)
    cases: list[Case] = [*of_grid, *CHANGES]
    cases = cells_named(only, cases) if only else cases
    cases = cases[: cells or None]
    seeds = range(report.seed, report.seed + max(SEEDS.values()))
    fixed = {} if against_cloud else fixed_presets(report.quick)
    rows = _all_rows(cases, fixed, report, seeds, kept, minutes, processes)
    changing = [row for row in rows if "change" in row]
    load = [row for row in rows if row.get("pacing") == MEMORY_BOUND]
    grid = [row for row in rows if row not in changing and row not in load]
    report.add("Virtual time", (*COLUMNS, *OUTCOME), grid)
    report.add("Under load, passes bound by memory", (*COLUMNS, *OUTCOME), load)
    shown = ("change", "tokens_per_s", "speedup_over_ar", "over_baseline", "best", "over_best")
    report.add("Conditions that change", shown, changing)
    all_goals = goals(grid, changing, load)
    report.goals += all_goals if fixed else [goal for goal in all_goals if BASELINE in goal.name]
    by_sessions = ", ".join(f"{count} of {sessions}" for sessions, count in SEEDS.items())
    report.notes.append(
        f"Seeds by sessions of a cell: {by_sessions}. Left out: presets that by their rounds would"
        " have to be luckier than chance allows to be best; and all where no draft pays in a pass."
    )
    report.notes.append(
        "limit: tokens/s of all sessions relative to ar, were drafts always ready for every pass,"
        " as many as pay: what the declared cost of passes leaves. A further token of a pass that"
        " costs less raises it. baseline: the better of ar and cloud-draft."
        " cloud_draft: the cloud has a draft model, whose step takes a fifth of the edge's. mbps is"
        " of the downlink."
    )


def _all_rows(
    cases: Sequence[Case],
    fixed: Mapping[str, Preset],
    report: Report,
    seeds: Sequence[int],
    kept: Path | None,
    minutes: float | None,
    processes: int,
) -> list[Row]:
    """Return all rows in the order of the cases; rows that were kept are not computed again."""
    made = {"seeds": list(seeds), "presets": list(fixed), "commit": report.machine.commit}
    known = read_rows(kept, made)
    left = [case for case in cases if str(case) not in known]
    began_s = time.monotonic()
    done = rows_of(left, fixed, seeds, processes, time_left(minutes))
    for number, (case, row) in enumerate(done, start=1):
        known[str(case)] = row
        if kept is not None:
            keep_row(kept, case, made, row)
        left_s = (time.monotonic() - began_s) / number * (len(left) - number)
        progress(f"{number} of {len(left)}, {duration_words(left_s)} left: {case}")
    rows = [known[str(case)] for case in cases if str(case) in known]
    if len(rows) < len(cases):
        progress(f"{len(cases) - len(rows)} of {len(cases)} cases are left")
    return rows
