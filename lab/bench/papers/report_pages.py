"""The report as a page and as Markdown. Invariant: the page needs nothing but its own folder."""

from __future__ import annotations

import html
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from math import floor, log10
from pathlib import Path

from lab.bench.harness.report import QUIET_SHARE, Report, duration_words
from lab.bench.harness.suite import Models
from lab.bench.papers.kept_results import KeptRow
from lab.bench.papers.paper_plots import plot_files
from lab.bench.papers.paper_table import Label, PaperRow, PaperTable
from lab.bench.papers.rows import span
from lab.bench.papers.testbed import Testbed
from lab.machine import QUIET_LOAD

NOTHING_PRINTED = "It prints no figures to compare with."
OURS = "ours"
PAPERS = "paper"
_SHADED = {OURS: "", PAPERS: ' class="theirs"'}
_NUMBERS = {OURS: ' class="number"', PAPERS: ' class="number theirs"'}


@dataclass(frozen=True, slots=True)
class Filled:
    """A table with our figures, a row for each of its rows."""

    table: PaperTable
    ours: tuple[KeptRow, ...]

    def shown(self, place: int) -> list[str]:
        """Return whose figures a column shows: ours and the paper's, of which there are any in its
        rows."""
        compares = self.table.compares(place)
        mine = any(one.figures[place] is not None for one in self.ours)
        return [OURS] * (mine or not compares) + [PAPERS] * compares

    @property
    def lines(self) -> list[tuple[PaperRow, KeptRow]]:
        return list(zip(self.table.rows, self.ours, strict=True))


TITLE = "Five papers on one testbed: ours beside theirs"
LEAD = (
    "Every table and figure of DSSD, PicoSpec, FSD, TSLT/MC-DSD and DRAGON that has numbers. The "
    "papers' figures are typed in from their text; ours are computed when this report is made. "
    "None of the papers' hardware or models is here: each table says what stands for them. "
    "A dash is a figure that there is not, and the row says why. Cost models and virtual time give "
    "the same figures on any machine, unless a table says otherwise; what is measured depends on "
    "how busy this one was."
)


def write_pages(folder: Path, filled: Sequence[Filled], report: Report, testbed: Testbed) -> None:
    """Write `index.html`, `report.md`, and SVG plots where matplotlib is installed."""
    folder.mkdir(parents=True, exist_ok=True)
    plots = {entry.table.key: drawn(folder, entry) for entry in filled}
    commands = {entry.table.key: command_of(entry.table, testbed) for entry in filled}
    page = html_page(filled, plots, report, commands)
    (folder / "index.html").write_text(page, encoding="utf-8")
    text = markdown(filled, plots, report, commands)
    (folder / "report.md").write_text(text, encoding="utf-8")


def drawn(folder: Path, filled: Filled) -> list[str]:
    """Draw a table's plots, and return the names of their files; none without matplotlib."""
    return plot_files(folder, filled.table, [one.figures for one in filled.ours])


def html_page(
    filled: Sequence[Filled],
    plots: Mapping[str, list[str]],
    report: Report,
    commands: Mapping[str, str],
) -> str:
    """Return the report as an HTML page. `plots`: names of files, `commands`: what computes a
    table; both by its key."""
    parts = [f"<h1>{TITLE}</h1>", f"<p>{html.escape(LEAD)}</p>", _facts(report), _contents(filled)]
    for paper, members in groupby(filled, key=lambda entry: entry.table.paper):
        parts.append(f'<h2 id="{_anchor(paper)}">{html.escape(paper)}</h2>')
        parts += [_section(entry, plots[entry.table.key], commands) for entry in members]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{TITLE}</title><style>{_STYLE}</style></head><body><main>\n{body}\n</main></body></html>\n"
    )


def _facts(report: Report) -> str:
    size = "quick" if report.quick else "full"
    facts = {
        "command": report.command,
        "seed": f"{report.seed}, {size} size",
        "machine": report.machine.line().replace("\n", "; "),
    }
    lines = "".join(f"<dt>{name}</dt><dd>{html.escape(fact)}</dd>" for name, fact in facts.items())
    return f'<dl class="facts">{lines}</dl>'


def _contents(filled: Sequence[Filled]) -> str:
    links = "".join(
        f'<li><a href="#{entry.table.key}">{html.escape(entry.table.paper)}, '
        f"{html.escape(entry.table.place)}</a>: {html.escape(entry.table.title)}</li>"
        for entry in filled
    )
    return f"<nav><ul>{links}</ul></nav>"


def _section(filled: Filled, plots: Sequence[str], commands: Mapping[str, str]) -> str:
    table = filled.table
    images = "".join(
        f'<img src="{name}" alt="{html.escape(table.title)}, plotted" loading="lazy">'
        for name in plots
    )
    paragraphs = "".join(
        f"<p><b>{name}.</b> {prose(words)}</p>"
        for name, words in notes(filled, commands[table.key])
    )
    return (
        f'<section id="{table.key}"><h3>{html.escape(table.place)}: {html.escape(table.title)}</h3>'
        f'{paragraphs}{images}<p class="swipe">A wide table scrolls sideways.</p>'
        f'<div class="wide" role="region" tabindex="0" aria-label="{html.escape(table.title)}">'
        f"{_html_table(filled)}</div></section>"
    )


