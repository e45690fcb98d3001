"""What an experiment found: rows with fixed names, goals, a table, a JSON file.

Invariant: every row has every name of `FIELDS`, with None where a figure does not apply; further
names may follow. Durations in seconds, sizes in bytes.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from lab.machine import Machine

T = TypeVar("T")
Row = dict[str, Any]

FIELDS = (
    "preset",
    "draft_length",
    "pacing",
    "rtt_s",
    "mbps",
    "seed",
    "tokens_per_s",
    "speedup_over_ar",
    "tpot_s",
    "ttft_s",
    "acceptance_rate",
    "target_passes_per_token",
    "uplink_bytes_per_token",
    "downlink_bytes_per_token",
)


QUIET_SHARE = 0.05
"""Of the cores: what others may take before figures of time are doubtful."""


def make_row(**figures: Any) -> Row:
    """Return a row with every fixed name, then the further ones in the order given."""
    return dict.fromkeys(FIELDS) | figures


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure the project promises, and whether this run reached it."""

    name: str
    figure: float
    limit: float
    sense: Literal["at most", "at least"]

    @property
    def met(self) -> bool:
        """False for a figure that is not a number."""
        return self.figure <= self.limit if self.sense == "at most" else self.figure >= self.limit

    def line(self) -> str:
        verdict = "met" if self.met else "MISSED"
        return f"{verdict}: {self.name}: {_cell(self.figure)} ({self.sense} {_cell(self.limit)})"


@dataclass(frozen=True, slots=True)
class Table:
    """A printed view of some rows; `columns` are names of figures."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Row]

    def text(self) -> str:
        lines = [
            self.columns,
            *([_cell(row.get(name)) for name in self.columns] for row in self.rows),
        ]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.columns))]
        drawn = ["  ".join(c.rjust(w) for c, w in zip(line, widths, strict=True)) for line in lines]
        return "\n".join([self.title, *drawn])


@dataclass(slots=True)
class Report:
    """One experiment's outcome. `notes` are sentences printed below the tables; `others_busy` is
    the share of the cores that other processes took while it was measured."""

    experiment: str
    seed: int
    quick: bool
    machine: Machine
    command: str
    others_busy: float | None = None
    rows: list[Row] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def met(self) -> bool:
        """True if every goal was reached."""
        return all(goal.met for goal in self.goals)

    def add(self, title: str, columns: tuple[str, ...], rows: Sequence[Row]) -> None:
        """Add rows together with the table that shows them."""
        self.rows.extend(rows)
        self.tables.append(Table(title, columns, rows))

    def text(self) -> str:
        parts = [
            self.machine.line() + self._disturbance(),
            *(table.text() for table in self.tables),
        ]
        parts.append("\n".join([goal.line() for goal in self.goals] + self.notes))
        return "\n\n".join(part for part in parts if part)

    def _disturbance(self) -> str:
        if self.others_busy is None or self.others_busy <= QUIET_SHARE:
            return ""
        return f"\nWARNING: other processes took {self.others_busy:.0%} of the cores meanwhile"

    def to_json(self) -> dict[str, Any]:
        return {
            "experiment": self.experiment,
            "command": self.command,
            "commit": self.machine.commit,
            "machine": self.machine.to_json() | {"others_busy": self.others_busy},
            "quick": self.quick,
            "seed": self.seed,
            "goals": [
                {
                    "name": goal.name,
                    "figure": goal.figure,
                    "sense": goal.sense,
                    "limit": goal.limit,
                    "met": goal.met,
                }
                for goal in self.goals
            ],
            "notes": self.notes,
            "rows": self.rows,
        }

    def write_json(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.json() + "\n", encoding="utf-8")

    def json(self) -> str:
        """Return the report as one JSON object."""
        return json.dumps(_finite(self.to_json()), indent=1)


def progress(words: str) -> None:
    """Say on standard error what is being measured."""
    print(f"… {words}", file=sys.stderr, flush=True)


def counted(
    items: Sequence[T], words: Callable[[T], str], clock: Callable[[], float] = time.monotonic
) -> Iterator[T]:
    """Yield each of `items`, and report it as `progress` does: `words` of it, its number and, from
    the second on, the time left at the pace so far."""
    began_s = clock()
    for done, item in enumerate(items):
        left_s = (len(items) - done) * (clock() - began_s) / done if done else 0.0
        left = f", about {duration_words(left_s)} left" if done else ""
        progress(f"{words(item)} ({done + 1} of {len(items)}{left})")
        yield item


def duration_words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _finite(value: Any) -> Any:
    """Return the value with None in place of every number that JSON cannot hold, such as NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)
