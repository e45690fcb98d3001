"""Our figures of each row, kept in a file, so that a report that was interrupted goes on.

A figure is used again only for the same row, seed, size, models and commit; in the report that is
kept with the documentation, whatever the commit, which stands beside it. Invariant: the file is
replaced as a whole, never written in part."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab.bench.harness.suite import ROOT
from lab.bench.papers.paper_table import Figures, PaperRow, PaperTable
from lab.bench.papers.testbed import Testbed
from tandem.core.errors import TandemError


class UnreadableResults(TandemError):
    """The file beside the report is not one of ours."""


@dataclass(frozen=True, slots=True)
class KeptRow:
    """Our figures of one row, and what they took."""

    arguments: dict[str, Any]
    figures: Figures
    machine: str
    took_s: float
    load: float
    """The machine's one-minute average when the row was begun."""
    others_busy: float | None = None
    """The share of the cores that other processes took while it was computed."""
    date: str = ""
    """When it was computed, as 2026-01-31."""

    @property
    def commit(self) -> str:
        return str(self.arguments["commit"])

    @property
    def empty(self) -> bool:
        """True if there is nothing in it, because something that it needs was not there."""
        return all(figure is None for figure in self.figures)


class KeptResults:
    """A file `results.json`; raises UnreadableResults for one that something else wrote.
    `any_commit`: rows of earlier commits count too, each row's latest."""

    def __init__(self, path: Path, commit: str, any_commit: bool = False) -> None:
        self._path = path
        self._commit = commit
        self._any_commit = any_commit
        self._rows = {self._key(kept.arguments): kept for kept in _read(path)}

    def get(self, testbed: Testbed, table: PaperTable, row: PaperRow) -> KeptRow | None:
        return self._rows.get(self._key(self._arguments(testbed, table, row)))

    def needed(self, testbed: Testbed, table: PaperTable, row: PaperRow) -> bool:
        """Return whether a row has to be computed: it is not kept, or was computed without what it
        needs."""
        kept = self.get(testbed, table, row)
        return kept is None or kept.empty

    def forget(self, tables: Iterable[PaperTable]) -> None:
        """Remove the rows of these tables, whatever their arguments."""
        keys = {table.key for table in tables}
        self._rows = {
            name: kept for name, kept in self._rows.items() if kept.arguments["table"] not in keys
        }

    def keep(
        self,
        testbed: Testbed,
        table: PaperTable,
        row: PaperRow,
        figures: Figures,
        machine: str,
        took_s: float,
        load: float,
        others_busy: float | None = None,
    ) -> KeptRow:
        """Add a row, and replace the file, which has a line for each row."""
        arguments = self._arguments(testbed, table, row)
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        kept = KeptRow(arguments, figures, machine, took_s, load, others_busy, date)
        self._rows[self._key(arguments)] = kept
        self._path.parent.mkdir(parents=True, exist_ok=True)
        written = self._path.with_suffix(".part")
        rows = ",\n".join(
            json.dumps(asdict(entry), ensure_ascii=False) for entry in self._rows.values()
        )
        written.write_text(f'{{"rows": [\n{rows}\n]}}\n', encoding="utf-8")
        os.replace(written, self._path)
        return kept

    def _key(self, arguments: dict[str, Any]) -> str:
        # What was computed with a folder of tasks stays when a later run is given none.
        left_out = {"commit", "tasks", "prices"} if self._any_commit else set()
        named = {name: value for name, value in arguments.items() if name not in left_out}
        return json.dumps(named, sort_keys=True)

    def _arguments(self, testbed: Testbed, table: PaperTable, row: PaperRow) -> dict[str, Any]:
        """Return the arguments that the row depends on."""
        tasks = testbed.tasks if "tasks" in table.needs else None
        prices = testbed.prices if "prices" in table.needs else None
        return {
            "table": table.key,
            "row": list(row.labels),
            "figures": list(table.figures),
            "seed": testbed.seed,
            "quick": testbed.quick,
            "draft": _place(testbed.models.draft),
            "target": _place(testbed.models.target),
            "tasks": None if tasks is None else tasks.resolve().name,
            "prices": None if prices is None else list(prices),
            "commit": self._commit,
        }


def _place(model: str) -> str:
    """Return where a model is, relative to the repository's folder if it is in there."""
    path = Path(model)
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else model


def _read(path: Path) -> Iterator[KeptRow]:
    if not path.exists():
        return
    try:
        for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
            yield KeptRow(
                row["arguments"],
                tuple(row["figures"]),
                row["machine"],
                row["took_s"],
                row.get("load", 0.0),
                row.get("others_busy"),
                row.get("date", ""),
            )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnreadableResults(f"{path}: {error!r}; remove it to start again") from None
