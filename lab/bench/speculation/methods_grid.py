"""Every preset over hardware, round trips and bandwidths, in virtual time through the machines.

Step times are declared; distributions are the demo pair's, messages those of the wire, whole
distributions padded to a vocabulary of 151,936. One prompt and seed are taken through the whole
grid before the next, so that what the models say is computed once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from lab.bench.harness.baselines import ALONE, BASELINES, best_baseline
from lab.bench.harness.models import Pacing
from lab.bench.harness.report import Row, counted, make_row
from lab.simulation.answer_figures import answers_figures
from tandem.core.errors import InvalidArgument
from tandem.specdec.presets import Preset
from tandem.testing.simulation.answer import (
    Conditions,
    SimulatedAnswer,
    simulate_answer,
    verified_acceptance,
)
from tandem.testing.simulation.model_pair import SimulatedPair
from tandem.testing.simulation.model_times import ModelTimes

HARDWARE = {
    "server": Pacing(0.024, 0.072, 0.003),
    "large": Pacing(0.043, 0.145, 0.004),
    "slow-edge": Pacing(0.060, 0.072, 0.003),
}
RTTS_S = (0.0, 0.030, 0.100, 0.300)
RATES_MBPS = (10.0, 100.0)
VOCABULARY = 151_936
DRAFT_LENGTHS = (1, 2, 3, 4, 6, 8, 10)


@dataclass(frozen=True, slots=True)
class Cell:
    """One hardware on one link."""

    hardware: str
    rtt_s: float
    mbps: float

    @property
    def conditions(self) -> Conditions:
        pacing = HARDWARE[self.hardware]
        times = ModelTimes(pacing.draft_s, pacing.verify_first_s, pacing.verify_further_s)
        return Conditions(times, self.rtt_s, self.mbps, padded_vocabulary=VOCABULARY)

    def __str__(self) -> str:
        return f"{self.hardware}, {self.rtt_s * 1e3:g} ms, {self.mbps:g} Mbit/s"


CELLS = tuple(Cell(*choice) for choice in product(HARDWARE, RTTS_S, RATES_MBPS))


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt and a seed, which is all that the text of an answer depends on beside the preset."""

    prompt_ids: tuple[int, ...]
    seed: int
    group: int
    """The seed of the row that it counts for."""


@dataclass(slots=True)
class Measured:
    """The answers of one variant in one cell, by group."""

    preset: Preset
    answers: dict[int, list[SimulatedAnswer]] = field(default_factory=dict)

    def ask(self, question: Question, pair: SimulatedPair, cell: Cell, max_tokens: int) -> None:
        """Simulate one more answer."""
        answer = simulate_answer(
            self.preset, pair, cell.conditions, question.prompt_ids, max_tokens, question.seed
        )
        self.answers.setdefault(question.group, []).append(answer)

    @property
    def all(self) -> list[SimulatedAnswer]:
        return [answer for group in self.answers.values() for answer in group]

    @property
    def tpot_s(self) -> float:
        return float(answers_figures(self.all)["tpot_s"])

    @property
    def acceptance_rate(self) -> float | None:
        return verified_acceptance(self.all)


Grid = dict[tuple[Cell, str], Measured]
"""Every cell and variant at its best draft length."""


def measure_grid(
    variants: Mapping[str, Preset],
    cells: Sequence[Cell],
    pair: SimulatedPair,
    questions: Sequence[Question],
    max_tokens: int,
    draft_lengths: Sequence[int] = DRAFT_LENGTHS,
    screening: int = 2,
) -> Grid:
    """Measure each variant in each cell, at the draft length of least TPOT over all questions.

    After the first `screening` questions only the two best lengths of a cell and variant go on.
    """
    tried: dict[tuple[Cell, str], dict[Preset, Measured]] = {
        (cell, name): {chosen: Measured(chosen) for chosen in lengths_of(preset, draft_lengths)}
        for name, preset in variants.items()
        for cell in cells
    }
    counted_questions = counted(questions, lambda question: "virtual time, a question")
    for number, question in enumerate(counted_questions, start=1):
        for (cell, _), lengths in tried.items():
            for measured in lengths.values():
                measured.ask(question, pair, cell, max_tokens)
            if number == screening:
                worse = sorted(lengths.values(), key=lambda measured: measured.tpot_s)[2:]
                for measured in worse:
                    del lengths[measured.preset]
    return {
        key: min(lengths.values(), key=lambda measured: measured.tpot_s)
        for key, lengths in tried.items()
    }


def lengths_of(preset: Preset, draft_lengths: Sequence[int]) -> Iterator[Preset]:
    """Yield the preset with each draft length that it can take, each composition once; just the
    preset where a controller chooses the length."""
    if preset.drafts and preset.schedule.decode_when_idle:
        yield preset
        return
    seen = set()
    for length in draft_lengths:
        chosen = preset.with_draft_length(length)
        try:
            chosen.validate()
        except InvalidArgument:
            continue
        if chosen not in seen:
            seen.add(chosen)
            yield chosen


def draft_length_of(preset: Preset) -> int | None:
    """Return how many tokens are drafted at once, by the edge or else by the cloud; None where
    nobody drafts."""
    if preset.drafts:
        return preset.schedule.chunk
    return preset.cloud_draft_length if preset.drafts_in_cloud else None


def baseline_of(grid: Grid, cell: Cell) -> str | None:
    """Return the fastest of what the cloud does alone in this cell; None if none was measured."""
    there = [name for name in BASELINES if (cell, name) in grid]
    return best_baseline({name: 1 / grid[cell, name].tpot_s for name in there})


def grid_rows(grid: Grid) -> list[Row]:
    """Return one row per cell, variant and group of questions; efficiency is left to real runs.
    `speedup_over_cloud`: over the fastest baseline of the cell, which is `best_cloud`."""
    rows = []
    cells = dict.fromkeys(cell for cell, _ in grid)
    best_of = {cell: baseline_of(grid, cell) for cell in cells}
    for (cell, name), measured in grid.items():
        preset = measured.preset
        best = best_of[cell]
        for group, answers in measured.answers.items():
            figures = answers_figures(answers)
            alone_s = _group_tpot_s(grid, cell, ALONE, group)
            cloud_s = None if best is None else _group_tpot_s(grid, cell, best, group)
            row = make_row(
                preset=name,
                draft_length=draft_length_of(preset),
                pacing=HARDWARE[cell.hardware].to_json(),
                rtt_s=cell.rtt_s,
                mbps=cell.mbps,
                seed=group,
            )
            rows.append(
                row
                | figures
                | {
                    "speedup_over_ar": alone_s / figures["tpot_s"] if alone_s else None,
                    "speedup_over_cloud": cloud_s / figures["tpot_s"] if cloud_s else None,
                    "best_cloud": best,
                    "verified_acceptance_rate": verified_acceptance(answers),
                    "hardware": cell.hardware,
                    "simulated": True,
                    "part": "grid",
                }
            )
    return rows


def _group_tpot_s(grid: Grid, cell: Cell, name: str, group: int) -> float | None:
    """Return the TPOT of one group of questions; None where the cell has no such variant."""
    measured = grid.get((cell, name))
    return None if measured is None else float(answers_figures(measured.answers[group])["tpot_s"])
