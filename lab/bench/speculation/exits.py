"""`bench exits`: what early exits cost the verifier, and how often they spare the edge a wait.

Costs are measured. Miss rates come from virtual time: real machines, distributions and early
verdicts of the pair, declared durations (FSD, Figure 4a and Table 7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lab.bench.harness.plots import grouped_lines
from lab.bench.harness.report import Goal, Report, Row, make_row, progress
from lab.bench.harness.suite import Models
from lab.bench.speculation.exit_clients import CLIENT_COLUMNS, client_rows
from lab.bench.speculation.exit_cost import EXITS, demo_target, measure_exits, random_target
from lab.bench.speculation.methods import load_simulated_pair, questions
from lab.bench.speculation.methods_grid import Question
from lab.machine import pinned, usable_cores
from lab.simulation.answer_figures import answers_figures, undrafted_rate
from tandem.core.errors import TandemError
from tandem.specdec.choices import Predraft, PredraftOrder
from tandem.specdec.presets import PRESETS, Preset
from tandem.testing.simulation.answer import Conditions, simulate_answer
from tandem.testing.simulation.model_pair import SimulatedPair
from tandem.testing.simulation.model_times import ModelTimes

COST_LIMIT = 0.10
SPEEDUP_LIMIT = 1.04
SERVER = Conditions(ModelTimes(0.024, 0.072, 0.003), rtt_s=0.03, mbps=100.0)
LARGE = Conditions(ModelTimes(0.012, 0.145, 0.004), rtt_s=0.03, mbps=0.05)
"""Verdicts come faster than a worker drafts and than the link carries: both sides queue them."""
COST_COLUMNS = ("target", "head_share", "exits", "distributions", "pass_s", "added")
EXIT_COLUMNS = (
    *("preset", "exits", "cache_miss_rate", "undrafted_rate", "tokens_per_s", "speedup"),
)
ORDER_COLUMNS = ("edge_order", "cloud_order", "workers", "cache_miss_rate", "undrafted_rate")


def run(report: Report, models: Models) -> None:
    costs = _costs(report, models)
    report.add("Cost of early exits, one core, a chunk of 4 drafts (measured)", COST_COLUMNS, costs)
    pair = load_simulated_pair(models)
    if not pair.exit_distributions:
        raise TandemError(f"{models.target} has no early exits; see 'tandem train-exits --help'")
    questions_ = questions(models, report.seed, report.quick)
    tokens = 48 if report.quick else 96
    by_exits = _by_exits(pair, questions_, tokens, report.seed)
    report.add("Number of early exits (virtual time, 30 ms, 100 Mbit/s)", EXIT_COLUMNS, by_exits)
    orders = _by_order(pair, questions_, tokens, report.seed)
    report.add(
        "Queue orders (virtual time, pass 145 ms, draft step 12 ms, 0.05 Mbit/s)",
        ORDER_COLUMNS,
        orders,
    )
    clients = client_rows(pair, questions_, tokens, report.seed)
    report.add(
        "Several clients of one verifier (virtual time, 30 ms, draft step 24 ms, pass 72 ms)",
        CLIENT_COLUMNS,
        clients,
    )
    report.goals += _goals(costs, by_exits)


def _costs(report: Report, models: Models) -> list[Row]:
    passes = 20 if report.quick else 60
    rows: list[Row] = []
    with pinned(usable_cores()[0]):
        for name, (engine, share) in (
            ("random", random_target(report.seed)),
            ("demo", demo_target(models.target)),
        ):
            progress(f"cost on the {name} target")
            rows += measure_exits(name, engine, share, passes, report.seed)
    return rows


def _methods() -> dict[str, Preset]:
    coupled = replace(PRESETS["coupled"], predraft=Predraft.EARLY_EXITS, exits=1)
    return {"fsd": PRESETS["fsd"], "coupled, early exits": coupled}


def _by_exits(
    pair: SimulatedPair, questions_: Sequence[Question], tokens: int, seed: int
) -> list[Row]:
    rows: list[Row] = []
    for name, preset in _methods().items():
        plain_s = 0.0
        for exits in range(len(pair.exit_distributions) + 1):
            progress(f"{name}, {exits} exits")
            predraft = Predraft.EARLY_EXITS if exits else Predraft.OFF
            fixed = replace(preset, exits=exits, predraft=predraft)
            row = _row(name, fixed, pair, questions_, tokens)
            plain_s = plain_s or row["tpot_s"]
            rows.append(row | {"exits": exits, "speedup": plain_s / row["tpot_s"], "seed": seed})
    return rows


def _by_order(
    pair: SimulatedPair, questions_: Sequence[Question], tokens: int, seed: int
) -> list[Row]:
    """Return rows for FSD's Table 7: which waiting verdict the edge drafts for first, and which one
    the cloud sends first."""
    rows: list[Row] = []
    for workers in (1, 2):
        for edge in PredraftOrder:
            for cloud in PredraftOrder:
                chosen = replace(
                    PRESETS["fsd"],
                    exits=len(pair.exit_distributions),
                    predraft_order=edge,
                    exit_order=cloud,
                    predraft_workers=workers,
                )
                row = _row("fsd", chosen, pair, questions_, tokens, LARGE)
                order = {"edge_order": str(edge), "cloud_order": str(cloud), "workers": workers}
                rows.append(row | order | {"seed": seed})
    return rows


def _row(
    name: str,
    preset: Preset,
    pair: SimulatedPair,
    questions_: Sequence[Question],
    tokens: int,
    conditions: Conditions = SERVER,
) -> Row:
    answers = [
        simulate_answer(preset, pair, conditions, question.prompt_ids, tokens, question.seed)
        for question in questions_
    ]
    figures = answers_figures(answers) | {"undrafted_rate": undrafted_rate(answers)}
    return make_row(preset=name, pacing="simulated", draft_length=preset.schedule.chunk, **figures)


def _goals(costs: Sequence[Row], by_exits: Sequence[Row]) -> list[Goal]:
    (added,) = [
        row["added"]
        for row in costs
        if (row["target"], row["exits"], row["distributions"]) == ("random", EXITS, False)
    ]
    goals = [Goal("four exits, added to a pass, head of 2 %", added, COST_LIMIT, "at most")]
    for name in _methods():
        rows = [row for row in by_exits if row["preset"] == name and row["exits"]]
        best = max(row["speedup"] for row in rows)
        falls = rows[0]["undrafted_rate"] - rows[-1]["undrafted_rate"]
        goals += [
            Goal(f"{name}: best ÷ without exits", best, SPEEDUP_LIMIT, "at least"),
            Goal(f"{name}: outcomes not drafted for, 1 exit − all", falls, 0.0, "at least"),
        ]
    return goals


def draw(report: Report, folder: Path) -> None:
    rows = [row for row in report.rows if row.get("speedup") is not None]
    grouped_lines(
        folder / "exits.png",
        rows,
        x="exits",
        y="undrafted_rate",
        title="Outcomes that were not drafted for, by number of early exits",
    )
