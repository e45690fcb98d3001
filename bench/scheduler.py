"""`bench scheduler`: where to aggregate, by ΔZ or always at one place (DRAGON Figures 8 and 9).

Acceptance decisions are recorded along answers of the demo pair with documents on both sides, and
replayed in virtual time under every strategy; times of a decoding step are declared, how they vary
is measured. The added latency sways like a sine. Figure 9 is a PNG, and a trace for Perfetto.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from bench.dragon_latency import PACINGS, Pacing, ask_questions
from bench.pipeline import Decision, draw_pipeline, trace_events
from bench.plots import panels
from bench.report import Goal, Report, Row, make_row, progress
from bench.scheduler_replay import Record, record, replay
from bench.suite import Models
from tandem.core.aggregation import Side
from tandem.core.chance import SeededChance
from tandem.netem.link_model import LinkPair, LinkSettings, SwayingLink
from tandem.netem.two_sided import TwoSided
from tandem.policy.aggregation_presets import AGGREGATION_PRESETS
from tandem.policy.placement import Placing, placing_for
from tandem.policy.profiler import SideProfiler, both_sides
from tandem.policy.side_scheduler import choose_side

STRATEGIES = ("dragon-device", "dragon-cloud", "dragon-random", "dragon")
ADDED_S, QUICK_ADDED_S = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5), (0.0, 0.2, 0.5)
BASE_RTT_S = 0.002
SWAY_SHARE, PERIOD_S = 0.2, 62.83
LEANS = {"device": 1.5, "even": 0.0, "cloud": -1.5}
"""Whose documents matter more, as a difference of h."""
TOKENS, QUESTIONS, QUICK_QUESTIONS = 100, 12, 3
TURNS, QUICK_TURNS = 4, 2
"""Sequences made of each record, by beginning in different places."""
SHOWN_TOKENS = 25
COLUMNS = (
    *("preset", "pacing", "leaning", "added_s", "total_s", "over_best"),
    *("device_acceptance", "cloud_acceptance", "side_moves"),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of what the strategies are compared under."""

    pacing: Pacing
    leaning: str
    added_s: float


def run(report: Report, models: Models, peps: Path) -> None:
    added = QUICK_ADDED_S if report.quick else ADDED_S
    count = QUICK_QUESTIONS if report.quick else QUESTIONS
    turns = QUICK_TURNS if report.quick else TURNS
    records = record_all(models, peps, report.seed, count, turns)
    rows: list[Row] = []
    for pacing in PACINGS:
        for leaning, recorded in records.items():
            progress(f"{pacing.name}, {leaning} documents matter more")
            for added_s in added:
                rows += compared(Cell(pacing, leaning, added_s), recorded, report.seed)
    words = f"{count * turns} answers of {TOKENS} tokens a cell, virtual time"
    report.add(words, COLUMNS, rows)
    worst = max(row["over_best"] for row in rows if row["preset"] == "dragon")
    name = "dragon's total time over the best of device, cloud and random, any cell"
    report.goals.append(Goal(name, worst, 1.03, "at most"))
    decisions: list[Decision] = []
    shown = Cell(PACINGS[1], "device", 0.5)
    answer = one_answer("dragon", shown, records["device"][0], report.seed, decisions)
    report.drawing["pipeline"] = answer, decisions
    report.notes += [
        "Acceptance is recorded from the demo pair's laws; step times are declared, varied as"
        " measured here while recording.",
        "The shown pipeline has 500 ms added, documents of the device matter more.",
    ]


def record_all(
    models: Models, peps: Path, seed: int, count: int, turns: int
) -> dict[str, list[Record]]:
    """Records of every leaning."""
    asked = ask_questions(models, peps, seed, count)
    preset = AGGREGATION_PRESETS["dragon"]
    found: dict[str, list[Record]] = {}
    for leaning, lean in LEANS.items():
        progress(f"recording: {leaning} documents matter more")
        recorded = [
            record(question, preset, lean, seed + number, TOKENS)
            for number, question in enumerate(asked)
        ]
        found[leaning] = [each.turned(turn / turns) for each in recorded for turn in range(turns)]
    for question in asked:
        question.close()
    return found


