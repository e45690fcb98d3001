"""`bench methods`: every preset compared, each at its best draft length, over hardware and links.

The grid runs in virtual time through the real machines: durations are declared, not measured. Every
preset is compared with the target alone (`ar`), and with the best of what a cloud does that drafts
for itself: its draft step takes a fifth of the edge's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lab.bench.harness.baselines import ALONE, BASELINES
from lab.bench.harness.models import Models
from lab.bench.harness.report import Report, Row, Table
from lab.bench.harness.texts import prompts
from lab.bench.speculation.methods_grid import (
    CELLS,
    DRAFT_LENGTHS,
    Cell,
    Grid,
    Question,
    baseline_of,
    draft_length_of,
    grid_rows,
    measure_grid,
)
from tandem.backends.model_description import load_tokenizer
from tandem.backends.torch.loading import load_engine
from tandem.core.errors import unknown_name
from tandem.core.probs import SamplingParams
from tandem.specdec.presets import PRESETS, Preset
from tandem.testing.simulation.model_pair import SimulatedPair, simulated_pair

SEEDS = 3
PROMPTS_PER_SEED = 2
QUICK_PROMPTS_PER_SEED = 1
MAX_TOKENS = 96
QUICK_MAX_TOKENS = 48
QUICK_DRAFT_LENGTHS = (1, 4, 8)


def run(report: Report, models: Models, preset: Sequence[str] = ()) -> None:
    """Fill the report with the grid. `preset`: only these and the target alone."""
    chosen = chosen_variants(preset)
    pair = load_simulated_pair(models)
    questions_ = questions(models, report.seed, report.quick)
    max_tokens = QUICK_MAX_TOKENS if report.quick else MAX_TOKENS
    lengths = QUICK_DRAFT_LENGTHS if report.quick else DRAFT_LENGTHS
    grid = measure_grid(chosen, CELLS, pair, questions_, max_tokens, lengths)
    report.rows += grid_rows(grid)
    report.tables += [speedup_table(grid), over_cloud_table(grid)]
    report.notes.append(
        f"{len(questions_)} answers of {max_tokens} tokens per cell and preset, step times "
        "declared, distributions and messages of the pair, whole distributions padded to a "
        "vocabulary of 151,936. speedup_over_cloud: over the fastest of "
        f"{', '.join(BASELINES)} in the same cell, which is best_cloud."
    )


def chosen_variants(names: Sequence[str]) -> dict[str, Preset]:
    """Return the variants of these names, and the target alone; all where none is named. Raises
    InvalidArgument for an unknown name."""
    for name in names:
        if name not in PRESETS:
            raise unknown_name("preset", name, PRESETS)
    wanted = {ALONE, *names} if names else set(PRESETS)
    return {name: preset for name, preset in PRESETS.items() if name in wanted}


def load_simulated_pair(models: Models) -> SimulatedPair:
    """Return the pair with both models' distributions at temperature 1."""
    draft, target = load_engine(models.draft), load_engine(models.target, exits="auto")
    return simulated_pair(draft, target, SamplingParams())


def questions(models: Models, seed: int, quick: bool) -> list[Question]:
    """Return some held-out prompts for each of three seeds, different ones for each."""
    tokenizer = load_tokenizer(models.target)
    per_seed = QUICK_PROMPTS_PER_SEED if quick else PROMPTS_PER_SEED
    texts = prompts(SEEDS * per_seed)
    return [
        Question(tuple(tokenizer.encode(text)), seed + number, seed + number // per_seed)
        for number, text in enumerate(texts)
    ]


def speedup_table(grid: Grid) -> Table:
    """Return a table of the speedup over the target alone, with the draft length that reached
    it."""
    title = "Speedup over ar (ratio of TPOT) @ best draft length; virtual time"
    return _ratios(title, grid, {cell: ALONE for cell, _ in grid})


def over_cloud_table(grid: Grid) -> Table:
    """Return a table of the speedup over the fastest of what the cloud does without an edge."""
    words = ", ".join(BASELINES)
    title = f"Speedup over the best of {words} (ratio of TPOT) @ best draft length; virtual time"
    best = {cell: baseline_of(grid, cell) or ALONE for cell, _ in grid}
    return _ratios(title, grid, best)


def _ratios(title: str, grid: Grid, baselines: Mapping[Cell, str]) -> Table:
    """Return a table of the speedup over a baseline for each cell; the column `over` names the
    baseline."""
    names = list(dict.fromkeys(name for _, name in grid))
    lines = []
    for cell, baseline in baselines.items():
        line: Row = {
            "hardware": cell.hardware,
            "rtt_ms": f"{cell.rtt_s * 1e3:g}",
            "mbps": f"{cell.mbps:g}",
            "over": baseline,
        }
        for name in names:
            measured = grid[cell, name]
            gain = grid[cell, baseline].tpot_s / measured.tpot_s
            length = draft_length_of(measured.preset)
            line[name] = f"{gain:.2f}" + ("" if length is None else f"@{length}")
        lines.append(line)
    return Table(title, ("hardware", "rtt_ms", "mbps", "over", *names), lines)
