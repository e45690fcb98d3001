"""Our figures of each row, kept in a file, so that a report that was interrupted goes on.

A figure is used again only for the same row, seed, size, models and commit. Invariant: the file is
replaced as a whole, never written in part."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

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


class KeptResults:
    """A file `results.json`; raises UnreadableResults for one that something else wrote."""

    def __init__(self, path: Path, commit: str) -> None:
        self._path, self._commit = path, commit
        self._rows = dict(_read(path))

    def get(self, testbed: Testbed, table: PaperTable, row: PaperRow) -> KeptRow | None:
        return self._rows.get(_key(self._arguments(testbed, table, row)))

    def forget(self, tables: Iterable[PaperTable]) -> None:
        """Rows of these tables, of whatever arguments."""
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
    ) -> KeptRow:
        """Add a row and replace the file."""
        arguments = self._arguments(testbed, table, row)
        kept = KeptRow(arguments, figures, machine, took_s, load)
        self._rows[_key(arguments)] = kept
        self._path.parent.mkdir(parents=True, exist_ok=True)
        written = self._path.with_suffix(".part")
        rows = [asdict(entry) for entry in self._rows.values()]
        written.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")
        os.replace(written, self._path)
        return kept

    def _arguments(self, testbed: Testbed, table: PaperTable, row: PaperRow) -> dict[str, Any]:
        """Of what was given, what the row depends on."""
        tasks = testbed.tasks if "tasks" in table.needs else None
        prices = testbed.prices if "prices" in table.needs else None
        return {
            "table": table.key,
            "row": list(row.labels),
            "figures": list(table.figures),
            "seed": testbed.seed,
            "quick": testbed.quick,
            "draft": testbed.models.draft,
            "target": testbed.models.target,
            "tasks": None if tasks is None else str(tasks),
            "prices": None if prices is None else list(prices),
            "commit": self._commit,
        }


def _read(path: Path) -> Iterator[tuple[str, KeptRow]]:
    if not path.exists():
        return
    try:
        for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
            figures = tuple(row["figures"])
            facts = row["machine"], row["took_s"], row.get("load", 0.0)
            kept = KeptRow(row["arguments"], figures, *facts)
            yield _key(kept.arguments), kept
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnreadableResults(f"{path}: {error!r}; remove it to start again") from None


def _key(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, sort_keys=True)
