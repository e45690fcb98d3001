"""What rows by processes show beside virtual time: chosen by the rows, numbers theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from lab.bench.papers.paper_table import Figures
from lab.bench.papers.process_runs import RunResult
from lab.bench.papers.rows import FilledRow, Rows, of_all, span

REAL = "ms a token"
VIRTUAL = "virtual time, ms"
EXCESS: Mapping[str, str] = {
    "longer draft steps, ms": "draft steps that last longer than declared",
    "longer passes, ms": "passes of the target, with sampling, that last longer than declared",
    "gRPC and the rest, ms": "gRPC, serialising, the link emulator and the event loops, on the two "
    "cores that the models compute on",
}
"""Column: what took that much of a token longer than in virtual time."""
SAME_TEXT = "same text, %"
COLUMNS = (REAL, VIRTUAL, *EXCESS, "accepted, %", SAME_TEXT)
APART = 0.10
"""A larger difference between processes and virtual time has to be explained."""
NOT_HERE = "The models that these rows need are not here."


def columns_of(result: RunResult) -> Figures:
    """Return the figures of COLUMNS."""
    excess = (result.draft_excess_s, result.target_excess_s, result.rest_s)
    rate = result.acceptance_rate
    return (
        *(1e3 * one for one in (result.tpot_s, result.virtual_s, *excess)),
        None if rate is None else 100 * rate,
        100 * result.same_texts / result.answers,
    )


def why_apart(rows: Rows) -> str:
    """Say by how much processes and virtual time differ, and for rows more than a tenth apart what
    the largest part of the difference is."""
    there = [row for row in rows if row.ours[REAL] is not None]
    if not there:
        return NOT_HERE
    percent = [100 * (row.mine(REAL) / row.mine(VIRTUAL) - 1) for row in there]
    sentences = [
        f"By processes a token takes {span(percent, '+.0f')} % (median {median(percent):+.0f} %) "
        "longer than in virtual time."
    ]
    apart = [row for row in there if abs(row.mine(REAL) / row.mine(VIRTUAL) - 1) > APART]
    if not apart:
        sentences.append("No row differs by more than 10 %.")
    by_part: dict[str, list[float]] = {}
    for row in apart:
        part = largest_part(row)
        by_part.setdefault(part, []).append(row.mine(part))
    sentences += [
        f"More than 10 % apart: in {of_all(len(ms), len(there))} rows most of it, {span(ms)} ms a "
        f"token, is {EXCESS[part]}."
        for part, ms in by_part.items()
    ]
    other = sum(row.mine(SAME_TEXT) < 100 for row in there)
    if other:
        sentences.append(
            f"In {of_all(other, len(there))} rows some answers have another text than in virtual "
            "time, as sums of floats come in another order, and so other drafts are accepted."
        )
    return " ".join(sentences)


def largest_part(row: FilledRow) -> str:
    """Return the column of EXCESS that differs most from 0."""
    return max(EXCESS, key=lambda part: abs(row.mine(part)))


def faster_by_both(rows: Rows, faster: str, virtual: str) -> str:
    """Say in how many rows processes and virtual time agree on what is faster than the target
    alone; `faster` and `virtual` name the columns of both speedups."""
    there = [row for row in rows if row.ours[faster] is not None]
    same = sum((row.mine(faster) > 1) == (row.mine(virtual) > 1) for row in there)
    return (
        f"Processes and virtual time agree in {of_all(same, len(there))} rows on whether it is "
        "faster than the target alone."
    )


def none_of(names: Sequence[str]) -> Figures:
    """Return a row of None for these columns."""
    return (None,) * len(names)
