"""`bench methods`: every preset compared, each at its best draft length, over hardware and links.

The grid runs in virtual time through the real machines: durations are declared, not measured. With
`--real` a part of it runs as processes too, paced and behind the link emulator, and its TPOT is set
beside the simulated one. Every preset is compared with the target alone (`ar`), and with the best
of what a cloud does that drafts for itself: its draft step takes a fifth of the edge's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.bench.harness.baselines import ALONE, BASELINES
from lab.bench.harness.plots import panels
from lab.bench.harness.report import Report, Row, Table
from lab.bench.harness.suite import Models
from lab.bench.harness.texts import prompts
from lab.bench.speculation.methods_ablations import (
    EXIT_COLUMNS,
    SWEEP_COLUMNS,
    ablation_goals,
    exit_goals,
    exit_rows,
    measure_variants,
    picospec_variants,
    sweep_goal,
    truncation_sweep,
    without_predrafts,
)
from lab.bench.speculation.methods_goals import grid_goals
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
from lab.bench.speculation.methods_real import COLUMNS as REAL_COLUMNS
from lab.bench.speculation.methods_real import efficiency_goals, measure_real
from tandem.backends.model_description import load_tokenizer
from tandem.backends.torch.loading import load_engine
from tandem.core.errors import unknown_name
from tandem.core.probs import SamplingParams
from tandem.specdec.choices import Predraft
from tandem.specdec.presets import PRESETS, Preset
from tandem.testing.simulation.model_pair import SimulatedPair, simulated_pair

SEEDS = 3
PROMPTS_PER_SEED = 2
QUICK_PROMPTS_PER_SEED = 1
MAX_TOKENS = 96
QUICK_MAX_TOKENS = 48
REAL_CELLS = (Cell("server", 0.030, 100.0), Cell("server", 0.100, 10.0))
QUICK_DRAFT_LENGTHS = (1, 4, 8)


def run(report: Report, models: Models, real: bool = False, preset: Sequence[str] = ()) -> None:
    """Fill the report with the grid, the ablations and, if asked for, the real runs. `preset`: only
    these and the target alone, without ablations."""
    chosen = chosen_variants(preset)
    pair = load_simulated_pair(models)
    questions_ = questions(models, report.seed, report.quick)
    max_tokens = QUICK_MAX_TOKENS if report.quick else MAX_TOKENS
    lengths = QUICK_DRAFT_LENGTHS if report.quick else DRAFT_LENGTHS
    grid = measure_grid(chosen, CELLS, pair, questions_, max_tokens, lengths)
    report.rows += grid_rows(grid, pair.vocabulary_size)
    report.tables += [speedup_table(grid), over_cloud_table(grid), cost_table(report.rows)]
    report.goals += grid_goals(grid)
    if not preset:
        _ablations(report, pair, questions_, max_tokens, lengths)
    if real:
        _real(report, models, pair, grid, questions_)
    report.notes += [
        f"Virtual time through the real state machines: {len(questions_)} answers of {max_tokens} "
        "tokens per cell and preset, step times declared, distributions and messages of the demo "
        "pair, "
        "whole distributions padded to a vocabulary of 151,936.",
        "A draft step in the cloud takes a fifth of the edge's. speedup_over_cloud: over the "
        f"fastest of {', '.join(BASELINES)} in the same cell, which is best_cloud.",
        "predicted_tpot_s: the preset's cost model, given the acceptance of the verified drafts.",
    ]


def variants() -> dict[str, Preset]:
    """Return every preset by name, and those that draft ahead of a verdict once more without
    that."""
    presets = dict(PRESETS)
    for name, preset in list(presets.items()):
        if preset.predraft is not Predraft.OFF:
            presets[f"{name} w/o pre-drafts"] = without_predrafts(preset)
    return presets


def chosen_variants(names: Sequence[str]) -> dict[str, Preset]:
    """Return the variants of these names, and the target alone; all where none is named. Raises
    InvalidArgument for an unknown name."""
    every = variants()
    for name in names:
        if name not in every:
            raise unknown_name("preset", name, every)
    wanted = {ALONE, *names} if names else set(every)
    return {name: preset for name, preset in every.items() if name in wanted}


def _ablations(
    report: Report,
    pair: SimulatedPair,
    questions_: Sequence[Question],
    max_tokens: int,
    lengths: Sequence[int],
) -> None:
    """Add what the parts of methods are worth: PicoSpec without each of its parts, FSD with more
    and more exits, and TSLT with more and more tokens of the draft's distribution kept."""
    if "picospec" in PRESETS:
        parts = picospec_variants(PRESETS["picospec"])
        grid = measure_variants(parts, pair, questions_, max_tokens, lengths)
        rows = [row | {"part": "picospec"} for row in grid_rows(grid, pair.vocabulary_size)]
        report.rows += rows
        report.tables.append(ablation_table(grid, list(parts)))
        report.goals += ablation_goals(grid, list(parts))
    if "fsd" in PRESETS and pair.exit_depths:
        exits = exit_rows(pair, questions_, max_tokens)
        report.add("FSD: more and more exits", EXIT_COLUMNS, exits)
        report.goals += exit_goals(exits)
    if "tslt" in PRESETS:
        sweep = truncation_sweep(pair, questions_, max_tokens)
        report.add("TSLT: tokens kept of the draft's distribution", SWEEP_COLUMNS, sweep)
        report.goals.append(sweep_goal(sweep))


