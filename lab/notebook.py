"""Make the notebook's tables of kept rows: `python -m lab.notebook [FILE…]`.

A table of `lab/docs/notebook.md` between `<!-- rows: NAME -->` and `<!-- end of rows -->` is made
of `lab/results/NAME.json`: its figures are those of the file's rows, and the line above it names
command and commit. A FILE that `tandem bench NAME --json` wrote replaces what is kept."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.bench.faults.overload import LAG_AT_MOST_S, WORSE_AT_MOST
from lab.bench.harness.models import ROOT
from lab.bench.harness.report import Row
from lab.bench.harness.results import RESULTS

PAGE = ROOT / "lab" / "docs" / "notebook.md"
_TABLE = re.compile(r"(<!-- rows: (\w+) -->\n\n).*?(\n\n<!-- end of rows -->)", re.DOTALL)
_VARIANTS = (
    *("float32 distributions", "float16 distributions", "full distribution on rejection"),
    *("sparse, M = 64, R = 4", "ids only"),
)


@dataclass(frozen=True, slots=True)
class KeptTable:
    """Which rows of an experiment are kept, the head of the table, and the cells of a row."""

    shows: Callable[[Row], bool]
    head: Sequence[str]
    cells: Callable[[Row], Sequence[str]]

    def lines(self, rows: Sequence[Row]) -> Iterator[str]:
        """Yield the table's lines; a line that several rows give stands once."""
        shown = dict.fromkeys(tuple(self.cells(row)) for row in rows)
        for cells in (self.head, ["---"] * len(self.head), *shown):
            yield f"| {' | '.join(cells)} |"


def _bytes_cells(row: Row) -> Sequence[str]:
    ways = ("uplink_bytes_per_round", "downlink_bytes_per_round")
    return (
        f"`{row['preset']}`, {row['variant']}",
        *(f"{row[way]:,.0f} ({row[f'{way}_max']:,.0f})" for way in ways),
    )


def _capacity_cells(row: Row) -> Sequence[str]:
    return (
        f"{row['rtt_s'] * 1e3:.0f} ms",
        f"{row['declared']:g}",
        f"{row['pacing']['cloud_draft_share']:.2f}",
        *(f"{row[arm]}" for arm in ("ar", "cloud-draft", "coupled", "stream")),
        f"{row['edge_over_cloud']:.2f}",
        f"{row['bound_at_load']:.2f}",
    )


_TENTH = {
    "greedy": "64 long answers at once",
    "slow-readers": "24 answers left unread",
    "idle": "64 silent streams and connections",
    "grammars": "grammars",
    "choices": "8 choices each",
    "logprobs": "log-probabilities",
    "images": "images",
    "contexts": "prompts of a whole context",
    "embeddings": "embeddings of 128 texts",
    "windows": "embeddings of 4 long texts",
    "documents": "documents",
    "tokenising": "long texts to tokenise",
    "turns": "conversations of 1,601 turns",
    "letters": "texts without tokens",
}
"""What the tenth tenant of `bench overload` does, in its order."""


def _pressed(row: Row) -> str:
    return str(row.get("pressure") or row.get("asks_for"))


def _overload_cells(row: Row) -> Sequence[str]:
    beside_s = row.get("beside_p95_s") or row["ttft_p95_s"]
    calls = row.get("calls_worse")
    return (
        f"{row['slower']:g}",
        _TENTH[_pressed(row)],
        f"{beside_s / row['worse']:.2f}",
        _judged(row["worse"], WORSE_AT_MOST),
        f"{row['calls_alone_p95_s']:.3f}" if calls else "",
        _judged(calls, WORSE_AT_MOST) if calls else "",
        _judged(row["lag_p99_s"], LAG_AT_MOST_S, "{:.3f}"),
        str(row["failed"]),
    )


def _judged(figure: float, at_most: float, form: str = "{:.2f}") -> str:
    """Return the figure, in bold if it misses its goal."""
    said = form.format(figure)
    return said if figure <= at_most else f"**{said}**"


TABLES = {
    "bytes": KeptTable(
        lambda row: row.get("variant") in _VARIANTS,
        ("preset", "uplink, mean (largest)", "downlink, mean (largest)"),
        _bytes_cells,
    ),
    "capacity": KeptTable(
        lambda row: row["target"] == "memory" and row["tpot_limit_s"] == 0.1 and "bound" in row,
        (
            *("round trip", "acceptance", "cloud's draft step ÷ pass"),
            *("`ar`", "`cloud-draft`", "`coupled`", "`stream`", "edges ÷ `cloud-draft`", "bound"),
        ),
        _capacity_cells,
    ),
    "overload": KeptTable(
        lambda row: _pressed(row) in _TENTH,
        (
            *("passes ×", "the tenth tenant", "p95 TTFT of the nine alone, s", "÷ alone"),
            *("small calls alone, s", "÷ alone", "event-loop lag, p99, s", "failed"),
        ),
        _overload_cells,
    ),
}


def with_rows(text: str) -> str:
    """Return the notebook with each of these tables made anew."""
    return _TABLE.sub(lambda found: f"{found[1]}{_section(found[2])}{found[3]}", text)


def _section(name: str) -> str:
    kept = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    lines = TABLES[name].lines(kept["rows"])
    return "\n".join((f"`{kept['command']}`, commit {kept['commit'][:8]}:", "", *lines))


def keep(report: Path) -> None:
    """Keep what its table shows of a report that an experiment wrote."""
    written = json.loads(report.read_text(encoding="utf-8"))
    name = written["experiment"]
    options = re.sub(r" --json \S+", "", written["command"].partition(f" {name}")[2])
    rows = [row for row in written["rows"] if TABLES[name].shows(row)]
    kept = {"command": f"tandem bench {name}{options}", "commit": written["commit"], "rows": rows}
    text = json.dumps(kept, indent=1, ensure_ascii=False)
    (RESULTS / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")


def main(reports: Sequence[str]) -> None:
    for report in reports:
        keep(Path(report))
    PAGE.write_text(with_rows(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
