"""The map of `bench when-it-pays` as a picture and as tables of the documentation.

Invariant: picture and tables follow from the rows that are kept beside the picture, so that a test
can tell whether they are current."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from lab.bench.harness.report import Row
from tandem.core.errors import InvalidArgument
from tandem.testing.simulation.model_times import ModelTimes
from tools.svg import STYLE

NAME = "when-it-pays"
BEGIN = "<!-- map: begin -->"
END = "<!-- map: end -->"
WITH_DRAFT = "over_cloud"
WITHOUT_DRAFT = "over_cloud_without_draft"
TITLES = {
    WITH_DRAFT: "The cloud has the draft model, too",
    WITHOUT_DRAFT: "The cloud has no draft model",
}
"""By the figures that are shown."""
WINS = 1.05
LOSES = 0.95
"""What is in between counts as equal."""
LEVELS = (
    (1.5, "edge3", "edge: 1.5 and more"),
    (1.2, "edge2", "1.2 to 1.5"),
    (WINS, "edge1", "1.05 to 1.2"),
    (LOSES, "even", "equal within 5 %"),
    (0.8, "cloud1", "0.8 to 0.95"),
    (0.6, "cloud2", "0.6 to 0.8"),
    (0.0, "cloud3", "cloud: below 0.6"),
)
"""From which ratio on a cell has which colour, and what the legend says."""
_COLOURS = """
  .edge3{fill:#2166ac}.edge2{fill:#67a9cf}.edge1{fill:#d1e5f0}.even{fill:#e8e8ea}
  .cloud1{fill:#fddbc7}.cloud2{fill:#ef8a62}.cloud3{fill:#b2182b}
  .dark{fill:#1c2330}.light{fill:#fff}
"""
_LIGHT = ("edge3", "cloud3")
"""Colours that need light letters."""
_WIDE = 48
_HIGH = 28
_GAP = 22
_LEFT = 108
_TOP = 40
_BLOCK = 52
_SWATCH = 134


def level_of(ratio: float) -> str:
    """Return the class of a cell's colour."""
    return next(name for least, name, _ in LEVELS if ratio >= least)


def picture(rows: Sequence[Row]) -> str:
    """Return the map as SVG: above against a cloud with a draft model, below against one without; a
    panel for each acceptance, in it round trips over sessions."""
    rates, rtts_s, sessions = (_values(rows, axis) for axis in ("declared", "rtt_s", "sessions"))
    panel_wide = len(sessions) * _WIDE + _GAP
    wide = max(_LEFT + len(rates) * panel_wide, 20 + len(LEVELS) * _SWATCH)
    block_high = _BLOCK + len(rtts_s) * _HIGH + 22
    at = {(row["declared"], row["rtt_s"], row["sessions"]): row for row in rows}
    parts = []
    for block, (figure, title) in enumerate(TITLES.items()):
        top = _TOP + block * block_high
        parts.append(_text(title, 16, top, "", "start"))
        for panel, rate in enumerate(rates):
            left = _LEFT + panel * panel_wide
            middle = left + len(sessions) * _WIDE / 2
            parts.append(_text(f"acceptance {rate:g}", middle, top + 24, "small", "middle"))
            for place, count in enumerate(sessions):
                x = left + (place + 0.5) * _WIDE
                parts.append(_text(f"{count}", x, top + 42, "small", "middle"))
            for line, rtt_s in enumerate(rtts_s):
                y = top + _BLOCK + line * _HIGH
                if not panel:
                    words = f"{rtt_s * 1e3:g} ms"
                    parts.append(_text(words, left - 8, y + _HIGH / 2 + 4, "small", "end"))
                for place, count in enumerate(sessions):
                    ratio = at[rate, rtt_s, count][figure]
                    parts += _cell(ratio, left + place * _WIDE, y)
        parts.append(_text("sessions", _LEFT - 8, top + 42, "small", "end"))
    high = _TOP + len(TITLES) * block_high + 34
    for place, (_, name, words) in enumerate(LEVELS):
        x = 16 + place * _SWATCH
        parts.append(f'<rect class="{name}" x="{x}" y="{high - 46}" width="16" height="12"/>')
        parts.append(_text(words, x + 21, high - 36, "key", "start"))
    alt = (
        "Tokens per second with drafts of the edge, relative to the best that the cloud does alone,"
        " by acceptance, round trip and number of sessions"
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high - 18}"'
        f' width="{wide}" height="{high - 18}" role="img">',
        f"<title>{escape(alt)}</title>",
        f"<style>{STYLE}{_COLOURS}  .key{{font-size:10px}}\n</style>",
        f'<rect class="paper" width="{wide}" height="{high - 18}" rx="8"/>',
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _cell(ratio: float, x: float, y: float) -> Iterator[str]:
    name = level_of(ratio)
    ink = "light" if name in _LIGHT else "dark"
    size = f'width="{_WIDE - 2}" height="{_HIGH - 2}"'
    yield f'<rect class="{name}" x="{x + 1:g}" y="{y + 1:g}" {size} rx="3"/>'
    yield _text(f"{ratio:.2f}", x + _WIDE / 2, y + _HIGH / 2 + 4, f"small {ink}", "middle")


def _text(words: str, x: float, y: float, classes: str, anchor: str) -> str:
    named = f' class="{classes}"' if classes else ""
    return f'<text{named} x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


def _values(rows: Sequence[Row], axis: str) -> list[Any]:
    """Return the values of an axis, each once and in order."""
    return sorted({row[axis] for row in rows})


def tables(rows: Sequence[Row], others: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    """Yield the lines of Markdown that say what the picture shows, and what other step times would
    change. `others`: rows of other maps, by words for what is different in them."""
    for figure, title in TITLES.items():
        yield f"**{title}.** {_summary(rows, figure)}"
        yield ""
        yield from _table(rows, figure)
        yield ""
    yield _fastest(rows)
    yield ""
    yield from _others_table(rows, others)


def _summary(rows: Sequence[Row], figure: str) -> str:
    ratios = [row[figure] for row in rows]
    wins = sum(ratio >= WINS for ratio in ratios)
    loses = sum(ratio < LOSES for ratio in ratios)
    faster = f"{wins} (up to {max(ratios):.2f} times as fast)" if wins else "none"
    slower = f"{loses} (down to {min(ratios):.2f} times as fast)" if loses else "none"
    return (
        f"Of {len(ratios)} cells, drafts of the edge are faster in {faster}, equal within 5 % in"
        f" {len(ratios) - wins - loses}, and slower in {slower}."
    )


def _others_table(rows: Sequence[Row], others: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    """Yield a table with a line for each map: where drafts of the edge are faster, and the least
    and the largest ratio."""
    titles = " | ".join(
        words for title in TITLES.values() for words in (title, "lowest to highest")
    )
    yield f"| step times | {titles} |"
    yield "|" + "---|" * (1 + 2 * len(TITLES))
    for words, map_rows in {"as above": rows, **others}.items():
        cells = [words]
        for figure in TITLES:
            ratios = [row[figure] for row in map_rows]
            wins = sum(ratio >= WINS for ratio in ratios)
            cells.append(f"edge faster in {wins} of {len(ratios)} cells")
            cells.append(f"{min(ratios):.2f} to {max(ratios):.2f}")
        yield f"| {' | '.join(cells)} |"


def _fastest(rows: Sequence[Row]) -> str:
    counts = Counter(row["edge"] for row in rows)
    words = ", ".join(f"`{name}` in {count}" for name, count in counts.most_common())
    return f"The fastest of the presets that draft at the edge: {words}."


def _table(rows: Sequence[Row], figure: str) -> Iterator[str]:
    """Yield a table with round trips below each other, sessions side by side; a gain of the edge is
    bold."""
    sessions = _values(rows, "sessions")
    heads = (f"{count} session{'s' * (count > 1)}" for count in sessions)
    yield f"| acceptance | round trip | {' | '.join(heads)} |"
    yield "|" + "---|" * (2 + len(sessions))
    at = {(row["declared"], row["rtt_s"], row["sessions"]): row[figure] for row in rows}
    for rate in _values(rows, "declared"):
        for rtt_s in _values(rows, "rtt_s"):
            ratios = [at[rate, rtt_s, count] for count in sessions]
            cells = [f"**{one:.2f}**" if one >= WINS else f"{one:.2f}" for one in ratios]
            yield f"| {rate:g} | {rtt_s * 1e3:g} ms | {' | '.join(cells)} |"


def write_page(
    page: Path,
    rows: Sequence[Row],
    others: Mapping[str, Sequence[Row]],
    times: ModelTimes,
    command: str,
) -> None:
    """Write tables into a page, between its marks, and picture and rows into the folder `pictures`
    beside it. Raises InvalidArgument for a page without the marks."""
    kept = [_kept(row) for row in rows]
    kept_others = {words: [_ratios(row) for row in map_rows] for words, map_rows in others.items()}
    text = page.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise InvalidArgument("page", f"{page} has no lines {BEGIN!r} and {END!r}")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    lines = "\n".join((BEGIN, "", *tables(kept, kept_others), "", END))
    page.write_text(f"{before}{lines}{after}", encoding="utf-8")
    folder = page.parent / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{NAME}.svg").write_text(picture(kept), encoding="utf-8")
    (folder / f"{NAME}.json").write_text(_json(kept, kept_others, times, command), encoding="utf-8")


def _kept(row: Mapping[str, Any]) -> Row:
    """Return the figures of a row that are not None, with four decimals."""

    def rounded(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: rounded(one) for name, one in value.items()}
        return round(value, 4) if isinstance(value, float) else value

    return {name: rounded(value) for name, value in row.items() if value is not None}


def _ratios(row: Mapping[str, Any]) -> Row:
    """Return what is kept of a row of another map: its place on the map, and the ratios."""
    return {name: _kept(row)[name] for name in ("declared", "rtt_s", "sessions", *TITLES)}


def _json(
    rows: Sequence[Row],
    others: Mapping[str, Sequence[Row]],
    times: ModelTimes,
    command: str,
) -> str:
    declared = {
        "draft_s": times.draft_s,
        "cloud_draft_s": times.cloud_step_s,
        "verify_first_s": times.verify_first_s,
        "verify_further_s": times.verify_further_s,
    }
    maps = {
        words: ",\n".join(json.dumps(row, ensure_ascii=False) for row in map_rows)
        for words, map_rows in {"": rows, **others}.items()
    }
    first = maps.pop("")
    rest = ",\n".join(f"{json.dumps(words)}: [\n{lines}\n]" for words, lines in maps.items())
    head = f'"command": {json.dumps(command)},\n"declared": {json.dumps(declared)}'
    return f'{{{head},\n"rows": [\n{first}\n],\n"others": {{\n{rest}\n}}}}\n'
