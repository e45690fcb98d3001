"""The columns of tables by processes: what is measured beside virtual time, and what took
longer."""

from __future__ import annotations

from collections.abc import Sequence

from lab.bench.papers.paper_table import Figures
from lab.bench.papers.process_runs import RunResult

EXCESS = ("longer draft steps, ms", "longer passes, ms", "the rest, ms")
"""What took that much of a token longer than in virtual time."""
COLUMNS = ("ms a token", "virtual time, ms", *EXCESS, "accepted, %", "same text, %")


def columns_of(result: RunResult) -> Figures:
    """Return the figures of COLUMNS."""
    excess = (result.draft_excess_s, result.target_excess_s, result.rest_s)
    rate = result.acceptance_rate
    return (
        *(1e3 * one for one in (result.tpot_s, result.virtual_s, *excess)),
        None if rate is None else 100 * rate,
        100 * result.same_texts / len(result.answers_s),
    )


def none_of(names: Sequence[str]) -> Figures:
    """Return a row of None for these columns."""
    return (None,) * len(names)
