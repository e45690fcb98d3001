"""A part of the grid as real processes: paced, behind the link emulator, one core a side.

Each answer is also simulated, with the same prompt, seed and draft length, so that the same tokens
are drafted and judged. Efficiency = simulated ÷ measured TPOT: what is missing to 1 is transport,
scheduling and our own code. Must not import torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from bench.methods_grid import HARDWARE, Cell, Question
from bench.report import Goal, Row, progress
from bench.suite import Models, running_suite
from bench.workload import add_speedups, answers_row, one_after_another, requests
from tandem.policy.presets import Preset
from tandem.rpc.aggregator_client import Generated
from tandem.rpc.process import run_loop
from tandem.simulation.answer import SimulatedPair, simulate_answer
from tandem.simulation.rows import answers_figures

EFFICIENCY_LIMIT = 0.93

COLUMNS = (
    "preset",
    "draft_length",
    "rtt_s",
    "mbps",
    "tokens_per_s",
    "tpot_s",
    "predicted_tpot_s",
    "efficiency",
    "ttft_s",
    "simulated_ttft_s",
    "same_text",
    "speedup_over_ar",
)


def measure_real(
    models: Models,
    pair: SimulatedPair,
    chosen: Mapping[Cell, Mapping[str, Preset]],
    asked: Sequence[tuple[str, Question]],
    max_tokens: int,
) -> list[Row]:
    """One row per cell and preset; all cells are of one hardware. `asked`: texts with their ids,
    their seeds counting up by one."""
    (hardware,) = {cell.hardware for cell in chosen}
    seed = asked[0][1].seed
    texts = [text for text, _ in asked]
    rows: list[Row] = []
    with running_suite(models, HARDWARE[hardware], with_link=True) as suite:
        assert suite.link is not None, "a link was asked for"
        for cell, presets in chosen.items():
            suite.link.set(cell.rtt_s, cell.mbps)
            for name, preset in presets.items():
                progress(f"real processes, {cell}, {name}")
                length = preset.schedule.chunk if preset.drafts else None
                wanted = requests(texts, name, length, max_tokens, seed)
                done = run_loop(one_after_another(suite, wanted))
                simulated = _simulated(preset, pair, cell, asked, max_tokens)
                row = answers_row(name, length, done) | simulated
                rows.append(
                    row
                    | {
                        "part": "real",
                        "hardware": hardware,
                        "pacing": HARDWARE[hardware].to_json(),
                        "rtt_s": cell.rtt_s,
                        "mbps": cell.mbps,
                        "seed": seed,
                        "efficiency": simulated["predicted_tpot_s"] / row["tpot_s"],
                        "same_text": f"{_same(done, simulated)} of {len(asked)}",
                    }
                )
    for row in rows:
        del row["simulated_texts"]
    add_speedups(rows)
    return rows


def efficiency_goals(rows: Sequence[Row]) -> Iterator[Goal]:
    """One goal per preset: its worst cell."""
    for name in dict.fromkeys(row["preset"] for row in rows):
        worst = min(row["efficiency"] for row in rows if row["preset"] == name)
        yield Goal(f"efficiency of {name}, real processes", worst, EFFICIENCY_LIMIT, "at least")


def _simulated(
    preset: Preset,
    pair: SimulatedPair,
    cell: Cell,
    asked: Sequence[tuple[str, Question]],
    max_tokens: int,
) -> Row:
    """The same answers in virtual time. The real ones send laws of the pair's own vocabulary."""
    conditions = replace(cell.conditions, padded_vocabulary=None)
    answers = [
        simulate_answer(preset, pair, conditions, question.prompt_ids, max_tokens, question.seed)
        for _, question in asked
    ]
    figures = answers_figures(answers)
    return {
        "predicted_tpot_s": figures["tpot_s"],
        "simulated_ttft_s": figures["ttft_s"],
        "simulated_texts": [answer.token_ids for answer in answers],
    }


def _same(done: Sequence[Generated], simulated: Row) -> int:
    """How many texts are those of the simulation."""
    pairs = zip(done, simulated["simulated_texts"], strict=True)
    return sum(tuple(real.token_ids) == token_ids for real, token_ids in pairs)
