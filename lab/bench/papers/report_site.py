"""The papers' report as pages of the documentation: an overview and a page for each paper.

Rows are kept beside the pages with the commit, date and load that each was computed at, so that
parts of the report can be run at different times. Invariant: the pages follow from the kept rows
alone; a table that is not complete says how to compute it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.bench.harness.report import duration_words
from lab.bench.papers.headlines import headline_table
from lab.bench.papers.kept_results import KeptRow
from lab.bench.papers.paper_table import PaperTable
from lab.bench.papers.report_pages import (
    Filled,
    basis_words,
    drawn,
    markdown_table,
    notes,
    others_share,
    was_busy,
)
from lab.bench.papers.rows import Rows

INDEX = "index.md"
COMPUTED = "computed"
MEASURED = "measured"
PARTS = {
    COMPUTED: "formulas, virtual time and exact arithmetic: the same on any machine",
    MEASURED: "processes and single steps: to be run on a quiet machine",
}
COMMAND = "tandem bench papers --report docs/papers"
TITLE = "The papers' tables, ours beside theirs"
LEAD = (
    "Every table and figure of DSSD, PicoSpec, FSD, TSLT/MC-DSD and DRAGON that has numbers, and "
    "what this repository computes or measures in the same units. The papers' figures are typed in "
    "from their texts; all others are computed by the command that made these pages. None of the "
    "papers' hardware and models is here: each table says what stands for them, and why ours "
    "differ. `results.json` beside these pages has every row with its commit, date, machine, load "
    "and duration."
)


@dataclass(frozen=True, slots=True)
class SiteTable:
    """A table of the report; `filled` is None where rows of it are missing."""

    table: PaperTable
    filled: Filled | None

    @property
    def rows(self) -> Rows | None:
        if self.filled is None:
            return None
        return self.table.filled([one.figures for one in self.filled.ours])

    @property
    def part(self) -> str:
        return MEASURED if self.table.basis.needs_quiet else COMPUTED


def write_site(folder: Path, tables: Sequence[SiteTable]) -> None:
    """Write the pages, and the plots of complete tables."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.svg"):
        old.unlink()
    (folder / INDEX).write_text(_text(_index(tables)), encoding="utf-8")
    for paper in dict.fromkeys(entry.table.paper for entry in tables):
        members = [entry for entry in tables if entry.table.paper == paper]
        page = _text(_paper(paper, members, folder))
        (folder / page_of(paper)).write_text(page, encoding="utf-8")


def page_of(paper: str) -> str:
    """Return the name of a paper's page."""
    return f"{''.join(one if one.isalnum() else '-' for one in paper.lower())}.md"


def _link(table: PaperTable) -> str:
    """Return the link to a table. Its heading is the table's key, and the anchor is the key
    itself."""
    return f"{page_of(table.paper)}#{table.key}"


def _text(lines: Iterator[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"


def _index(tables: Sequence[SiteTable]) -> Iterator[str]:
    yield from (f"# {TITLE}", "", LEAD, "", "## Headlines", "")
    yield (
        "Of several rows the lowest and the highest figure. A dash: there is no such row. Each "
        "figure leads to its table. The papers compare with a target that decodes one token at a "
        "time; the column of a cloud that drafts has the stronger baseline in the same unit, times "
        "as fast as the target alone: where it is higher than the method's, the server's own "
        "speculative decoding is faster for one client."
    )
    yield ""
    links = {entry.table.key: _link(entry.table) for entry in tables}
    yield from headline_table([(entry.table, entry.rows) for entry in tables], links)
    yield from ("", "## Tables", "")
    yield "| paper | table | ours | made | load |"
    yield "|---|---|---|---|---|"
    for entry in tables:
        table = entry.table
        made = "not run yet" if entry.filled is None else _when(entry.filled.ours)
        name = f"[{table.place}]({_link(table)}): {table.title}".replace("|", "\\|")
        yield f"| {table.paper} | {name} | {basis_words(table)} | {made} | {_load(entry)} |"
    yield from ("", "## Make them again", "")
    yield "Each part alone, and what is missing only, unless `--fresh` is given:"
    yield ""
    yield "| part | command | rows | minutes |"
    yield "|---|---|---|---|"
    for part, words in PARTS.items():
        yield _part_line(part, words, [entry for entry in tables if entry.part == part])
    yield ""
    yield (
        "`make papers-report` runs both. A single table: `--only KEY --fresh`, where `*` is "
        f"anything. Rows are computed with {_seeds(tables)}."
    )


def _part_line(part: str, words: str, tables: Sequence[SiteTable]) -> str:
    kept = [row for entry in tables if entry.filled is not None for row in entry.filled.ours]
    rows = sum(len(entry.table.rows) for entry in tables)
    took = f"{sum(row.took_s for row in kept) / 60:.0f} for {len(kept)} rows" if kept else "not run"
    return f"| {words} | `{COMMAND} --part {part}` | {rows} | {took} |"


def _seeds(tables: Sequence[SiteTable]) -> str:
    kept = [row for entry in tables if entry.filled is not None for row in entry.filled.ours]
    seeds = sorted({str(row.arguments["seed"]) for row in kept})
    quick = any(row.arguments["quick"] for row in kept)
    return f"seed {' and '.join(seeds) or '1'}{', at the small size of `--quick`' * quick}"


def _when(rows: Sequence[KeptRow]) -> str:
    """Return the dates and commits of rows, each once."""
    dates = sorted({row.date for row in rows if row.date})
    commits = dict.fromkeys(_commit(row) for row in rows)
    days = dates[0] if len(set(dates)) == 1 else f"{dates[0]} to {dates[-1]}" if dates else "once"
    return f"{days}, {' and '.join(f'`{one}`' for one in commits)}"


def _commit(row: KeptRow) -> str:
    """Return twelve digits of the row's commit; marked where the tree had changes."""
    return row.commit[:12] + "+" * ("-changed-" in row.commit)


def _load(entry: SiteTable) -> str:
    """Say how busy the machine was; empty for a table whose figures do not depend on that."""
    if entry.filled is None or not entry.table.basis.needs_quiet:
        return ""
    share = others_share(entry.filled.ours)
    words = "not known" if share is None else f"others had {share:.0%}"
    return f"{words}, **busy**" if was_busy(entry.filled.ours) else words


def _paper(paper: str, tables: Sequence[SiteTable], folder: Path) -> Iterator[str]:
    yield from (f"# {paper}: tables and figures", "")
    yield f"What the columns rest on, and the headlines of all papers: [{TITLE}]({INDEX})."
    for entry in tables:
        table = entry.table
        yield from ("", f"## {table.key}", "", f"**{table.place}: {table.title}**", "")
        if entry.filled is None:
            yield f"{basis_words(table)}. {table.declared}"
            yield ""
            yield f"Not run yet: `{_command(table)}`."
            continue
        for name, words in notes(entry.filled, _command(table)):
            yield from (f"**{name}.** {words}", "")
        yield from (f"Commit and date: {_when(entry.filled.ours)}.", "")
        for name in drawn(folder, entry.filled):
            yield from (f"![{table.title}, plotted]({name})", "")
        yield from markdown_table(entry.filled)
    took_s = sum(
        row.took_s for entry in tables if entry.filled is not None for row in entry.filled.ours
    )
    yield from ("", f"All rows of this page took {duration_words(took_s)}.")


def _command(table: PaperTable) -> str:
    tasks = " --tasks FOLDER" * ("tasks" in table.needs)
    return f"{COMMAND} --only {table.key} --fresh{tasks}"