def compared(cell: Cell, recorded: Sequence[Record], seed: int) -> list[Row]:
    """All strategies over the same records."""
    totals = {}
    moves = {}
    for name in STRATEGIES:
        answers = [one_answer(name, cell, each, seed + n) for n, each in enumerate(recorded)]
        totals[name] = fmean(answer.duration_s for answer in answers)
        moves[name] = fmean(sum(s.side_moves for s in a.stats.values()) for a in answers)
    best_s = min(totals[name] for name in STRATEGIES[:3])
    return [
        make_row(
            preset=name,
            pacing=cell.pacing.name,
            rtt_s=BASE_RTT_S + cell.added_s,
            seed=seed,
            tpot_s=totals[name] / TOKENS,
            leaning=cell.leaning,
            added_s=cell.added_s,
            total_s=totals[name],
            over_best=totals[name] / best_s,
            device_step_s=cell.pacing.device_s,
            device_acceptance=fmean(each.rate(Side.DEVICE) for each in recorded),
            cloud_acceptance=fmean(each.rate(Side.CLOUD) for each in recorded),
            side_moves=moves[name],
        )
        for name in STRATEGIES
    ]


def one_answer(
    name: str,
    cell: Cell,
    recorded: Record,
    seed: int,
    decisions: list[Decision] | None = None,
    tokens: int = TOKENS,
) -> TwoSided:
    """One strategy's answer; with `decisions` they are noted there and the pipeline is traced."""
    step_s = {Side.DEVICE: cell.pacing.device_s, Side.CLOUD: cell.pacing.cloud_s}
    preset, chance = AGGREGATION_PRESETS[name], SeededChance(seed)

    def placing(side: Side) -> tuple[Placing, SideProfiler]:
        profiler = SideProfiler()
        inner = placing_for(preset.placement, chance, lambda: both_sides(profiler.reading()))
        return Watched(side, inner, profiler, decisions), profiler

    link = swaying_link(cell.added_s)
    return replay(recorded, preset, step_s, link, placing, tokens, traced=decisions is not None)


@dataclass(frozen=True, slots=True)
class Watched:
    """A chooser whose choices are noted, with what they were made from."""

    side: Side
    inner: Placing
    profiler: SideProfiler
    decisions: list[Decision] | None

    def next_side(self, position: int, aggregating: Side) -> Side:
        chosen = self.inner.next_side(position, aggregating)
        sides = both_sides(self.profiler.reading())
        if self.decisions is not None and sides is not None:
            self.decisions.append(
                Decision(
                    position,
                    self.side,
                    chosen is not self.side,
                    choose_side(sides, aggregating).gain_s,
                    sides.round_trip_s,
                    sides.device.acceptance,
                    sides.cloud.acceptance,
                )
            )
        return chosen


def swaying_link(added_s: float) -> LinkPair:
    """Both ways have half of the latency, and half of the sway."""
    settings = LinkSettings((BASE_RTT_S + added_s) / 2)
    sway_s = SWAY_SHARE * added_s / 2
    return LinkPair(
        SwayingLink(settings, sway_s, PERIOD_S), SwayingLink(settings, sway_s, PERIOD_S)
    )


def draw(report: Report, folder: Path) -> None:
    panels(
        folder / "scheduler.png",
        report.rows,
        x="added_s",
        y="total_s",
        columns="leaning",
        lines="device_step_s",
        title=f"Seconds for {TOKENS} tokens over added latency (virtual time)",
    )
    answer, decisions = report.drawing["pipeline"]
    draw_pipeline(folder / "pipeline.png", answer, decisions, SHOWN_TOKENS)
    (folder / "pipeline.json").write_text(json.dumps(trace_events(answer, decisions)))
