"""A table or figure of a paper: what it printed, and how we come to the same figures.

Invariant: `theirs` is typed in from the paper and nothing else is; what we set beside it is
computed, in the units that the paper prints. Every row has a place for every figure, with None
where there is none. How ours are made is said by what makes them: a formula is given a row's labels
and nothing that could run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from lab.bench.papers.testbed import Testbed

Label = str | float
Labels = tuple[Label, ...]
Figure = float | None
Figures = tuple[Figure, ...]
Formula = Callable[[Labels], Figures]
Compute = Callable[[Testbed, Labels], Figures]
SEEDS = 5
"""Of rows in virtual time, counted up from the report's."""


class Basis(StrEnum):
    """What our figures rest on; nothing of it is the papers' own hardware."""

    FORMULA = "Formula, nothing run"
    VIRTUAL_TIME = "Virtual time: real state machines and messages, declared step times"
    DISTRIBUTIONS = "Exact arithmetic over distributions of models"
    PROCESSES = "Measured on this machine: real processes beside virtual time"


@dataclass(frozen=True, slots=True)
class PaperRow:
    """`labels` say which row it is; `theirs` are the paper's figures in its units."""

    labels: Labels
    theirs: Figures


@dataclass(frozen=True, slots=True)
class PaperTable:
    """`place` is where the paper has it, `declared` what is paced, simulated or assumed. `printed`
    says what is to be known of the paper's own figures. Either a `formula`, or `compute` with its
    `basis`."""

    key: str
    paper: str
    place: str
    title: str
    labels: tuple[str, ...]
    figures: tuple[str, ...]
    rows: tuple[PaperRow, ...]
    declared: str
    printed: str = ""
    formula: Formula | None = None
    compute: Compute | None = None
    basis: Basis = Basis.FORMULA
    by_line: bool = False
    """Whether a line of the paper's text holds all figures of a row."""
    downloads: bool = False
    """Whether it needs models that are no part of this repository."""

    def __post_init__(self) -> None:
        if (self.formula is None) == (self.compute is None) or (
            (self.formula is None) == (self.basis is Basis.FORMULA)
        ):
            raise ValueError(f"{self.key}: either a formula, or what is computed and its basis")
        for row in self.rows:
            if (len(row.labels), len(row.theirs)) != (len(self.labels), len(self.figures)):
                raise ValueError(f"{self.key}: {row.labels} does not have the table's columns")

    @property
    def module(self) -> str:
        """Where the table's figures are made."""
        made_by: Any = self.formula or self.compute
        return str(made_by.__module__)

    @property
    def seeds(self) -> int:
        """How many seeds a row is a mean of."""
        return SEEDS if self.basis is Basis.VIRTUAL_TIME else 1

    def ours(self, testbed: Testbed, row: PaperRow) -> Figures:
        """Return our figures of a row; raise ValueError where they are not one for each column."""
        if self.formula is not None:
            figures = self.formula(row.labels)
        else:
            assert self.compute is not None, "it has no formula"
            figures = self.compute(testbed, row.labels)
        if len(figures) != len(self.figures):
            raise ValueError(f"{self.key}: {len(figures)} figures for {len(self.figures)} columns")
        return figures

    def compares(self, place: int) -> bool:
        """Return whether the paper prints this figure in any row."""
        return any(row.theirs[place] is not None for row in self.rows)


def over_seeds(found: Sequence[Figures]) -> tuple[Figures, Figures]:
    """Return the means of a row's figures over seeds, and their standard errors; no errors of one
    seed, and None where a seed has no figure."""
    if len(found) == 1:
        return found[0], ()
    means, errors = list[Figure](), list[Figure]()
    for column in zip(*found, strict=True):
        known = [figure for figure in column if figure is not None]
        complete = len(known) == len(column)
        means.append(fmean(known) if complete else None)
        errors.append(stdev(known) / sqrt(len(known)) if complete else None)
    return tuple(means), tuple(errors)


@dataclass(frozen=True, slots=True)
class FilledRow:
    """Labels, our figures and the paper's, by the names of their columns."""

    labels: dict[str, Label]
    ours: dict[str, Figure]
    theirs: dict[str, Figure]


def filled_rows(table: PaperTable, ours: Sequence[Figures]) -> list[FilledRow]:
    """Return a table's rows with our figures."""
    return [
        FilledRow(
            dict(zip(table.labels, row.labels, strict=True)),
            dict(zip(table.figures, mine, strict=True)),
            dict(zip(table.figures, row.theirs, strict=True)),
        )
        for row, mine in zip(table.rows, ours, strict=True)
    ]