def notes(filled: Filled, command: str) -> Iterator[tuple[str, str]]:
    """Yield what a reader has to know of a table, each with a name. `command` computes the
    table."""
    table = filled.table
    figures = [one.figures for one in filled.ours]
    yield "Ours", f"{basis_words(table)}. {table.declared}"
    if quotients := table.quotients(figures):
        yield "Ours ÷ the paper's", quotients
    if printed := table.printed or ("" if quotients else NOTHING_PRINTED):
        yield "The paper", printed
    if table.goal is not None:
        yield "Goal", f"{table.goal(table.filled(figures)).line()}."
    yield "Command", f"`{command}`"
    yield "Made on", made_on(filled)


def basis_words(table: PaperTable) -> str:
    """Return what our figures rest on, with a capital letter."""
    basis = str(table.basis)
    return f"{basis[0].upper()}{basis[1:]}"


def others_share(rows: Sequence[KeptRow]) -> float | None:
    """Return the share of the cores that other processes had while rows were computed; None where
    that is not known."""
    known = [(one.others_busy, one.took_s) for one in rows if one.others_busy is not None]
    took_s = sum(seconds for _, seconds in known)
    return sum(share * seconds for share, seconds in known) / took_s if took_s else None


def was_busy(rows: Sequence[KeptRow]) -> bool:
    """Return whether other processes had so much of the machine that times count for little. The
    load average counts the report's processes too, so it decides only where nothing else is
    known."""
    share = others_share(rows)
    if share is None:
        return max(one.load for one in rows) > QUIET_LOAD
    return share > QUIET_SHARE


def made_on(filled: Filled) -> str:
    """Say on which machine the rows were computed and how long that took; where figures depend on
    the load, that too, with a warning."""
    machines = " and ".join(sorted({one.machine for one in filled.ours}))
    if not filled.table.basis.needs_quiet:
        return f"{machines}, in {duration_words(sum(one.took_s for one in filled.ours))}."
    loads = [one.load for one in filled.ours]
    took_s = sum(one.took_s for one in filled.ours)
    share = others_share(filled.ours)
    others = "" if share is None else f", other processes had {share:.0%} of the cores"
    words = f"{machines}, load {span(loads, '.1f')}{others}, in {duration_words(took_s)}."
    if was_busy(filled.ours):
        words += (
            " The machine was busy: what else ran makes measured times longer and processes "
            "slower, and only a run on a quiet machine counts."
        )
    return words


def command_of(table: PaperTable, testbed: Testbed) -> str:
    """Return the command that computes this table alone, anew, in another folder."""
    words = ["tandem", "bench", "papers", "--only", table.key, "--folder", "again"]
    words += ["--seed", str(testbed.seed)]
    words += ["--quick"] * testbed.quick
    for option, given in asdict(testbed.models).items():
        if given != asdict(Models())[option]:
            words += [f"--{option}", given]
    if "tasks" in table.needs:
        words += ["--tasks", "FOLDER"]
    if "prices" in table.needs and testbed.prices is not None:
        words += ["--prices", *map(str, testbed.prices)]
    return shlex.join(words)


def _html_table(filled: Filled) -> str:
    table = filled.table
    remarks = any(row.remark for row in table.rows)
    top = [f'<th rowspan="2" scope="col">{html.escape(name)}</th>' for name in table.labels]
    below = []
    for place, name in enumerate(table.figures):
        shown = filled.shown(place)
        top.append(f'<th scope="colgroup" colspan="{len(shown)}">{html.escape(name)}</th>')
        below += [f'<th scope="col"{_SHADED[who]}>{who}</th>' for who in shown]
    if remarks:
        top.append('<th rowspan="2" scope="col">remark</th>')
    rows, decimals = [], [decimals_of(filled, place) for place in range(len(table.figures))]
    for row, ours in filled.lines:
        cells = [f"<td>{html.escape(label_text(one))}</td>" for one in row.labels]
        for place, (mine, theirs) in enumerate(zip(ours.figures, row.theirs, strict=True)):
            texts = {OURS: figure_text(mine, decimals[place])}
            texts[PAPERS] = figure_text(theirs, printed_decimals(table, place))
            cells += [f"<td{_NUMBERS[who]}>{texts[who]}</td>" for who in filled.shown(place)]
        if remarks:
            cells.append(f'<td class="remark">{prose(row.remark)}</td>')
        rows.append(f"<tr>{''.join(cells)}</tr>")
    head = f"<thead><tr>{''.join(top)}</tr><tr>{''.join(below)}</tr></thead>"
    return f"<table>{head}<tbody>{''.join(rows)}</tbody></table>"


