"""A part of the grid as real processes: paced, behind the link emulator, one core a side.

Each answer is also simulated, with the same prompt, seed and draft length, so that the same tokens
are drafted and verified. Efficiency = simulated ÷ measured TPOT, where the simulation's passes last
as long as the run's own did: what is missing to 1 is transport, scheduling and our own code between
passes. `declared_efficiency` is the same with the declared times: sampling, which is a part of each
real pass, is missing too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from lab.bench.harness.pass_times import pass_sums
from lab.bench.harness.report import Goal, Row, progress
from lab.bench.harness.suite import Models, running_suite
from lab.bench.harness.workload import (
    add_speedups,
    answers_row,
    measured_tpot_s,
    one_after_another,
    requests,
    total,
)
from lab.bench.speculation.methods_grid import HARDWARE, Cell, Question, draft_length_of
from lab.simulation.answer_figures import answers_figures
from tandem.generation.client import Generated
from tandem.net.process import run_loop
from tandem.specdec.presets import Preset
from tandem.testing.simulation.answer import simulate_answer
from tandem.testing.simulation.model_pair import SimulatedPair
from tandem.testing.simulation.model_times import ModelTimes

EFFICIENCY_LIMIT = 0.93
CALIBRATING = "ar"
"""Whose passes have one token each, here and in the simulation; it comes first."""

COLUMNS = (
    "preset",
    "draft_length",
    "rtt_s",
    "mbps",
    "tokens_per_s",
    "tpot_s",
    "predicted_tpot_s",
    "efficiency",
    "declared_efficiency",
    "draft_pass_s",
    "ttft_s",
    "simulated_ttft_s",
    "same_text",
    "speedup_over_ar",
)


def measure_real(
    models: Models,
    pair: SimulatedPair,
    chosen: Mapping[Cell, Mapping[str, Preset]],
    questions: Sequence[tuple[str, Question]],
    max_tokens: int,
) -> list[Row]:
    """Return one row per cell and preset; all cells are of one hardware. `questions`: texts with
    their ids, their seeds counting up by one."""
    (hardware,) = {cell.hardware for cell in chosen}
    seed = questions[0][1].seed
    texts = [text for text, _ in questions]
    rows: list[Row] = []
    with running_suite(models, HARDWARE[hardware], with_link=True, cloud_draft=True) as suite:
        assert suite.link is not None, "a link was asked for"
        for cell, presets in chosen.items():
            suite.link.set(cell.rtt_s, cell.mbps)
            beyond_s = 0.0
            for name, preset in presets.items():
                progress(f"real processes, {cell}, {name}")
                length = draft_length_of(preset)
                wanted = requests(texts, name, length, max_tokens, seed)
                before = pass_sums(suite.drafter_metrics)
                done = run_loop(one_after_another(suite, wanted))
                draft_s = pass_sums(suite.drafter_metrics).mean_since(before)
                simulated = partial(_simulated, preset, pair, cell, questions, max_tokens)
                if name == CALIBRATING:
                    beyond_s = _verify_time_beyond(done, simulated(cell.conditions.times))
                rows.append(
                    answers_row(name, length, done)
                    | {"hardware": hardware, "pacing": HARDWARE[hardware].to_json()}
                    | {"part": "real", "rtt_s": cell.rtt_s, "mbps": cell.mbps, "seed": seed}
                    | _beside(done, simulated, cell.conditions.times, draft_s, beyond_s)
                )
    add_speedups(rows)
    return rows


def _beside(
    done: Sequence[Generated],
    simulated: Callable[[ModelTimes], Row],
    declared: ModelTimes,
    draft_s: float | None,
    beyond_s: float,
) -> Row:
    """Return what the simulation says of these answers, by the declared times and by those measured
    in the run."""
    tpot_s = measured_tpot_s(done)
    first_s = declared.verify_first_s + beyond_s
    measured = replace(declared, draft_s=draft_s or declared.draft_s, verify_first_s=first_s)
    ideal, predicted = simulated(declared), simulated(measured)
    return {
        "predicted_tpot_s": predicted["tpot_s"],
        "simulated_ttft_s": predicted["ttft_s"],
        "efficiency": predicted["tpot_s"] / tpot_s,
        "declared_efficiency": ideal["tpot_s"] / tpot_s,
        "draft_pass_s": draft_s,
        "same_text": f"{_same(done, ideal)} of {len(done)}",
    }


def efficiency_goals(rows: Sequence[Row]) -> Iterator[Goal]:
    """Yield one goal per preset: its worst cell."""
    for name in dict.fromkeys(row["preset"] for row in rows):
        worst = min(row["efficiency"] for row in rows if row["preset"] == name)
        yield Goal(f"efficiency of {name}, real processes", worst, EFFICIENCY_LIMIT, "at least")


def _verify_time_beyond(done: Sequence[Generated], ideal: Row) -> float:
    """Return the seconds that a pass of the target took beyond its declared time, in answers whose
    passes are those of the simulation."""
    passes = total(done, "target_passes")
    return (total(done, "verify_s") - float(ideal["verify_s"])) / passes


def _simulated(
    preset: Preset,
    pair: SimulatedPair,
    cell: Cell,
    questions: Sequence[tuple[str, Question]],
    max_tokens: int,
    times: ModelTimes,
) -> Row:
    """Simulate the same answers in virtual time. Distributions are not padded, since the real
    answers send those of the pair's vocabulary."""
    conditions = replace(cell.conditions, padded_vocabulary=None, times=times)
    answers = [
        simulate_answer(preset, pair, conditions, question.prompt_ids, max_tokens, question.seed)
        for _, question in questions
    ]
    verify_s = sum(answer.stats.verify_s for answer in answers)
    texts = [answer.token_ids for answer in answers]
    return answers_figures(answers) | {"verify_s": verify_s, "texts": texts}


def _same(done: Sequence[Generated], simulated: Row) -> int:
    """Return how many texts are those of the simulation."""
    pairs = zip(done, simulated["texts"], strict=True)
    return sum(tuple(real.token_ids) == token_ids for real, token_ids in pairs)
