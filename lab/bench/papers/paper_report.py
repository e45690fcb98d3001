"""`bench papers`: tables and figures of the five papers that have numbers, ours beside theirs.

It computes the chosen tables and prints them. With `--pages` it computes what is missing, or was
made by other code, keeps these rows in `lab/results`, and writes the documentation's pages from
formulas and kept rows.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from lab.bench.harness.models import Models
from lab.bench.harness.report import Report, Row, Table, counted, make_row, progress
from lab.bench.papers import (
    cloud_drafts,
    dragon_figures,
    dragon_smollm2,
    dssd_processes,
    dssd_tables,
    fsd_processes,
    fsd_tables,
    pair_tables,
    picospec_tables,
    process_cell,
    tslt_figures,
)
from lab.bench.papers.kept_results import KeptResults, refuse_changes
from lab.bench.papers.pages import INDEX, fill, write_pages
from lab.bench.papers.paper_table import (
    SEEDS,
    Basis,
    Figures,
    FilledRow,
    PaperRow,
    PaperTable,
    filled_rows,
    over_seeds,
)
from lab.bench.papers.testbed import Testbed
from lab.machine import OthersMeter, this_machine
from tandem.core.errors import InvalidArgument

PAPERS = (
    *(dssd_tables, dssd_processes, picospec_tables, process_cell, fsd_tables, fsd_processes),
    *(tslt_figures, dragon_figures, dragon_smollm2, pair_tables, cloud_drafts),
)
MEASURED = "measured"


def all_tables() -> tuple[PaperTable, ...]:
    """Return the tables of all papers, paper by paper."""
    tables = [table for module in PAPERS for table in module.tables()]
    papers = list(dict.fromkeys(table.paper for table in tables))
    return tuple(sorted(tables, key=lambda table: papers.index(table.paper)))


def run(
    report: Report,
    models: Models,
    pages: Path | None = None,
    only: Sequence[str] = (),
    part: str | None = None,
    fresh: bool = False,
    stale: bool = False,
    tasks: Path | None = None,
) -> None:
    """Compute and print the chosen tables, or with `pages` write pages into that folder.

    `only`: keys of tables, in which `*` matches anything; `part`: MEASURED, or all others;
    `tasks`: a folder with texts that this repository does not have. With `pages`, `fresh`: compute
    all of the chosen rows again; `stale`: compute none. Without, rows are of one seed. Raises
    InvalidArgument for a key that no table has, and ChangedTree for rows of a tree with changes."""
    tables = chosen_tables(only, part)
    testbed, *others = (
        Testbed(models, report.seed + number, report.quick, tasks) for number in range(SEEDS)
    )
    if pages is None:
        for table in tables:
            progress(table.key)
            ours = [table.ours(testbed, row) for row in table.rows]
            shown = [_shown(row) for row in filled_rows(table, ours)]
            columns = dict.fromkeys(name for row in shown for name in row)
            report.rows += [make_row(seed=report.seed, part=table.key) | row for row in shown]
            report.tables.append(Table(f"{table.key}: {table.title}", tuple(columns), shown))
        return
    kept = KeptResults()
    if not stale:
        compute(tables, (testbed, *others), kept, fresh)
    kept.forget_others(all_tables())
    write_pages(pages, [fill(table, kept, testbed) for table in all_tables()])
    report.notes.append(f"{pages / INDEX} has the report.")


def compute(
    tables: Sequence[PaperTable],
    testbeds: Iterable[Testbed],
    kept: KeptResults,
    fresh: bool = False,
) -> None:
    """Compute and keep the rows that are not there, or were made by other code; with `fresh` all.
    `testbeds`: one for each seed; what one shares between tables is dropped before the next. Raises
    ChangedTree."""
    wanted = [
        (table, row)
        for table in tables
        for row in table.rows
        if table.formula is None and (fresh or not kept.current(table, row))
    ]
    found: dict[tuple[str, PaperRow], list[Figures]] = defaultdict(list)
    took_s: dict[tuple[str, PaperRow], float] = defaultdict(float)
    for number, testbed in enumerate(testbeds):
        machine = this_machine()
        refuse_changes(machine)
        for table, row in counted([one for one in wanted if one[0].seeds > number], _name):
            others, began_s, key = OthersMeter(), time.perf_counter(), (table.key, row)
            found[key].append(table.ours(testbed, row))
            took_s[key] += time.perf_counter() - began_s
            figures, errors = over_seeds(found[key])
            if number + 1 == table.seeds and any(figure is not None for figure in figures):
                kept.keep(
                    table,
                    row,
                    figures,
                    errors=errors,
                    seed=testbed.seed - number,
                    machine=machine,
                    took_s=took_s[key],
                    others_busy=others.share(),
                )
        testbed.forget()


def _name(one: tuple[PaperTable, PaperRow]) -> str:
    return one[0].key


def chosen_tables(only: Sequence[str], part: str | None = None) -> tuple[PaperTable, ...]:
    """Return the tables of this part that match one of the keys, or all of this part without keys.
    Raises InvalidArgument for a key that no table matches."""
    tables = all_tables()
    for key in only:
        if not any(fnmatchcase(table.key, key) for table in tables):
            names = ", ".join(table.key for table in tables)
            raise InvalidArgument("only", f"must be of {names}, is {key!r}")
    return tuple(
        table
        for table in tables
        if (not only or any(fnmatchcase(table.key, key) for key in only))
        and (part is None or (table.basis is Basis.PROCESSES) == (part == MEASURED))
    )


def _shown(row: FilledRow) -> Row:
    ours = {f"{name} (ours)": figure for name, figure in row.ours.items()}
    theirs = {f"{name} (paper)": one for name, one in row.theirs.items() if one is not None}
    return {**row.labels, **ours, **theirs}
