"""Preset `auto` from latency to cost and energy, in virtual time: what a token takes of each.

A pair of declared acceptance, one session; all step times are declared. Beside it the fixed preset
of fewest target passes, in hindsight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from lab.bench.harness.plots import grouped_lines
from lab.bench.harness.report import Goal, Report, Row, make_row, progress
from lab.bench.harness.suite import Models
from lab.simulation.answer import Conditions, SimulatedAnswer, simulate_answer
from lab.simulation.answer_figures import answers_figures
from lab.simulation.declared_pair import declared_pair
from lab.simulation.simulator import ModelTimes
from tandem.control.objective import NO_PRICES
from tandem.specdec.choices import Control
from tandem.specdec.presets import PRESETS, Preset

RTT_S = 0.030
MBPS = 100.0
RATES = (0.3, 0.6, 0.9)
QUICK_RATES = (0.6,)
WEIGHTS = (1.0, 0.75, 0.5, 0.25, 0.0)
TOKENS = 480
QUICK_TOKENS = 240
CLOSE = 1.05
NOISE = 1.03
COLUMNS = ("objective", "declared", "tpot_s", "target_passes_per_token", "bytes", "joules")


def run(report: Report, models: Models) -> None:
    """Fill the report; `models` are not used, since distributions are declared."""
    tokens = QUICK_TOKENS if report.quick else TOKENS
    for rate in QUICK_RATES if report.quick else RATES:
        progress(f"acceptance {rate:g}")
        rows = front(rate, tokens, report.seed)
        energy = row_of("energy", 1.0, 1.0, rate, tokens, report.seed)
        report.add(f"Acceptance {rate:g}", COLUMNS, [*rows, energy])
        report.goals += goals(rows, cheapest_passes(rate, tokens, report.seed))


def front(rate: float, tokens: int, seed: int) -> list[Row]:
    """Return the rows from latency to cost."""
    return [row_of(f"{weight:g}", weight, 0.0, rate, tokens, seed) for weight in WEIGHTS]


def row_of(
    words: str, idle_weight: float, energy_weight: float, rate: float, tokens: int, seed: int
) -> Row:
    """Return the row of `auto` with these weights of its objective, which `words` name."""
    preset = replace(PRESETS["auto"], idle_weight=idle_weight, energy_weight=energy_weight)
    answer = answered(preset, rate, tokens, seed)
    figures = answers_figures([answer])
    drafting_s = ModelTimes().draft_s * answer.stats.drafted / tokens
    idle_s = figures["tpot_s"]
    return make_row(preset="auto", rtt_s=RTT_S, mbps=MBPS, seed=seed, objective=words) | {
        **figures,
        "declared": rate,
        "bytes": figures["uplink_bytes_per_token"] + figures["downlink_bytes_per_token"],
        "joules": NO_PRICES.edge_watts * drafting_s + NO_PRICES.edge_idle_watts * idle_s,
    }


def cheapest_passes(rate: float, tokens: int, seed: int) -> float:
    """Return the target passes per token of the exact preset that takes the fewest, without trees
    and drafts of the cloud."""
    fixed = [p for p in PRESETS.values() if p.control is Control.FIXED and not p.lossy]
    chains = [p for p in fixed if not (p.expansion or p.drafts_in_cloud)]
    answers = [answered(preset, rate, tokens, seed) for preset in chains]
    return min(answer.stats.target_passes / tokens for answer in answers)


def answered(preset: Preset, rate: float, tokens: int, seed: int) -> SimulatedAnswer:
    pair = declared_pair(rate, seed=seed, vocabulary_size=64)
    return simulate_answer(preset, pair, Conditions(ModelTimes(), RTT_S, MBPS), (1, 2), tokens, 1)


def goals(rows: Sequence[Row], cheapest: float) -> list[Goal]:
    """Return the goals: about as few passes as the cheapest preset at the cost end; in between, no
    step to cost adds passes, and no step to latency adds time."""
    passes = [row["target_passes_per_token"] for row in rows]
    times = [row["tpot_s"] for row in rows]
    name = f"acceptance {rows[0]['declared']:g}:"
    return [
        Goal(f"{name} passes / cheapest preset's", passes[-1] / cheapest, CLOSE, "at most"),
        Goal(f"{name} a step to cost adds no passes", _worst(passes), NOISE, "at most"),
        Goal(f"{name} a step to latency adds no time", _worst(times[::-1]), NOISE, "at most"),
    ]


def _worst(figures: Sequence[float]) -> float:
    """Return the largest ratio of one figure to the one before."""
    return max(after / before for before, after in pairwise(figures))


def draw(report: Report, folder: Path) -> None:
    """Draw time against passes, with a line for each acceptance."""
    rows = [row for row in report.rows if row["objective"] != "energy"]
    grouped_lines(
        folder / "objectives.png",
        rows,
        x="target_passes_per_token",
        y="tpot_s",
        by="declared",
        title="auto from latency to cost, by acceptance",
    )
