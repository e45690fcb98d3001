"""`bench scheduler`: where to aggregate, by ΔZ or always at one place (DRAGON Figures 8 and 9).

Acceptance decisions are recorded along answers of the demo pair with documents on both sides, and
replayed in virtual time under every strategy; times of a decoding step are declared, how they vary
is measured. The added latency varies as a sine. Figure 9 is a PNG, and a trace for Perfetto.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from lab.bench.harness.plots import panels
from lab.bench.harness.report import Goal, Report, Row, make_row, progress
from lab.bench.harness.suite import Models
from lab.bench.two_sided.dragon_latency import PACINGS, Pacing, ask_questions
from lab.bench.two_sided.overridden import overridden
from lab.bench.two_sided.pipeline import Decision, draw_pipeline, trace_events
from lab.bench.two_sided.scheduler_replay import ExpectingProfiler, Record, record, replay
from lab.simulation.sinusoidal_link import SinusoidalLink
from tandem.core.randomness import SeededRandom
from tandem.netem.link_model import LinkPair, LinkSettings
from tandem.testing.simulation.two_sided_answer import TwoSidedAnswer
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.placement import PlacementPolicy, choose_side, placement_policy_for
from tandem.two_sided.protocol.presets import AGGREGATION_PRESETS
from tandem.two_sided.protocol.profiler import SideProfiler

FIXED = ("dragon-device", "dragon placement=cloud", "dragon placement=random")
EXPECTING = "dragon, eq. 5"
"""As `dragon`, but for what the scheduler takes as the acceptance rates."""
STRATEGIES = (*FIXED, "dragon", EXPECTING)
ADDED_S = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
QUICK_ADDED_S = (0.0, 0.2, 0.5)
BASE_RTT_S = 0.002
AMPLITUDE_SHARE = 0.2
PERIOD_S = 62.83
LOG_MASS_SHIFTS = {"device": 1.5, "even": 0.0, "cloud": -1.5}
"""Which side's documents are more relevant, as a difference of h."""
TOKENS = 100
QUESTIONS = 12
QUICK_QUESTIONS = 3
ROTATIONS = 4
QUICK_ROTATIONS = 2
"""Sequences made of each record, by starting at different positions."""
SHOWN_TOKENS = 25
COLUMNS = (
    *("preset", "pacing", "relevant_side", "added_s", "total_s", "over_best"),
    *("device_acceptance", "cloud_acceptance", "side_moves"),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of what the strategies are compared under."""

    pacing: Pacing
    relevant_side: str
    added_s: float


def run(report: Report, models: Models, peps: Path) -> None:
    added = QUICK_ADDED_S if report.quick else ADDED_S
    count = QUICK_QUESTIONS if report.quick else QUESTIONS
    rotations = QUICK_ROTATIONS if report.quick else ROTATIONS
    records = record_all(models, peps, report.seed, count, rotations)
    rows: list[Row] = []
    for pacing in PACINGS:
        for relevant_side, recorded in records.items():
            progress(f"{pacing.name}, {relevant_side} documents more relevant")
            for added_s in added:
                rows += compared(Cell(pacing, relevant_side, added_s), recorded, report.seed)
    words = f"{count * rotations} answers of {TOKENS} tokens a cell, virtual time"
    report.add(words, COLUMNS, rows)
    worst = max(row["over_best"] for row in rows if row["preset"] == "dragon")
    name = "dragon's total time over the best of device, cloud and random, any cell"
    report.goals.append(Goal(name, worst, 1.03, "at most"))
    report.goals.append(
        Goal(
            "dragon's total time by outcomes over that by eq. 5's expectation, mean over cells",
            by_outcome_over_expected(rows),
            1.0,
            "at most",
        )
    )
    decisions: list[Decision] = []
    shown = Cell(PACINGS[1], "device", 0.5)
    answer = one_answer("dragon", shown, records["device"][0], report.seed, decisions)
    report.drawing["pipeline"] = answer, decisions
    report.notes += [
        "Acceptance is recorded from the demo pair's distributions; step times are declared, "
        "varied as"
        " measured here while recording.",
        f"{EXPECTING}: acceptance rates are moving averages of eq. 5's expectation, as in the "
        "paper's section 5.2; dragon's are of outcomes, as the services have them.",
        "The shown pipeline has 500 ms added, documents of the device more relevant.",
    ]


def record_all(
    models: Models, peps: Path, seed: int, count: int, rotations: int
) -> dict[str, list[Record]]:
    """Return records for every entry of LOG_MASS_SHIFTS."""
    questions = ask_questions(models, peps, seed, count)
    preset = AGGREGATION_PRESETS["dragon"]
    records: dict[str, list[Record]] = {}
    for relevant_side, shift in LOG_MASS_SHIFTS.items():
        progress(f"recording: {relevant_side} documents more relevant")
        recorded = [
            record(question, preset, shift, seed + number, TOKENS)
            for number, question in enumerate(questions)
        ]
        records[relevant_side] = [
            record.rotated(rotation / rotations)
            for record in recorded
            for rotation in range(rotations)
        ]
    for question in questions:
        question.close()
    return records


def compared(cell: Cell, recorded: Sequence[Record], seed: int) -> list[Row]:
    """Return the rows of all strategies over the same records."""
    totals = {}
    moves = {}
    for name in STRATEGIES:
        answers = [one_answer(name, cell, record, seed + n) for n, record in enumerate(recorded)]
        totals[name] = fmean(answer.duration_s for answer in answers)
        moves[name] = fmean(sum(s.side_moves for s in a.stats.values()) for a in answers)
    best_s = min(totals[name] for name in FIXED)
    return [
        make_row(
            preset=name,
            pacing=cell.pacing.name,
            rtt_s=BASE_RTT_S + cell.added_s,
            seed=seed,
            tpot_s=totals[name] / TOKENS,
            relevant_side=cell.relevant_side,
            added_s=cell.added_s,
            total_s=totals[name],
            over_best=totals[name] / best_s,
            device_step_s=cell.pacing.device_s,
            device_acceptance=fmean(record.rate(Side.DEVICE) for record in recorded),
            cloud_acceptance=fmean(record.rate(Side.CLOUD) for record in recorded),
            side_moves=moves[name],
        )
        for name in STRATEGIES
    ]


def by_outcome_over_expected(rows: Sequence[Row]) -> float:
    """Return how long answers take when the scheduler learns acceptance from the outcomes of
    drafts, over how long they take when it learns it from their expectation: a mean over cells."""
    totals = {
        name: [row["total_s"] for row in rows if row["preset"] == name]
        for name in ("dragon", EXPECTING)
    }
    pairs = zip(totals["dragon"], totals[EXPECTING], strict=True)
    return fmean(outcome_s / expected_s for outcome_s, expected_s in pairs)


def one_answer(
    name: str,
    cell: Cell,
    recorded: Record,
    seed: int,
    decisions: list[Decision] | None = None,
    tokens: int = TOKENS,
) -> TwoSidedAnswer:
    """Return one strategy's answer; with `decisions`, each one is added there and the pipeline is
    traced."""
    step_s = {Side.DEVICE: cell.pacing.device_s, Side.CLOUD: cell.pacing.cloud_s}
    expects = name == EXPECTING
    preset = overridden("dragon" if expects else name)
    rng = SeededRandom(seed)

    def placement_policy(side: Side) -> tuple[PlacementPolicy, SideProfiler]:
        profiler = ExpectingProfiler(recorded) if expects else SideProfiler()
        inner = placement_policy_for(preset.placement, rng, measured=profiler.sides)
        return Watched(side, inner, profiler, decisions), profiler

    link = sinusoidal_link(cell.added_s)
    return replay(
        recorded, preset, step_s, link, placement_policy, tokens, traced=decisions is not None
    )


@dataclass(frozen=True, slots=True)
class Watched:
    """A chooser whose choices are noted, with what they were made from."""

    side: Side
    inner: PlacementPolicy
    profiler: SideProfiler
    decisions: list[Decision] | None

    def __call__(self, position: int, aggregating: Side) -> Side:
        if isinstance(self.profiler, ExpectingProfiler):
            self.profiler.expect(position)
        chosen = self.inner(position, aggregating)
        sides = self.profiler.sides()
        if self.decisions is not None and sides.complete:
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


def sinusoidal_link(added_s: float) -> LinkPair:
    """Return a link of which each direction has half of the latency, and half of the amplitude."""
    settings = LinkSettings((BASE_RTT_S + added_s) / 2)
    amplitude_s = AMPLITUDE_SHARE * added_s / 2
    return LinkPair(
        SinusoidalLink(settings, amplitude_s, PERIOD_S),
        SinusoidalLink(settings, amplitude_s, PERIOD_S),
    )


def draw(report: Report, folder: Path) -> None:
    panels(
        folder / "scheduler.png",
        report.rows,
        x="added_s",
        y="total_s",
        columns="relevant_side",
        lines="device_step_s",
        title=f"Seconds for {TOKENS} tokens over added latency (virtual time)",
    )
    answer, decisions = report.drawing["pipeline"]
    draw_pipeline(folder / "pipeline.png", answer, decisions, SHOWN_TOKENS)
    (folder / "pipeline.json").write_text(json.dumps(trace_events(answer, decisions)))
