"""Plots of an experiment's rows. matplotlib is optional and loaded only to draw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.bench.harness.report import Row
from tandem.core.errors import TandemError


class NoPlotting(TandemError):
    """matplotlib is not installed."""


def require_matplotlib() -> None:
    """Raise NoPlotting, in one line, unless plots can be drawn."""
    try:
        import matplotlib  # noqa: F401 (only whether it is there)
    except ImportError:
        raise NoPlotting(
            "--out draws plots with matplotlib: pip install --editable './lab[bench]'"
        ) from None


def bars(
    path: Path,
    heights: Mapping[str, float],
    *,
    ylabel: str,
    title: str,
    limit: float | None = None,
    logarithmic: bool = False,
) -> None:
    """Draw one bar per name, with a line at the limit."""
    with _figure(path, title) as axes:
        axes.bar(list(heights), list(heights.values()))
        axes.set_ylabel(ylabel)
        axes.tick_params(axis="x", labelrotation=20)
        if logarithmic:
            axes.set_yscale("log")
        _draw_limit(axes, limit)


def grouped_lines(
    path: Path,
    rows: Sequence[Row],
    *,
    x: str,
    y: str,
    title: str,
    by: str = "preset",
    limit: float | None = None,
) -> None:
    """Draw y over x, one line per value of `by`; rows without a y are left out."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        if row.get(y) is not None:
            groups.setdefault(row[by], []).append(row)
    with _figure(path, title) as axes:
        for name, members in groups.items():
            points = sorted((row[x], row[y]) for row in members)
            axes.plot(*zip(*points, strict=True), marker="o", label=str(name))
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        _draw_limit(axes, limit)
        axes.legend()


def panels(
    path: Path,
    rows: Sequence[Row],
    *,
    x: str,
    y: str,
    columns: str,
    lines: str,
    title: str,
    by: str = "preset",
    limit: float | None = None,
) -> None:
    """Draw a panel for each pair of values of `columns` and `lines`: y over x, one curve per value
    of `by`. Points are means over the rows, drawn at equal distances along x."""
    from matplotlib.figure import Figure

    across = list(dict.fromkeys(row[columns] for row in rows))
    down = list(dict.fromkeys(row[lines] for row in rows))
    names = list(dict.fromkeys(row[by] for row in rows))
    ticks = sorted({row[x] for row in rows})
    figure = Figure(figsize=(4 * len(across) + 2, 3.2 * len(down)), layout="constrained")
    grid = figure.subplots(len(down), len(across), squeeze=False, sharex=True, sharey=True)
    for (line, column), axes in (
        ((line, column), grid[i][j])
        for i, line in enumerate(down)
        for j, column in enumerate(across)
    ):
        inside = [row for row in rows if (row[columns], row[lines]) == (column, line)]
        for number, name in enumerate(names):
            curve = _means([row for row in inside if row[by] == name], x, y)
            points = [ticks.index(at) for at in curve], list(curve.values())
            axes.plot(*points, label=name, **_style(number))
        _draw_limit(axes, limit)
        axes.set_title(f"{columns} {column}, {lines} {line:g}", fontsize="medium")
        axes.set_xticks(range(len(ticks)), [f"{tick:g}" for tick in ticks])
        axes.grid(alpha=0.3)
    for axes in grid[-1]:
        axes.set_xlabel(x)
    for panel in grid:
        panel[0].set_ylabel(y)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper")
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


_MARKERS = "os^vD<>Pp*"
_DASHES = ("-", "--", ":")


def _style(number: int) -> dict[str, str]:
    """Return the style of the curve with this number. Thirty curves differ from each other, in
    black and white too."""
    again, number = divmod(number, len(_MARKERS))
    dashes = _DASHES[again % len(_DASHES)]
    return {"marker": _MARKERS[number], "color": f"C{number}", "linestyle": dashes}


def _means(rows: Sequence[Row], x: str, y: str) -> dict[Any, float]:
    values: dict[Any, list[float]] = {}
    for row in rows:
        if row.get(y) is not None:
            values.setdefault(row[x], []).append(row[y])
    return {at: sum(values[at]) / len(values[at]) for at in sorted(values)}


def _draw_limit(axes: Any, limit: float | None) -> None:
    if limit is not None:
        axes.axhline(limit, color="black", linestyle="--", linewidth=1, label="goal")


@contextmanager
def _figure(path: Path, title: str) -> Iterator[Any]:
    """Yield the axes of a figure, which is written to `path` when the block ends."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title)
    axes.grid(alpha=0.3)
    yield axes
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
