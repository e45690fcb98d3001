"""A table's plots: ours as lines, the paper's figures as crosses of the same colour."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.bench.harness.plots import NoPlotting, require_matplotlib
from lab.bench.harness.report import progress
from lab.bench.papers.paper_table import Figures, Label, PaperTable, Plot

PAPERS = "the paper's"
_MOST_CURVES = 10
_MARKERS = "os^vD<>Pp*"
_LEGEND_CHARACTERS = 84
_HANDLE_CHARACTERS = 8
"""What fits below a plot side by side, and what a line before its words takes."""


def plot_files(folder: Path, table: PaperTable, ours: Sequence[Figures]) -> list[str]:
    """Draw each plot of a table as SVG, and what else the table draws; return the names of the
    files, none without matplotlib."""
    if not table.plots and table.draw is None:
        return []
    try:
        require_matplotlib()
    except NoPlotting:
        progress(f"{table.key}: not drawn, as matplotlib is not installed")
        return []
    names = []
    for number, plot in enumerate(table.plots, start=1):
        name = f"{table.key}-{number}.svg"
        _draw(folder / name, table, plot, ours)
        names.append(name)
    return names if table.draw is None else [*names, *table.draw(folder)]


def _draw(path: Path, table: PaperTable, plot: Plot, ours: Sequence[Figures]) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.6, 4.4), layout="constrained")
    axes = figure.subplots()
    at = table.labels.index(plot.x)
    names = [name for index, name in enumerate(table.labels) if index != at]
    curves: dict[str, list[tuple[Any, float | None, float | None]]] = {}
    for row, mine in zip(table.rows, ours, strict=True):
        others = [one for index, one in enumerate(row.labels) if index != at]
        words = [_label(name, one) for name, one in zip(names, others, strict=True)]
        for name in plot.drawn:
            label = ", ".join([*words, name] if plot.also else words) or "ours"
            column = table.figures.index(name)
            curves.setdefault(label, []).append((row.labels[at], mine[column], row.theirs[column]))
    for number, (label, points) in enumerate(list(curves.items())[:_MOST_CURVES]):
        _curve(axes, label, sorted(points, key=lambda point: point[0]), number)
    axes.set_xlabel(plot.x)
    axes.set_ylabel(plot.words or plot.figure)
    place = f"{table.paper}, {table.place.split(',')[0]}"
    axes.set_title(f"{place}\n{table.title}", fontsize="medium", wrap=True)
    _set_ticks(axes, sorted({float(row.labels[at]) for row in table.rows}), plot.logarithmic)
    axes.grid(alpha=0.3)
    _add_legend(figure, axes)
    # Texts stay texts, which keeps files small; the same figures give the same file.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": table.key}):
        figure.savefig(path, metadata={"Date": None})


def _set_ticks(axes: Any, values: Sequence[float], logarithmic: bool) -> None:
    """Set the ticks to where rows are, on a logarithmic axis if asked for."""
    from matplotlib.ticker import NullLocator

    if logarithmic:
        axes.set_xscale("log")
    axes.set_xticks(values, [f"{one:g}" for one in values])
    axes.xaxis.set_minor_locator(NullLocator())


def _add_legend(figure: Any, axes: Any) -> None:
    """Add a legend of our curves, and once of what a cross is."""
    handles, names = axes.get_legend_handles_labels()
    if not handles or names == ["ours"]:
        return
    order = sorted(range(len(names)), key=lambda index: names[index] == PAPERS)
    handles, names = [handles[index] for index in order], [names[index] for index in order]
    columns = max(1, min(3, _LEGEND_CHARACTERS // (_HANDLE_CHARACTERS + max(map(len, names)))))
    figure.legend(handles, names, loc="outside lower center", ncols=columns, fontsize="medium")


def _label(name: str, one: Label) -> str:
    """Return a label in words: "NTT = 20 ms", "γ = 4", "10 Mbit/s"."""
    if isinstance(one, str):
        return one
    if "/" in name:
        return f"{one:g} {name.rpartition(', ')[2]}"
    quantity, comma, unit = name.rpartition(", ")
    return f"{quantity} = {one:g} {unit}" if comma else f"{name} = {one:g}"


def _curve(
    axes: Any, words: str, points: Sequence[tuple[Any, float | None, float | None]], number: int
) -> None:
    style = {"color": f"C{number}", "marker": _MARKERS[number]}
    mine = [(x, y) for x, y, _ in points if y is not None]
    if mine:
        axes.plot(*zip(*mine, strict=True), label=words, markersize=4, **style)
    theirs = [(x, y) for x, _, y in points if y is not None]
    if theirs:
        named = axes.get_legend_handles_labels()[1]
        label = None if PAPERS in named else PAPERS
        crosses = {"color": f"C{number}", "marker": "x", "s": 60, "label": label}
        axes.scatter(*zip(*theirs, strict=True), **crosses)
