"""What each part of a method is worth: a preset with one of its fields changed, set beside it.

Like the grid, in virtual time. A part that a preset does not have is not switched off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from lab.bench.harness.report import Goal, Row, make_row
from lab.bench.speculation.methods_goals import ratio_goals, speedups
from lab.bench.speculation.methods_grid import HARDWARE, Cell, Grid, Question, measure_grid
from lab.simulation.answer_figures import answers_figures, undrafted_rate
from tandem.core.probs import Truncation, truncate
from tandem.specdec.choices import Predraft, RejectionPayload, Uplink
from tandem.specdec.presets import PRESETS, Preset
from tandem.testing.simulation.answer import simulate_answer, verified_acceptance
from tandem.testing.simulation.model_pair import SimulatedPair

ABLATION_CELLS = (Cell("server", 0.030, 100.0), Cell("server", 0.100, 10.0))
SWEEP_CELLS = (Cell("server", 0.030, 10.0), Cell("server", 0.030, 100.0))
KEPT = (4, 16, 64, 320, 1280)

EXIT_CELLS = (Cell("server", 0.030, 100.0),)
EXIT_COLUMNS = (
    *("preset", "variant", "cache_miss_rate", "undrafted_rate", "tpot_s"),
    "downlink_bytes_per_token",
)

SWEEP_COLUMNS = (
    "preset",
    "top_k",
    "mbps",
    "retained_mass",
    "acceptance",
    "acceptance_change",
    "verified_acceptance_rate",
    "uplink_bytes_per_token",
    "tpot_s",
)


def picospec_variants(preset: Preset) -> dict[str, Preset]:
    """Return the variants of PicoSpec's Table 2: the whole, and each of its three parts left out
    alone."""
    schedule = preset.schedule
    whole_chunks = replace(schedule, verify_on_arrival=False, token_by_token=False)
    return {
        "picospec": preset,
        "w/o Para-draft": replace(preset, schedule=replace(schedule, window=schedule.chunk)),
        "w/o Fast-verify": replace(preset, schedule=whole_chunks),
        "w/o Split-rej": replace(
            preset, uplink=Uplink.FULL_DISTRIBUTIONS, rejection_payload=RejectionPayload.TOKEN
        ),
    }


def without_predrafts(preset: Preset) -> Preset:
    """Return the preset without pre-drafts: it drafts only what it knows to be wanted."""
    return replace(preset, predraft=Predraft.OFF, exits=0)


def ablation_goals(grid: Grid, names: Sequence[str]) -> Iterator[Goal]:
    """Yield a goal for each part left out, which must make answers slower: TPOT without it ÷ TPOT
    of the whole."""
    whole, *parts = names
    for part in parts:
        ratios = list(speedups(grid, whole, part).values())
        yield from ratio_goals(ratios, f"{whole} over {part}", 1.0)


def truncation_sweep(
    pair: SimulatedPair, questions: Sequence[Question], max_tokens: int, kept: Sequence[int] = KEPT
) -> list[Row]:
    """Return rows of `tslt` with more and more of the draft's distribution kept: mass, acceptance,
    bytes, time."""
    rows = []
    for top_k in kept:
        preset = replace(PRESETS["tslt"], truncation=Truncation(top_k=top_k))
        for cell in SWEEP_CELLS:
            answers = [
                simulate_answer(
                    preset, pair, cell.conditions, question.prompt_ids, max_tokens, question.seed
                )
                for question in questions
            ]
            texts = zip(questions, answers, strict=True)
            contexts = [
                (*question.prompt_ids, *answer.token_ids[:length])
                for question, answer in texts
                for length in range(max_tokens)
            ]
            row = make_row(
                preset="tslt",
                draft_length=preset.schedule.chunk,
                rtt_s=cell.rtt_s,
                mbps=cell.mbps,
                seed=questions[0].seed,
                top_k=top_k,
                part="tslt",
                verified_acceptance_rate=verified_acceptance(answers),
            )
            rows.append(row | answers_figures(answers) | _overlaps(pair, contexts, top_k))
    return rows


def _overlaps(pair: SimulatedPair, contexts: Sequence[tuple[int, ...]], top_k: int) -> Row:
    """Return the exact acceptance Σ min(P, Q) with truncation, and how truncation changes it, over
    the contexts of a text.

    `slack`: the truncated mass less the change of acceptance, at the context where it is least;
    TSLT's theorem says that it is never negative.
    """
    masses = []
    cut = []
    slack = np.inf
    change = 0.0
    for context in contexts:
        target, draft = pair.target_probs(context), pair.draft_probs(context)
        truncated = truncate(draft, Truncation(top_k=top_k))
        mass = float(draft[truncated > 0].sum())
        whole, after = (float(np.minimum(target, probs).sum()) for probs in (draft, truncated))
        slack = min(slack, 1 - mass - abs(after - whole))
        change += after - whole
        masses.append(mass)
        cut.append(after)
    return {
        "retained_mass": float(np.mean(masses)),
        "acceptance": float(np.mean(cut)),
        "acceptance_change": change / len(contexts),
        "slack": slack,
    }


def sweep_goal(rows: Sequence[Row]) -> Goal:
    """Return the goal that truncation changes acceptance by no more than the truncated mass. Its
    limit leaves room for rounding: float32 distributions sum to 1 within some 1e-6."""
    least = min(row["slack"] for row in rows)
    return Goal("tslt: truncated mass − |acceptance change|, least", least, -1e-5, "at least")


def exit_rows(pair: SimulatedPair, questions: Sequence[Question], max_tokens: int) -> list[Row]:
    """Return rows of FSD with more and more exits; `bench exits` has its queues in other orders."""
    whole = PRESETS["fsd"]
    variants = {"no exits": without_predrafts(whole)}
    deepest = len(pair.exit_depths)
    variants |= {f"{count} exits": replace(whole, exits=count) for count in range(1, deepest + 1)}
    (cell,) = EXIT_CELLS
    grid = measure_grid(variants, (cell,), pair, questions, max_tokens, (4,))
    return [
        make_row(
            preset="fsd",
            variant=name,
            draft_length=4,
            pacing=HARDWARE[cell.hardware].to_json(),
            rtt_s=cell.rtt_s,
            mbps=cell.mbps,
            seed=questions[0].seed,
            part="fsd",
        )
        | answers_figures(grid[cell, name].all)
        | {"undrafted_rate": undrafted_rate(grid[cell, name].all)}
        for name in variants
    ]


def exit_goals(rows: Sequence[Row]) -> Iterator[Goal]:
    """Yield the goal that more outcomes are drafted for with the most exits than with the
    fewest."""
    rates = {row["variant"]: row["undrafted_rate"] for row in rows}
    counts = [name for name in rates if name.endswith(" exits") and rates[name] is not None]
    if len(counts) > 1:
        fallen = rates[counts[0]] - rates[counts[-1]]
        yield Goal(
            f"fsd: outcomes not drafted for, fewer with {counts[-1]} than with {counts[0]}",
            fallen,
            0.0,
            "at least",
        )


def measure_variants(
    variants: Mapping[str, Preset],
    pair: SimulatedPair,
    questions: Sequence[Question],
    max_tokens: int,
    draft_lengths: Sequence[int],
    cells: Sequence[Cell] = ABLATION_CELLS,
) -> Grid:
    """Return the grid over an ablation's variants, each at its best draft length."""
    return measure_grid(variants, cells, pair, questions, max_tokens, draft_lengths)
