"""What the comparison of methods has to show (ratios of TPOT; above 1 the first is faster).

A goal over presets that are not there is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import exp, log

from lab.bench.harness.report import Goal
from lab.bench.speculation.methods_grid import Cell, Grid

NARROW_MBPS = 10.0
FAR_S = 0.030
GOOD_ACCEPTANCE = 0.7


def grid_goals(grid: Grid) -> Iterator[Goal]:
    """Yield the goals of the grid, which compare presets cell by cell."""
    yield from _worst(grid, "dssd", "dsd", 1.0)
    yield from _worst(grid, "dssd", "dsd", 2.0, "at 10 Mbit/s", lambda c: c.mbps == NARROW_MBPS)
    yield from _worst(
        grid,
        "picospec",
        "dssd",
        1.25,
        "from 30 ms and acceptance 0.7 on",
        lambda c: c.rtt_s >= FAR_S and _accepts_well(grid, c),
    )
    yield from _worst(grid, "fsd", "fsd w/o pre-drafts", 1.04)
    yield from _worst(grid, "stream", "ar", 0.98)
    others = ("dssd", "fsd", "picospec")
    share = share_won(grid, "stream", others)
    if share is not None:
        words = "share of cells where stream is at least as fast as the best of"
        there = [name for name in others if _cells(grid, name)]
        yield Goal(f"{words} {', '.join(there)}", share, 0.9, "at least")


def ratio_goals(ratios: Sequence[float], words: str, limit: float) -> Iterator[Goal]:
    """Yield a goal for the worst of some ratios, with their mean in its name; none without
    ratios."""
    if ratios:
        mean = exp(sum(map(log, ratios)) / len(ratios))
        name = f"{words}, worst of {len(ratios)} cells (mean {mean:.3g})"
        yield Goal(name, min(ratios), limit, "at least")


def speedups(
    grid: Grid, name: str, over: str, where: Callable[[Cell], bool] = lambda cell: True
) -> dict[Cell, float]:
    """Return TPOT of `over` ÷ TPOT of `name` in every cell that has both."""
    return {
        cell: grid[cell, over].tpot_s / grid[cell, name].tpot_s
        for cell in _cells(grid, name)
        if (cell, over) in grid and where(cell)
    }


def share_won(grid: Grid, name: str, others: Sequence[str]) -> float | None:
    """Return the share of the cells where `name` is at least as fast as each of `others` that is
    there; None where there is nothing to compare."""
    cells = _cells(grid, name)
    there = [other for other in others if _cells(grid, other)]
    if not cells or not there:
        return None
    won = sum(
        grid[cell, name].tpot_s <= min(grid[cell, other].tpot_s for other in there)
        for cell in cells
    )
    return won / len(cells)


def _worst(
    grid: Grid,
    name: str,
    over: str,
    limit: float,
    words: str = "",
    where: Callable[[Cell], bool] = lambda cell: True,
) -> Iterator[Goal]:
    ratios = list(speedups(grid, name, over, where).values())
    yield from ratio_goals(ratios, " ".join(filter(None, (f"{name} over {over}", words))), limit)


def _accepts_well(grid: Grid, cell: Cell) -> bool:
    measured = grid.get((cell, "dssd"))
    return measured is not None and (measured.acceptance_rate or 0.0) >= GOOD_ACCEPTANCE


def _cells(grid: Grid, name: str) -> list[Cell]:
    return [cell for cell, variant in grid if variant == name]
