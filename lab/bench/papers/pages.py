"""The papers' tables as pages of the documentation: an overview and a page for each paper.

Invariant: pages follow from formulas and kept rows alone; a table whose rows are of other code says
that it is stale, and one without rows says how to compute it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import floor, log10
from pathlib import Path

from lab.bench.harness.report import QUIET_SHARE
from lab.bench.papers.headlines import headline_table
from lab.bench.papers.kept_results import KeptResults, KeptRow
from lab.bench.papers.paper_table import Basis, Figure, Figures, PaperTable
from lab.bench.papers.testbed import Testbed
from lab.machine import CHANGED

INDEX = "index.md"
TITLE = "The papers' tables, ours beside theirs"
COMMAND = "tandem bench papers --pages lab/docs/papers"
STALE = "**Stale:** made by other code than this page's; `--only {key}` computes it again."
LEAD = f"""\
Tables and figures of DSSD, PicoSpec, FSD, TSLT/MC-DSD and DRAGON that have numbers, and what this
repository computes or measures in the same units. The papers' figures are typed in from their
texts; ours are of formulas, which are computed when these pages are made, or of rows that are kept
in `lab/results/papers.json` with commit, date, machine, and a hash of the code that made them.
None of the papers' hardware and models is here: each table says what stands for them.

`{COMMAND}` computes what is missing or stale and writes the pages; `--only KEY` restricts it to one
table, `--stale` computes nothing. Tables by processes need a quiet machine (`--part measured`), all
others are the same on any (`--part computed`).

## Headlines

Of several rows the lowest and the highest figure; each leads to its table. The papers compare with
a target that decodes one token at a time. A server that drafts for itself is the stronger baseline,
in the same unit: where it is higher than the method, drafting at the edge is slower for one client.
"""


@dataclass(frozen=True, slots=True)
class Filled:
    """A table with our figures, None in rows that are missing; None where all are. `kept`: what
    they were read from, none for a formula."""

    table: PaperTable
    ours: tuple[Figures, ...] | None
    kept: tuple[KeptRow, ...] = ()
    stale: bool = False


def fill(table: PaperTable, kept: KeptResults, testbed: Testbed) -> Filled:
    """Return a table with its formula's figures, or those that are kept."""
    if table.formula is not None:
        return Filled(table, tuple(table.ours(testbed, row) for row in table.rows))
    found = [(row, kept.get(table, row)) for row in table.rows]
    there = tuple(one for _, one in found if one is not None)
    if not there:
        return Filled(table, None)
    nothing = (None,) * len(table.figures)
    ours = tuple(nothing if one is None else one.figures for _, one in found)
    stale = any(one is not None and not kept.current(table, row) for row, one in found)
    return Filled(table, ours, there, stale)


def write_pages(folder: Path, tables: Sequence[Filled]) -> None:
    """Write the pages into the folder, over those that are there."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages(tables).items():
        (folder / name).write_text(text, encoding="utf-8")


def pages(tables: Sequence[Filled]) -> dict[str, str]:
    """Return the text of every page by its name."""
    found = {INDEX: _text(_index(tables))}
    for paper in dict.fromkeys(entry.table.paper for entry in tables):
        members = [entry for entry in tables if entry.table.paper == paper]
        found[page_of(paper)] = _text(_paper(paper, members))
    return found


def page_of(paper: str) -> str:
    """Return the name of a paper's page."""
    return f"{paper.lower()}.md"


