"""What both sides did over time: a picture like DRAGON's Figure 9, and a trace for Perfetto."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.testing.simulation.two_sided_answer import BusySpan, TwoSidedAnswer
from tandem.two_sided.protocol.mixture import Side

_COLOURS = {
    "decode": "C0",
    "SideDraftFrame": "C1",
    "TargetFrame": "C2",
    "Fetch": "C3",
}
_NAMES = {
    "decode": "decoding",
    "SideDraftFrame": "draft on its way",
    "TargetFrame": "target on its way",
    "Fetch": "asking for more of a distribution",
}


@dataclass(frozen=True, slots=True)
class Decision:
    """The scheduler's choice after a token, made at `side`."""

    position: int
    side: Side
    moves: bool
    gain_s: float
    round_trip_s: float
    device_acceptance: float
    cloud_acceptance: float


def trace_events(answer: TwoSidedAnswer, decisions: Sequence[Decision]) -> dict[str, Any]:
    """Return the events in the Trace Event Format that Perfetto and chrome://tracing read, in
    microseconds."""
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": int(side), "args": {"name": side.name.lower()}}
        for side in Side
    ]
    for span in answer.spans:
        row = 0 if span.what == "decode" else 1
        event = {
            "name": f"{_NAMES.get(span.what, span.what)} {span.position}",
            "cat": span.what,
            "pid": int(span.side),
            "tid": row,
            "ts": span.start_s * 1e6,
        }
        whole = span.end_s > span.start_s
        events.append(
            event | ({"ph": "X", "dur": (span.end_s - span.start_s) * 1e6} if whole else _INSTANT)
        )
    for at_s, decision in timed(answer, decisions):
        figures = {"gain_ms": decision.gain_s * 1e3, "round_trip_ms": decision.round_trip_s * 1e3}
        events.append(
            {"name": "scheduler", "ph": "C", "pid": int(decision.side), "ts": at_s * 1e6}
            | {"args": figures}
        )
    return {"displayTimeUnit": "ms", "traceEvents": events}


_INSTANT = {"ph": "i", "s": "p"}


def timed(answer: TwoSidedAnswer, decisions: Sequence[Decision]) -> list[tuple[float, Decision]]:
    """Return each decision with the time at which its token was committed at its side."""
    timed_decisions = []
    for decision in decisions:
        moments = [
            span.start_s
            for span in answer.spans
            if (span.what, span.side) == ("commit", decision.side)
            and span.position <= decision.position
        ]
        if moments:
            timed_decisions.append((moments[-1], decision))
    return timed_decisions


def spans_until(answer: TwoSidedAnswer, side: Side, end_s: float) -> list[BusySpan]:
    """Return what a side had begun to do by `end_s`."""
    return [span for span in answer.spans if span.side == side and span.start_s <= end_s]


def draw_pipeline(
    path: Path, answer: TwoSidedAnswer, decisions: Sequence[Decision], tokens: int
) -> None:
    """Draw the first `tokens` of an answer: both pipelines, round trip, ΔZ, acceptance."""
    from matplotlib.figure import Figure

    shown = timed(answer, [decision for decision in decisions if decision.position <= tokens])
    end_s = max((at_s for at_s, _ in shown), default=answer.duration_s)
    figure = Figure(figsize=(12, 8), layout="constrained")
    rows = figure.subplots(5, 1, sharex=True, height_ratios=(3, 3, 1.2, 1.2, 1.2))
    for axes, side in zip(rows[:2], (Side.CLOUD, Side.DEVICE), strict=True):
        _draw_spans(axes, spans_until(answer, side, end_s))
        axes.set_ylabel(side.name.lower())
        axes.set_yticks([])
    moments = [at_s for at_s, _ in shown]
    rows[2].plot(moments, [decision.round_trip_s for _, decision in shown], marker=".")
    rows[2].set_ylabel("round trip, s")
    # As seen from the device, whichever side decided.
    gains = [
        decision.gain_s if decision.side is Side.DEVICE else -decision.gain_s
        for _, decision in shown
    ]
    rows[3].plot(moments, gains, marker=".")
    rows[3].axhline(0, color="black", linewidth=0.5)
    rows[3].set_ylabel("ΔZ, s")
    rows[4].plot(moments, [decision.device_acceptance for _, decision in shown], label="device")
    rows[4].plot(moments, [decision.cloud_acceptance for _, decision in shown], label="cloud")
    rows[4].set_ylabel("acceptance")
    rows[4].legend()
    for at_s, decision in shown:
        if decision.moves:
            for axes in rows:
                axes.axvline(at_s, color="C3", linestyle=":", linewidth=1)
    rows[4].set_xlabel("seconds")
    rows[4].set_xlim(0, end_s * 1.02)
    _add_legend(figure, rows[:2])
    figure.suptitle("Two-sided pipeline in virtual time; dotted: aggregating moves", x=0.3)
    _save(figure, path)


def draw_cases(path: Path, answers: Mapping[str, TwoSidedAnswer], end_s: float) -> None:
    """Draw the pipelines of several answers up to `end_s`: two rows for each, below its title."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3 * len(answers)), layout="constrained")
    axes_of_all = figure.subplots(2 * len(answers), 1, sharex=True)
    pairs = zip(axes_of_all[::2], axes_of_all[1::2], answers.items(), strict=True)
    for cloud_axes, device_axes, (title, answer) in pairs:
        for axes, side in ((cloud_axes, Side.CLOUD), (device_axes, Side.DEVICE)):
            _draw_spans(axes, spans_until(answer, side, end_s))
            axes.set_ylabel(side.name.lower())
            axes.set_yticks([])
        cloud_axes.set_title(title, fontsize="medium")
    axes_of_all[-1].set_xlabel("seconds")
    axes_of_all[-1].set_xlim(0, end_s)
    _add_legend(figure, axes_of_all)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # The same pipeline gives the same file.
    figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)


def _add_legend(figure: Any, all_axes: Sequence[Any]) -> None:
    """Add a legend with each kind of span once."""
    named: dict[str, Any] = {}
    for axes in all_axes:
        handles, labels = axes.get_legend_handles_labels()
        named |= dict(zip(labels, handles, strict=True))
    figure.legend(list(named.values()), list(named), loc="outside upper right", ncols=len(named))


def _draw_spans(axes: Any, spans: Sequence[BusySpan]) -> None:
    """Draw decoding in one row; what is on its way is staggered over others, since it overlaps."""
    named: set[str] = set()
    ways = 0
    for span in spans:
        if span.what not in _COLOURS:
            continue
        row = 0.0
        if span.what != "decode":
            row = 1.0 + ways % 6
            ways += 1
        label = None if span.what in named else _NAMES[span.what]
        named.add(span.what)
        axes.barh(
            row,
            span.end_s - span.start_s,
            left=span.start_s,
            height=0.8,
            color=_COLOURS[span.what],
            edgecolor="white",
            linewidth=0.5,
            label=label,
        )
