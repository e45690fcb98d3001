"""A table or figure of a paper: what it printed, and how we come to the same figures.

Invariant: `theirs` is typed in from the paper and nothing else is; what we set beside it is
computed when the report is made, in the units that the paper prints. Every row has a place for
every figure, with None where there is none and a remark that says why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from lab.bench.harness.report import Goal
from lab.bench.papers.rows import FilledRow, Rows, compared
from lab.bench.papers.testbed import Testbed

Label = str | float
Labels = tuple[Label, ...]
Figures = tuple[float | None, ...]
Compute = Callable[[Testbed, Labels], Figures]


class Basis(StrEnum):
    """What our figures rest on; nothing of it is the papers' own hardware."""

    COST_MODEL = "cost model, nothing run"
    VIRTUAL_TIME = "virtual time: real state machines and messages, declared step times"
    DISTRIBUTIONS = "exact arithmetic over distributions of the demo pair, or the model a row names"
    FILES = "read from the files of the models that are here"
    MEASURED = "measured on this machine with the demo pair"
    PROCESSES = "measured on this machine: real processes beside virtual time"

    @property
    def needs_quiet(self) -> bool:
        """True if what else the machine does changes the figures."""
        return self in (Basis.MEASURED, Basis.PROCESSES)


@dataclass(frozen=True, slots=True)
class PaperRow:
    """`labels` say which row it is; `theirs` are the paper's figures in its units."""

    labels: Labels
    theirs: Figures
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Plot:
    """One figure over one label, a curve for each value of the others; `logarithmic`: of x.
    `words`: what stands beside the axis, where the column's head does not say all. `also`: further
    figures of the same kind, in the same axes."""

    x: str
    figure: str
    logarithmic: bool = False
    words: str = ""
    also: tuple[str, ...] = ()

    @property
    def drawn(self) -> tuple[str, ...]:
        """All of its figures."""
        return (self.figure, *self.also)


@dataclass(frozen=True, slots=True)
class PaperTable:
    """`place` is where the paper has it, `declared` what is paced, simulated or assumed. `printed`
    says what is to be known of the paper's own figures."""

    key: str
    paper: str
    place: str
    title: str
    labels: tuple[str, ...]
    figures: tuple[str, ...]
    rows: tuple[PaperRow, ...]
    basis: Basis
    declared: str
    compute: Compute
    printed: str = ""
    goal: Callable[[Rows], Goal] | None = None
    """What the paper claims, where it is to hold here too."""
    needs: tuple[str, ...] = ()
    """Options, `tasks` or `prices`, without which a row has no figures."""
    by_line: bool = False
    """Whether a line of the paper's text holds all figures of a row."""
    plots: tuple[Plot, ...] = ()
    draw: Callable[[Path], list[str]] | None = None
    """Draws into a folder what no plot of figures is, with matplotlib; returns the files' names."""

    def __post_init__(self) -> None:
        for row in self.rows:
            if (len(row.labels), len(row.theirs)) != (len(self.labels), len(self.figures)):
                raise ValueError(f"{self.key}: {row.labels} does not have the table's columns")

    def compares(self, place: int) -> bool:
        """Return whether the paper prints this figure in any row."""
        return any(row.theirs[place] is not None for row in self.rows)

    def filled(self, ours: Sequence[Figures]) -> Rows:
        """Return the rows with our figures, by the names of the columns."""
        return Rows(
            [
                FilledRow(
                    dict(zip(self.labels, row.labels, strict=True)),
                    dict(zip(self.figures, mine, strict=True)),
                    dict(zip(self.figures, row.theirs, strict=True)),
                )
                for row, mine in zip(self.rows, ours, strict=True)
            ]
        )

    def quotients(self, ours: Sequence[Figures]) -> str:
        """Return our figures ÷ the printed ones as a sentence; empty where nothing is printed."""
        return compared(self.filled(ours), self.figures)

    def checked(self, ours: Figures) -> Figures:
        """Return our figures if there is one for each column of the table; raise ValueError
        otherwise."""
        if len(ours) != len(self.figures):
            raise ValueError(f"{self.key}: {len(ours)} figures for {len(self.figures)} columns")
        return ours
