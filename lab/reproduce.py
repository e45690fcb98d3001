"""Make one published figure again: `python -m lab.reproduce CLAIM`, or `make reproduce CLAIM=…`.

A claim is a table of the papers by its key, or an entry of CLAIMS. Its command runs, and what comes
out is compared with what is published; the exit status is 1 where they are further apart than the
tolerance, or a model is missing. Without a claim it lists all of them as `lab/README.md` does."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lab.bench.harness.models import ROOT, Models
from lab.bench.papers.kept_results import KeptResults
from lab.bench.papers.pages import fill
from lab.bench.papers.paper_report import all_tables
from lab.bench.papers.paper_table import Basis, PaperTable, over_seeds
from lab.bench.papers.testbed import Testbed

SAME = 1e-4
"""Tolerance of what does not depend on the machine."""
MEASURED = 0.25
"""Of what does; on another machine expect less agreement."""
NO_MODELS = "its models are not here; 'make real-pair large-pair' brings them"
"""Why a row of a table that needs downloads has no figure."""
SMOLLM2 = "--target models/real/smollm2 --draft models/real/smollm2-draft --dtype-draft int8"


@dataclass(frozen=True, slots=True)
class Claim:
    """A figure of the documentation. `command` follows `tandem bench`; `where`: the row of its
    JSON that has the `figure`; `tolerance`: relative."""

    words: str
    command: str
    where: Mapping[str, Any]
    figure: str
    expected: float
    tolerance: float
    minutes: float

    def found(self, rows: Sequence[Mapping[str, Any]]) -> float:
        """Return the figure of the first row that the claim means; raise LookupError for none."""
        for row in rows:
            if self.where.items() <= row.items():
                return float(row[self.figure])
        raise LookupError(f"no row has {dict(self.where)}")

    def holds(self, figure: float) -> bool:
        return abs(figure / self.expected - 1) <= self.tolerance


_GREEDY = {"sampling": "temperature 0", "preset": "auto", "over": "ar"}
CLAIMS: dict[str, Claim] = {
    "prompts-far": Claim(
        "`auto` ÷ the large model alone, round trip of 40 ms, mean of twelve prompts",
        f"prompts {SMOLLM2} --rtt-ms 40",
        *(_GREEDY, "mean", 1.41, MEASURED, 25),
    ),
    "prompts-server-drafts": Claim(
        "the same beside a draft model on the server, one machine",
        f"prompts {SMOLLM2} --rounds 1",
        *(_GREEDY, "mean", 2.26, MEASURED, 10),
    ),
    "bytes": Claim(
        "bytes up of a round of `dssd` at draft length 8",
        "bytes --quick --seed 0",
        *({"preset": "dssd"}, "uplink_bytes_per_round", 99.0, 0.05, 1),
    ),
    "when-it-pays": Claim(
        "drafts at the edge ÷ the cloud alone, near, acceptance 0.9, one session",
        "when-it-pays",
        {"declared": 0.9, "rtt_s": 0.0, "sessions": 1},
        *("over_cloud_without_draft", 2.49, 0.02, 1),
    ),
}


def markdown() -> Iterator[str]:
    """Yield the lines of a table of all claims."""
    yield "| claim | what | command | expected | tolerance | minutes |"
    yield "|---|---|---|---|---|---|"
    for name, claim in CLAIMS.items():
        figures = f"{claim.expected:g} | {claim.tolerance:.0%} | {claim.minutes:g}"
        yield f"| `{name}` | {claim.words} | `tandem bench {claim.command}` | {figures} |"
    kept = KeptResults()
    for table in all_tables():
        took_s = sum(one.took_s for row in table.rows if (one := kept.get(table, row)))
        minutes = f"{max(1.0, took_s / 60):.0f}" if took_s or table.formula else "?"
        page = f"[the page](docs/papers/{table.paper.lower()}.md#{table.key})"
        command = f"`tandem bench papers --only {table.key}`"
        within = f"{100 * tolerance_of(table):g}%"
        what = f"{table.paper}, {table.place}"
        yield f"| `{table.key}` | {what} | {command} | {page} | {within} | {minutes} |"


def tolerance_of(table: PaperTable) -> float:
    return MEASURED if table.basis is Basis.PROCESSES else SAME


def reproduce_claim(claim: Claim) -> Iterator[tuple[str, bool]]:
    """Run the claim's experiment; yield what came out, and whether it holds."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        command = (*shlex.split(claim.command), "--json", str(file))
        program = (sys.executable, "-P", "-m", "lab.bench.main")
        subprocess.run((*program, *command), cwd=ROOT, check=True)
        figure = claim.found(json.loads(file.read_text(encoding="utf-8"))["rows"])
    yield f"{claim.words}: {figure:.4g}, published {claim.expected:g}", claim.holds(figure)


def reproduce_table(table: PaperTable) -> Iterator[tuple[str, bool | None]]:
    """Compute every row; yield each beside what is published, and whether they agree: None where
    the row's models are not on this machine."""
    testbeds = [Testbed(Models(), 1 + number, quick=False) for number in range(table.seeds)]
    published = fill(table, KeptResults(), testbeds[0]).ours or ()
    for row, theirs in zip(table.rows, published, strict=True):
        ours, _ = over_seeds([table.ours(testbed, row) for testbed in testbeds])
        if table.downloads and all(mine is None for mine in ours):
            yield f"{row.labels}: {NO_MODELS}", None
            continue
        pairs = [pair for pair in zip(ours, theirs, strict=True) if pair[1] is not None]
        agree = all(
            mine is not None and abs(mine - kept) <= tolerance_of(table) * abs(kept) + 1e-9
            for mine, kept in pairs
            if kept is not None
        )
        yield f"{row.labels}: {ours}, published {theirs}", agree


_OUTCOMES = {True: "agrees", False: "DIFFERS", None: "NO FIGURE"}


def main(names: Sequence[str]) -> int:
    """Return the exit status."""
    if not names:
        print("\n".join(markdown()))
        return 0
    tables = {table.key: table for table in all_tables()}
    (name,) = names
    lines: Iterable[tuple[str, bool | None]]
    if name in CLAIMS:
        lines = reproduce_claim(CLAIMS[name])
    elif name in tables:
        lines = reproduce_table(tables[name])
    else:
        print(f"{name!r} is no claim: {', '.join([*CLAIMS, *tables])}", file=sys.stderr)
        return 2
    status = 0
    for words, holds in lines:
        print(f"{_OUTCOMES[holds]}: {words}")
        status = status if holds else 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