def ablation_table(grid: Grid, names: Sequence[str]) -> Table:
    """Return a table of tokens per second: of the whole, and with each part left out."""
    lines = []
    for cell in dict.fromkeys(cell for cell, _ in grid):
        line: Row = {"cell": str(cell)}
        for name in names:
            measured = grid[cell, name]
            length = measured.preset.schedule.chunk
            line[name] = f"{1 / measured.tpot_s:.2f}@{length}"
        lines.append(line)
    return Table("Tokens/s (1 ÷ TPOT) @ best draft length", ("cell", *names), lines)


def _real(
    report: Report, models: Models, pair: SimulatedPair, grid: Grid, questions_: Sequence[Question]
) -> None:
    """Run a part of the grid as processes, each preset at the draft length that was best in virtual
    time. Split inference is left out: the grid gives its layers at the edge no time."""
    cells, count, tokens = (REAL_CELLS[:1], 1, 48) if report.quick else (REAL_CELLS, 3, 96)
    chosen = {
        cell: {
            name: measured.preset
            for (where, name), measured in grid.items()
            if where == cell and name in PRESETS and not measured.preset.split_layers
        }
        for cell in cells
    }
    texts = prompts(len(questions_))
    rows = measure_real(
        models, pair, chosen, list(zip(texts, questions_, strict=True))[:count], tokens
    )
    report.add("Real processes, paced, behind the link emulator", REAL_COLUMNS, rows)
    report.goals += efficiency_goals(rows)


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


def cost_table(rows: list[Row]) -> Table:
    """Return what each preset sends and asks of the cloud, over all cells."""
    lines = []
    for name in dict.fromkeys(row["preset"] for row in rows):
        of_preset = [row for row in rows if row["preset"] == name]
        line: Row = {"preset": name}
        for figure in COST_FIGURES:
            values = [row[figure] for row in of_preset if row[figure] is not None]
            line[figure] = sum(values) / len(values) if values else None
        lines.append(line)
    return Table("Means over all cells", ("preset", *COST_FIGURES), lines)


COST_FIGURES = (
    "tokens_per_s",
    "tpot_s",
    "predicted_tpot_s",
    "ttft_s",
    "acceptance_rate",
    "verified_acceptance_rate",
    "target_passes_per_token",
    "uplink_bytes_per_token",
    "downlink_bytes_per_token",
    "cache_miss_rate",
)


def draw(report: Report, folder: Path) -> None:
    grid = [row for row in report.rows if row.get("part") == "grid"]
    panels(
        folder / "speedup.png",
        grid,
        x="rtt_s",
        y="speedup_over_ar",
        columns="hardware",
        lines="mbps",
        title="Speedup over the target alone, best draft length, virtual time",
        limit=1.0,
    )
