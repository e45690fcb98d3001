"""Rows of `bench auto`: a case by every preset, computed by some processes, kept in a file.

Invariants: what is kept is a case's whole row, so a run that was ended, however, goes on with the
cases that are left; and it is taken only for the same seeds, fixed presets and commit.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import suppress
from fnmatch import fnmatchcase
from multiprocessing import get_context, parent_process
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from lab.bench.harness.report import Row, make_row
from lab.bench.speculation.auto_cases import Cell, Change
from tandem.core.errors import InvalidArgument
from tandem.specdec.presets import PRESETS, Preset

Case = Cell | Change
AnyCell = TypeVar("AnyCell")
ALONE = "ar"
CHOSEN = "auto"
BASELINES = (ALONE, "cloud-draft")
"""What the cloud does without an edge: decode alone, or draft itself."""
FINALISTS = 2
"""So many of the fixed presets that are best with the first seed are compared with every seed."""


def cells_named(names: Sequence[str], cells: Sequence[AnyCell]) -> list[AnyCell]:
    """Return those of the cells that match one of the names, in which `*` stands for anything.
    Raises InvalidArgument for a name that matches none."""
    for name in names:
        if not any(fnmatchcase(str(cell), name) for cell in cells):
            why = f"{name!r} is no cell; one is {cells[0]}, and * stands for anything"
            raise InvalidArgument("only", why)
    return [cell for cell in cells if any(fnmatchcase(str(cell), name) for name in names)]


def rows_of(
    cases: Sequence[Case],
    fixed: Mapping[str, Preset],
    seeds: Sequence[int],
    processes: int = 1,
    may_begin: Callable[[], bool] = lambda: True,
) -> Iterator[tuple[Case, Row]]:
    """Yield the cases with their rows, in the order in which they are done. No further case is
    begun once `may_begin` returns False."""
    if processes == 1:
        for case in cases:
            if not may_begin():
                return
            yield case, case_row(case, fixed, seeds)
        return
    with ProcessPoolExecutor(processes, get_context("spawn"), _end_with_parent) as pool:
        waiting, running = list(reversed(cases)), dict[Future[Row], Case]()
        while True:
            while waiting and len(running) < processes and may_begin():
                case = waiting.pop()
                running[pool.submit(case_row, case, fixed, seeds)] = case
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()


def _end_with_parent() -> None:
    """End this process of the pool when its parent ends; after a kill of the parent it would
    otherwise wait for ever."""
    parent = parent_process()
    assert parent is not None, "the pool's processes are children"

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def case_row(case: Case, fixed: Mapping[str, Preset], seeds: Sequence[int]) -> Row:
    """Return the row of a case: `auto` against the best that the cloud does without an edge, and
    against the best of that and the `fixed` presets, both in hindsight over the seeds of the case.
    `speeds`: tokens/s by preset and seed; those of presets that were `left_out` are what they are
    not expected to exceed."""
    fixed = {name: preset for name, preset in fixed.items() if case.has(preset)}
    baselines = {name: PRESETS[name] for name in BASELINES if case.has(PRESETS[name])}
    presets = {**baselines, CHOSEN: PRESETS[CHOSEN], **fixed}
    first, *others = seeds[: case.seeds]
    speeds = {name: [case.tokens_per_s(presets[name], first)] for name in (*baselines, CHOSEN)}
    left_out = []
    alone_s = speeds[ALONE][0]
    best_s = max(speeds[name][0] for name in baselines)
    for name in sorted(fixed, key=lambda name: case.at_most(fixed[name]), reverse=True):
        if case.cannot_be_best(fixed[name], best_s / alone_s):
            left_out.append(name)
        else:
            speeds[name] = [case.tokens_per_s(fixed[name], first)]
            best_s = max(best_s, speeds[name][0])
    measured = [name for name in fixed if name not in left_out]
    ranked = sorted(measured, key=lambda name: speeds[name][0], reverse=True)
    for name in (*baselines, CHOSEN, *ranked[:FINALISTS]):
        speeds[name] += [case.tokens_per_s(presets[name], seed) for seed in others]
    for name in left_out:
        speeds[name] = [speed * case.at_most(fixed[name]) for speed in speeds[ALONE]]
    means = {name: fmean(speeds[name]) for name in (*baselines, *ranked[:FINALISTS])}
    chosen, best = fmean(speeds[CHOSEN]), max(means, key=lambda name: means[name])
    baseline = max(baselines, key=lambda name: means[name])
    row = make_row(preset=CHOSEN, tokens_per_s=chosen, speedup_over_ar=chosen / means[ALONE])
    row |= {"baseline": baseline, "over_baseline": chosen / means[baseline]}
    row |= {"best": best, "over_best": chosen / means[best]}
    return row | {"speeds": speeds, "left_out": left_out} | _declared(case)


def _declared(case: Case) -> Row:
    if isinstance(case, Change):
        return {"change": str(case)}
    return {
        "pacing": case.hardware,
        "rtt_s": case.rtt_s,
        "mbps": case.mbps,
        "mbps_up": case.mbps if case.mbps_up is None else case.mbps_up,
        "cloud_draft": case.cloud_draft,
        "declared": case.rate,
        "sessions": case.sessions,
        "limit": case.limit_over_ar(),
    }


def fixed_presets(quick: bool) -> dict[str, Preset]:
    """Return the presets to choose from in hindsight, by name; those in stop and wait with several
    draft lengths."""
    coupled = PRESETS["coupled"]
    lengths = (4,) if quick else (2, 4, 8)
    rounds = {f"coupled {length}": coupled.with_draft_length(length) for length in lengths}
    return {"stream": PRESETS["stream"]} | rounds


def time_left(minutes: float | None) -> Callable[[], bool]:
    """Return a function that says whether fewer than `minutes` have passed since now; None:
    always."""
    began_s = time.monotonic()
    return lambda: minutes is None or time.monotonic() - began_s < 60 * minutes


def read_rows(kept: Path | None, made: Mapping[str, Any]) -> dict[str, Row]:
    """Return the rows of earlier runs that were `made` the same way, by case. A line that was cut
    short is left out."""
    rows: dict[str, Row] = {}
    for line in kept.read_text("utf-8").splitlines() if kept is not None and kept.exists() else ():
        with suppress(json.JSONDecodeError):
            stored = json.loads(line)
            if isinstance(stored, dict) and made.items() <= stored.items():
                rows[stored["case"]] = stored["row"]
    return rows


def keep_row(kept: Path, case: object, made: Mapping[str, Any], row: Row) -> None:
    """Append the row to the file, under the name of its case. It begins a new line, even where the
    last one was cut short."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    with kept.open("a", encoding="utf-8") as file:
        file.write(f"\n{json.dumps({'case': str(case), **made, 'row': row})}\n")
