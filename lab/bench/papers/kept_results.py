"""Our figures of rows that take longer than a moment, kept with the code that they are of.

Formulas are not kept: they are computed whenever they are shown. Invariants: a row is of a commit,
never of a tree with changes; the file is replaced as a whole, never written in part."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lab.bench.harness.results import RESULTS, code_of
from lab.bench.papers.paper_table import Figures, Labels, PaperRow, PaperTable
from lab.machine import CHANGED, Machine
from tandem.core.errors import TandemError

KEPT = RESULTS / "papers.json"


class UnreadableResults(TandemError):
    """The file of rows is not one of ours."""


class ChangedTree(TandemError):
    """A row of a tree with changes could not be made again."""


@dataclass(frozen=True, slots=True)
class KeptRow:
    """Our figures of one row. `code`: the hash of all modules that it was computed by."""

    table: str
    row: Labels
    figures: Figures
    errors: Figures
    """Standard errors over seeds; none of one seed."""
    code: str
    commit: str
    date: str
    seed: int
    machine: str
    took_s: float
    others_busy: float | None
    """The share of the cores that other processes took while it was computed."""


class KeptResults:
    """The rows of a file; raises UnreadableResults for one that something else wrote."""

    def __init__(self, path: Path = KEPT) -> None:
        self._path = path
        self._rows = {_key(kept.table, kept.row): kept for kept in _read(path)}

    def get(self, table: PaperTable, row: PaperRow) -> KeptRow | None:
        return self._rows.get(_key(table.key, row.labels))

    def current(self, table: PaperTable, row: PaperRow) -> bool:
        """Return whether the row is there, and was made by the code that is here."""
        kept = self.get(table, row)
        return kept is not None and kept.code == code_of(table.module)

    def keep(
        self,
        table: PaperTable,
        row: PaperRow,
        figures: Figures,
        *,
        errors: Figures = (),
        seed: int,
        machine: Machine,
        took_s: float,
        others_busy: float | None = None,
    ) -> None:
        """Add a row, and replace the file, which has a line for each row. Raises ChangedTree."""
        refuse_changes(machine)
        kept = KeptRow(
            table=table.key,
            row=row.labels,
            figures=figures,
            errors=errors,
            code=code_of(table.module),
            commit=machine.commit,
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            seed=seed,
            machine=f"{machine.processor}, {machine.cores} cores",
            took_s=round(took_s, 2),
            others_busy=None if others_busy is None else round(others_busy, 2),
        )
        self._rows[_key(table.key, row.labels)] = kept
        self._write()

    def forget_others(self, tables: Sequence[PaperTable]) -> None:
        """Remove rows that none of these tables has, or that have other columns."""
        there = {
            _key(table.key, row.labels): len(table.figures)
            for table in tables
            for row in table.rows
        }
        self._rows = {
            key: kept for key, kept in self._rows.items() if there.get(key) == len(kept.figures)
        }
        self._write()

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        written = self._path.with_suffix(".part")
        rows = ",\n".join(
            json.dumps(asdict(entry), ensure_ascii=False) for entry in self._rows.values()
        )
        written.write_text(f'{{"rows": [\n{rows}\n]}}\n', encoding="utf-8")
        os.replace(written, self._path)


def refuse_changes(machine: Machine) -> None:
    """Raise ChangedTree if the tree has changes beside what is made of rows."""
    if CHANGED in machine.commit:
        raise ChangedTree("the tree has changes; commit them before rows are kept")


def _key(table: str, labels: tuple[object, ...]) -> str:
    return json.dumps([table, *labels])


def _read(path: Path) -> Iterator[KeptRow]:
    if not path.exists():
        return
    try:
        for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
            lists = {name: tuple(row[name]) for name in ("row", "figures", "errors")}
            yield KeptRow(**(row | lists))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnreadableResults(f"{path}: {error!r}; remove it to start again") from None
