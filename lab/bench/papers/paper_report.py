"""`bench papers`: every table and figure of the five papers that has numbers, ours beside theirs.

Writes `index.html`, `report.md`, plots and `results.json` into a folder. Rows that are already
there, made with the same arguments at the same commit, are taken as they are; so a run that was
interrupted goes on where it stopped. With `--report` it writes the pages of the documentation
instead, beside which rows are kept for good, each with the commit that it was computed at.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from lab.bench.harness.report import Report, Row, Table, duration_words, make_row, progress
from lab.bench.harness.suite import Models
from lab.bench.papers import (
    cloud_drafts,
    dragon_figures,
    dragon_smollm2,
    dssd_processes,
    dssd_tables,
    fsd_processes,
    fsd_tables,
    picospec_tables,
    picospec_verification,
    process_cell,
    reweigh_cost,
    reweigh_gain,
    task_tables,
    tslt_figures,
    tslt_processes,
)
from lab.bench.papers.kept_results import KeptResults, KeptRow
from lab.bench.papers.paper_table import PaperRow, PaperTable
from lab.bench.papers.report_pages import Filled, write_pages
from lab.bench.papers.report_site import INDEX, MEASURED, SiteTable, write_site
from lab.bench.papers.testbed import Prices, Testbed
from lab.machine import OthersMeter, this_machine
from tandem.core.errors import InvalidArgument

RESULTS = "results.json"
FOLDER = Path("report")
PAPERS = (
    *(dssd_tables, dssd_processes, picospec_tables, picospec_verification, process_cell),
    *(fsd_tables, fsd_processes, task_tables, tslt_figures, tslt_processes),
    *(dragon_figures, dragon_smollm2, reweigh_gain, reweigh_cost),
    cloud_drafts,
)


def all_tables() -> tuple[PaperTable, ...]:
    """Return the tables of all papers, paper by paper."""
    tables = [table for module in PAPERS for table in module.tables()]
    papers = list(dict.fromkeys(table.paper for table in tables))
    return tuple(sorted(tables, key=lambda table: papers.index(table.paper)))


def run(
    report: Report,
    models: Models,
    folder: Path | None = None,
    only: Sequence[str] = (),
    fresh: bool = False,
    tasks: Path | None = None,
    prices: Prices | None = None,
    site: Path | None = None,
    part: str | None = None,
) -> None:
    """Compute what is not kept yet, then write the pages into `folder`.

    `only`: keys of tables, in which `*` matches anything; `fresh`: compute all of them again;
    `tasks`: a folder with texts of tasks; `prices`: those of a further pair; `part`: one of PARTS.
    `site`: instead of the page, write those of the documentation into this folder, with all that is
    kept there, whatever its commit. Raises InvalidArgument for a key that no table has.
    """
    tables, folder = chosen_tables(only, part), site or folder or FOLDER
    testbed = Testbed(models, report.seed, report.quick, tasks, prices)
    kept = KeptResults(folder / RESULTS, report.machine.commit, any_commit=site is not None)
    if fresh:
        kept.forget(tables)
    filled = list(_fill(tables, testbed, kept))
    if site is not None:
        write_site(site, [SiteTable(table, _whole(table, testbed, kept)) for table in all_tables()])
        report.notes.append(f"{site / INDEX} has the report.")
    else:
        write_pages(folder, filled, report, testbed)
        report.notes.append(
            f"{folder / 'index.html'} has the report, {folder / 'report.md'} its text."
        )
    for entry in filled:
        rows = list(_rows(entry, report.seed))
        report.rows += rows
        report.tables.append(_table(entry, rows))
        if entry.table.goal is not None:
            figures = entry.table.filled([one.figures for one in entry.ours])
            report.goals.append(entry.table.goal(figures))


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
        and (part is None or table.basis.needs_quiet == (part == MEASURED))
    )


def _whole(table: PaperTable, testbed: Testbed, kept: KeptResults) -> Filled | None:
    """Return a table with its rows if all of them are kept, else None."""
    rows = [kept.get(testbed, table, row) for row in table.rows]
    there = tuple(row for row in rows if row is not None)
    return Filled(table, there) if len(there) == len(rows) else None


@dataclass(slots=True)
class _Clock:
    """How many rows are left, and by the pace so far how long they take."""

    left: int
    done: int = 0
    spent_s: float = 0.0

    def words(self) -> str:
        if not self.done:
            return f"{self.left} rows left"
        left_s = self.left * self.spent_s / self.done
        return f"{self.left} rows left, about {duration_words(left_s)}"

    def add(self, took_s: float) -> None:
        self.left, self.done, self.spent_s = self.left - 1, self.done + 1, self.spent_s + took_s


def _fill(tables: Sequence[PaperTable], testbed: Testbed, kept: KeptResults) -> Iterator[Filled]:
    missing = sum(kept.needed(testbed, table, row) for table in tables for row in table.rows)
    clock = _Clock(missing)
    for table in tables:
        progress(f"{table.key}: {clock.words()}")
        yield Filled(table, tuple(_kept(table, row, testbed, kept, clock) for row in table.rows))


def _kept(
    table: PaperTable, row: PaperRow, testbed: Testbed, kept: KeptResults, clock: _Clock
) -> KeptRow:
    known = kept.get(testbed, table, row)
    if known is not None and not known.empty:
        return known
    machine, others = this_machine(), OthersMeter()
    started_s = time.perf_counter()
    figures = table.checked(table.compute(testbed, row.labels))
    took_s = time.perf_counter() - started_s
    clock.add(took_s)
    where = f"{machine.processor}, {machine.cores} cores"
    load, share = machine.load, others.share()
    return kept.keep(testbed, table, row, figures, where, took_s, load, share)


def _rows(filled: Filled, seed: int) -> Iterator[Row]:
    table = filled.table
    for row, ours in zip(table.rows, filled.ours, strict=True):
        named: Row = dict(zip(table.labels, row.labels, strict=True))
        for figure, theirs, mine in zip(table.figures, row.theirs, ours.figures, strict=True):
            named |= {f"{figure} (ours)": mine}
            if theirs is not None:
                named |= {f"{figure} (paper)": theirs}
        yield make_row(seed=seed, part=table.key, remark=row.remark) | named


def _table(filled: Filled, rows: Sequence[Row]) -> Table:
    table = filled.table
    columns = list(table.labels)
    for place, figure in enumerate(table.figures):
        columns.append(f"{figure} (ours)")
        columns += [f"{figure} (paper)"] * table.compares(place)
    return Table(f"{table.paper}, {table.place}: {table.title}", tuple(columns), rows)
