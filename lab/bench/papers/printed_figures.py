"""What is typed in from the papers, checked against their texts.

`printed_figures.json` has, for each table, the figures that were found in the paper's text, and the
hash of that text. A test compares it with the tables, so that no figure changes without this check.
The texts are no part of this repository: a folder with `dssd.txt`, `picospec.txt`, `fsd.txt`,
`tslt.txt` and `dragon.txt`.

    python -m lab.bench.papers.printed_figures FOLDER
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lab.bench.harness.models import ROOT
from lab.bench.papers.headlines import HEADLINES
from lab.bench.papers.paper_report import all_tables
from lab.bench.papers.paper_table import PaperTable

RECORD = Path(__file__).with_name("printed_figures.json")
HEADLINE_FIGURES = "headlines"
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*\.?\d*")
Lines = Sequence[frozenset[float]]
"""The numbers in each line of a text."""


def texts_folder() -> Path | None:
    """Return the folder of the papers' texts: the one that PAPERS_TEXTS names, else `.papers`
    beside this repository's other folders, which git ignores. None where neither is there."""
    named = os.environ.get("PAPERS_TEXTS")
    folder = Path(named) if named else ROOT / ".papers"
    return folder if named or folder.is_dir() else None


def text_name(paper: str) -> str:
    """Return the name of the file with a paper's text."""
    return f"{paper.lower().split('/')[0]}.txt"


def typed_in() -> dict[str, dict[str, list[float]]]:
    """Return the figures that are typed in, by paper and table, each once, in order."""
    found: dict[str, dict[str, list[float]]] = {}
    for table in all_tables():
        figures = {one for row in table.rows for one in row.theirs if one is not None}
        if figures:
            found.setdefault(table.paper, {})[table.key] = sorted(map(float, figures))
    for paper, tables in found.items():
        claimed = {one for line in HEADLINES if line.paper == paper for one in line.printed}
        tables[HEADLINE_FIGURES] = sorted(claimed)
    return found


def recorded() -> dict[str, Any]:
    """Return what the last check recorded: for each paper the `sha256` of its text, and `figures`
    by table."""
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return record


def numbers_of(text: str) -> Lines:
    return tuple(
        frozenset(float(one.replace(",", "")) for one in NUMBER.findall(line))
        for line in text.splitlines()
    )


def not_in_text(table: PaperTable, lines: Lines) -> Iterator[str]:
    """Yield the rows whose figures are not in the paper's text: all of a row in one line where the
    table says so, else each of them anywhere."""
    everywhere: frozenset[float] = frozenset().union(*lines)
    for row in table.rows:
        typed = {float(one) for one in row.theirs if one is not None}
        found = any(typed <= line for line in lines) if table.by_line else typed <= everywhere
        if not found:
            yield f"{table.key}, {row.labels}: {sorted(typed - everywhere) or 'in no line'}"


def missing_in(folder: Path) -> Iterator[str]:
    """Yield every typed-in figure that its paper's text in the folder does not have."""
    for paper in typed_in():
        lines = numbers_of((folder / text_name(paper)).read_text(encoding="utf-8"))
        everywhere: frozenset[float] = frozenset().union(*lines)
        for table in (table for table in all_tables() if table.paper == paper):
            yield from not_in_text(table, lines)
        for line in (line for line in HEADLINES if line.paper == paper):
            if missing := set(line.printed) - everywhere:
                yield f"{paper}, {line.claim}: {sorted(missing)}"


def sha256_of(folder: Path, paper: str) -> str:
    return hashlib.sha256((folder / text_name(paper)).read_bytes()).hexdigest()


def main(folder: Path) -> int:
    """Check the figures, and write the record if all are found; return the exit status."""
    complaints = list(missing_in(folder))
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    if complaints:
        return 1
    record = {
        paper: {"sha256": sha256_of(folder, paper), "figures": tables}
        for paper, tables in typed_in().items()
    }
    RECORD.write_text(_compact(record), encoding="utf-8")
    print(f"{sum(map(len, typed_in().values()))} lists of figures stand in the papers' texts")
    return 0


def _compact(record: dict[str, Any]) -> str:
    """Return the record as JSON with a line for each table."""
    papers = []
    for paper, entry in record.items():
        tables = ",\n".join(
            f"   {json.dumps(key)}: {json.dumps(figures)}"
            for key, figures in entry["figures"].items()
        )
        head = f' {json.dumps(paper)}: {{\n  "sha256": "{entry["sha256"]}",\n'
        papers.append(f'{head}  "figures": {{\n{tables}\n  }}\n }}')
    return "{\n" + ",\n".join(papers) + "\n}\n"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