def markdown(
    filled: Sequence[Filled],
    plots: Mapping[str, list[str]],
    report: Report,
    commands: Mapping[str, str],
) -> str:
    lines = [f"# {TITLE}", "", LEAD, ""]
    lines += [f"Command: `{report.command}`, seed {report.seed}.", ""]
    lines += [f"Machine: {report.machine.line().replace(chr(10), '; ')}.", ""]
    for entry in filled:
        table = entry.table
        lines += [f"## {table.paper}, {table.place}: {table.title}", ""]
        lines += [f"**{name}.** {words}\n" for name, words in notes(entry, commands[table.key])]
        lines += [f"![{table.title}]({name})\n" for name in plots[table.key]]
        lines += [*markdown_table(entry), ""]
    return "\n".join(lines)


def markdown_table(filled: Filled) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    table = filled.table
    remarks = any(row.remark for row in table.rows)
    head = list(table.labels)
    for place, name in enumerate(table.figures):
        head += [f"{name}, {who}" for who in filled.shown(place)]
    head += ["remark"] * remarks
    yield _line(head)
    yield "|" + "---|" * len(head)
    decimals = [decimals_of(filled, place) for place in range(len(table.figures))]
    for row, ours in filled.lines:
        cells = [label_text(one) for one in row.labels]
        for place, (mine, theirs) in enumerate(zip(ours.figures, row.theirs, strict=True)):
            texts = {OURS: figure_text(mine, decimals[place])}
            texts[PAPERS] = figure_text(theirs, printed_decimals(table, place))
            cells += [texts[who] for who in filled.shown(place)]
        yield _line([*cells, *[row.remark] * remarks])


def _line(cells: Sequence[str]) -> str:
    """Return a row of a Markdown table. A bar in a cell is escaped, as it would end the cell."""
    return f"| {' | '.join(one.replace('|', chr(92) + '|') for one in cells)} |"


def prose(words: str) -> str:
    """Return a text as HTML; what stands between backticks is code."""
    parts = html.escape(words).split("`")
    return "".join(f"<code>{one}</code>" if at % 2 else one for at, one in enumerate(parts))


def label_text(label: Label) -> str:
    return label if isinstance(label, str) else f"{label:g}"


def printed_decimals(table: PaperTable, place: int) -> int:
    """Return the largest number of decimals with which the paper prints a figure of this column."""
    printed = [row.theirs[place] for row in table.rows if row.theirs[place] is not None]
    return max((len(f"{one:.10g}".partition(".")[2]) for one in printed), default=0)


def decimals_of(filled: Filled, place: int) -> int:
    """Return the number of decimals for all of our figures in a column: as many as show three
    digits of its middle figure, and no fewer than the paper prints."""
    sizes = sorted(abs(one.figures[place] or 0.0) for one in filled.ours)
    middle = sizes[len(sizes) // 2] or max(sizes)
    counts = all(one.is_integer() for one in sizes)
    digits = 0 if counts else 2 - floor(log10(middle))
    return max(printed_decimals(filled.table, place), min(4, max(0, digits)))


def figure_text(figure: float | None, decimals: int) -> str:
    """Return a figure with this many decimals, or with two digits if it is too small for them; a
    dash for None."""
    if figure is None:
        return "–"
    text = f"{figure:,.{decimals}f}"
    return f"{figure:.2g}" if figure and not text.strip("-0.,") else text


def _anchor(words: str) -> str:
    return "".join(one if one.isalnum() else "-" for one in words.lower())


_STYLE = """
:root { color-scheme: light dark; --line: #8886; --theirs: #8882; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0; }
main { max-width: 72rem; margin: 0 auto; padding: 1.5rem; }
h2 { margin-top: 3rem; border-bottom: 2px solid var(--line); }
h3 { margin: 2rem 0 .5rem; }
p { max-width: 60rem; margin: .4rem 0; }
code { overflow-wrap: anywhere; }
nav ul { columns: 2; font-size: .9rem; }
dl.facts { display: grid; grid-template-columns: 6rem 1fr; font-size: .9rem; }
dd { margin: 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; margin: .6rem 0; }
th, td { border: 1px solid var(--line); padding: .2rem .5rem; text-align: left; }
th { background: Canvas; }
td { white-space: nowrap; }
td.remark { white-space: normal; min-width: 11rem; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.theirs { background: var(--theirs); }
thead tr + tr th { text-align: right; }
img { max-width: 33.5rem; width: 100%; display: inline-block; background: #fff; margin: .3rem 0; }
.swipe { display: none; }
@media (max-width: 50rem) {
  main { padding: 1rem; }
  nav ul { columns: 1; padding-left: 1.2rem; }
  table { font-size: .8rem; }
  th, td { padding: .15rem .35rem; }
  .swipe { display: block; font-size: .8rem; opacity: .8; }
}
"""
