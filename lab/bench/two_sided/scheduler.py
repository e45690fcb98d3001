"""Where to aggregate: by ΔZ, or always at one side (DRAGON Figure 8).

Acceptance decisions are recorded along answers with documents on both sides, and replayed in
virtual time under every strategy; times of a decoding step are declared. The added latency varies
as a sine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from lab.bench.harness.models import Models
from lab.bench.harness.report import progress
from lab.bench.two_sided.dragon_latency import Pacing, ask_questions
from lab.bench.two_sided.overridden import overridden
from lab.bench.two_sided.scheduler_replay import Record, record, replay
from lab.simulation.sinusoidal_link import SinusoidalLink
from tandem.core.randomness import SeededRandom
from tandem.netem.link_model import LinkPair, LinkSettings
from tandem.testing.simulation.two_sided_answer import TwoSidedAnswer
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.placement import PlacementPolicy, placement_policy_for
from tandem.two_sided.protocol.presets import AGGREGATION_PRESETS
from tandem.two_sided.protocol.profiler import SideProfiler

FIXED = ("dragon-device", "dragon placement=cloud", "dragon placement=random")
STRATEGIES = (*FIXED, "dragon")
BASE_RTT_S = 0.002
AMPLITUDE_SHARE = 0.2
PERIOD_S = 62.83
LOG_MASS_SHIFTS = {"device": 1.5, "even": 0.0, "cloud": -1.5}
"""Which side's documents are more relevant, as a difference of h."""
TOKENS = 100


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of what the strategies are compared under."""

    pacing: Pacing
    relevant_side: str
    added_s: float


def record_all(
    models: Models, peps: Path, seed: int, count: int, rotations: int
) -> dict[str, list[Record]]:
    """Return records for every entry of LOG_MASS_SHIFTS. `rotations`: sequences made of each
    record, by starting at different positions."""
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


def seconds_by_strategy(cell: Cell, recorded: Sequence[Record], seed: int) -> dict[str, float]:
    """Return the mean seconds of an answer by every strategy, over the same records."""
    return {
        name: fmean(
            one_answer(name, cell, record, seed + number).duration_s
            for number, record in enumerate(recorded)
        )
        for name in STRATEGIES
    }


def one_answer(
    name: str, cell: Cell, recorded: Record, seed: int, tokens: int = TOKENS
) -> TwoSidedAnswer:
    """Return one strategy's answer."""
    step_s = {Side.DEVICE: cell.pacing.device_s, Side.CLOUD: cell.pacing.cloud_s}
    preset = overridden(name)
    rng = SeededRandom(seed)

    def placement_policy(side: Side) -> tuple[PlacementPolicy | None, SideProfiler]:
        profiler = SideProfiler()
        return placement_policy_for(preset.placement, rng, measured=profiler.sides), profiler

    link = sinusoidal_link(cell.added_s)
    return replay(recorded, preset, step_s, link, placement_policy, tokens)


def sinusoidal_link(added_s: float) -> LinkPair:
    """Return a link of which each direction has half of the latency, and half of the amplitude."""
    settings = LinkSettings((BASE_RTT_S + added_s) / 2)
    amplitude_s = AMPLITUDE_SHARE * added_s / 2
    return LinkPair(
        SinusoidalLink(settings, amplitude_s, PERIOD_S),
        SinusoidalLink(settings, amplitude_s, PERIOD_S),
    )