def _text(lines: Iterator[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"


def _index(tables: Sequence[Filled]) -> Iterator[str]:
    yield from (f"# {TITLE}", "", LEAD)
    links = {entry.table.key: f"{page_of(entry.table.paper)}#{entry.table.key}" for entry in tables}
    yield from headline_table([(entry.table, entry.ours) for entry in tables], links)
    yield from ("", "## Tables", "", "| paper | table | ours | made |", "|---|---|---|---|")
    for entry in tables:
        table = entry.table
        name = f"[{table.place}]({links[table.key]})"
        made = "from the formula" if table.formula else _made(entry)
        yield f"| {table.paper} | {name} | {table.basis.split(':')[0]} | {made} |"


def _made(entry: Filled) -> str:
    """Return the dates and commits of a table's rows, each once."""
    if entry.ours is None:
        return "not run yet"
    dates = sorted({row.date for row in entry.kept})
    commits = dict.fromkeys(f"`{_commit(row)}`" for row in entry.kept)
    days = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return f"{days}, {' and '.join(commits)}"


def _commit(row: KeptRow) -> str:
    """Return twelve digits of the row's commit, and a mark if it is not the whole tree."""
    return row.commit[:12] + "+" * (CHANGED in row.commit)


def _paper(paper: str, tables: Sequence[Filled]) -> Iterator[str]:
    yield from (f"# {paper}: tables and figures", "", f"[{TITLE}]({INDEX}) has the headlines.")
    for entry in tables:
        table = entry.table
        yield from ("", f"## {table.key}", "", f"**{table.place}. {table.title}.**", "")
        yield f"{table.basis}. {table.declared}"
        if table.printed:
            yield f"*The paper:* {table.printed}"
        yield ""
        if entry.ours is None:
            yield f"Not run yet: `{COMMAND} --only {table.key}`."
            continue
        yield from markdown_table(table, entry.ours)
        if entry.kept:
            yield from ("", f"{_made(entry)}, {entry.kept[0].machine}{_busy(entry)}.")
        if entry.stale:
            yield from ("", STALE.format(key=table.key))


def _busy(entry: Filled) -> str:
    """Say what other processes took of the cores where that changes figures."""
    shares = [row.others_busy for row in entry.kept if row.others_busy is not None]
    if entry.table.basis is not Basis.PROCESSES or not shares:
        return ""
    words = f", others had {max(shares):.0%} of the cores"
    return f"{words}: **busy**" if max(shares) > QUIET_SHARE else words


def markdown_table(table: PaperTable, ours: Sequence[Figures]) -> Iterator[str]:
    """Yield the lines of a table; a figure that the paper prints has a column for each side."""
    heads = list(table.labels)
    for place, figure in enumerate(table.figures):
        heads += [f"{figure}, ours", f"{figure}, paper"] if table.compares(place) else [figure]
    yield _line(heads)
    yield "|" + "---|" * len(heads)
    for row, mine in zip(table.rows, ours, strict=True):
        cells = [one if isinstance(one, str) else f"{one:g}" for one in row.labels]
        for place in range(len(table.figures)):
            digits = _decimals(table, ours, place)
            cells.append(figure_text(mine[place], digits))
            if table.compares(place):
                cells.append(figure_text(row.theirs[place], _printed_decimals(table, place)))
        yield _line(cells)


def _line(cells: Sequence[str]) -> str:
    """Return a row of a Markdown table. A bar in a cell is escaped, as it would end the cell."""
    return f"| {' | '.join(one.replace('|', chr(92) + '|') for one in cells)} |"


def _printed_decimals(table: PaperTable, place: int) -> int:
    """Return the most decimals that the paper prints in a column."""
    printed = [figure for row in table.rows if (figure := row.theirs[place]) is not None]
    return max((len(f"{one:.10g}".partition(".")[2]) for one in printed), default=0)


def _decimals(table: PaperTable, ours: Sequence[Figures], place: int) -> int:
    """Return as many decimals as the paper prints, and enough for three digits of the middle of
    ours, four at most."""
    known = sorted(abs(figure) for mine in ours if (figure := mine[place]))
    counts = all(figure.is_integer() for figure in known)
    digits = 0 if counts else 2 - floor(log10(known[len(known) // 2]))
    return max(_printed_decimals(table, place), min(4, max(0, digits)))


def figure_text(figure: Figure, decimals: int) -> str:
    """Return a figure with this many decimals, or with two digits if it is too small for them; a
    dash for None."""
    if figure is None:
        return "–"
    text = f"{figure:,.{decimals}f}"
    return f"{figure:.2g}" if figure and not text.strip("-0.,") else text
