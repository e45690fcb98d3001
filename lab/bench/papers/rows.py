"""The filled rows of a table, and our figures ÷ the paper's. Invariant: the numbers are taken from
the rows when the report is made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

Figure = float | None
ROUNDING = 0.005
"""What counts as equal: a quotient this close to 1."""


@dataclass(frozen=True, slots=True)
class FilledRow:
    """Labels, our figures and the paper's, by the names of their columns."""

    labels: Mapping[str, Any]
    ours: Mapping[str, Figure]
    theirs: Mapping[str, Figure]


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of one table, in its order."""

    rows: Sequence[FilledRow]

    def __iter__(self) -> Iterator[FilledRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def where(self, wanted: Mapping[str, Any]) -> Rows:
        """Return the rows with these labels."""
        return Rows([row for row in self.rows if wanted.items() <= dict(row.labels).items()])

    def ours(self, figure: str) -> list[float]:
        """Return our figure of every row that has it."""
        return [one for row in self.rows if (one := row.ours[figure]) is not None]

    def pairs(self, figure: str) -> list[tuple[float, float]]:
        """Return our figure and the paper's, of every row that has both."""
        both = ((row.ours[figure], row.theirs[figure]) for row in self.rows)
        return [(mine, printed) for mine, printed in both if not (mine is None or printed is None)]

    def values(self, label: str) -> list[Any]:
        """Return the values of a label in these rows, each once."""
        return list(dict.fromkeys(row.labels[label] for row in self.rows))


def compared(rows: Rows, figures: Sequence[str]) -> str:
    """Return a sentence on each figure that the paper prints: ours as multiples of it. Empty where
    it prints none."""
    parts = [f"{name} {words}" for name in figures if (words := _quotients(rows, name))]
    return f"{'; '.join(parts)}." if parts else ""


def span(values: Sequence[float], form: str = ".3g") -> str:
    """Return the range of the values in words: "1.2 to 3.4", or one number where both ends are
    equal."""
    ends = (min(values), max(values))
    low, high = (
        # What is rounded to 0 has no sign.
        format(end if float(format(end, form).replace(",", "")) else 0.0, form)
        for end in ends
    )
    return low if low == high else f"{low} to {high}"


def _quotients(rows: Rows, figure: str) -> str:
    quotients = [mine / printed for mine, printed in rows.pairs(figure) if printed]
    if (
        not quotients or min(quotients) <= 0
    ):  # nothing to compare, or one gains what the other loses
        return ""
    if all(abs(one - 1) <= ROUNDING for one in quotients):
        return "as printed"
    middle = f" (median {median(quotients):.2f})" if len(quotients) > 2 else ""
    return f"{span(quotients, '.2f')}{middle}"
