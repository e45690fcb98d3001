"""`bench dragon-heads`: what a draft should bring of its distribution for DRAGON's aggregation.

By the number of entries that are sent: their bytes, how often drafts are accepted, seconds a token
in virtual time, and how far what comes out is from the mixture of both sides' whole distributions.
`dragon` sends the head of the distribution and a draw from the rest; with `payload=sparse` and
`top_k` it cuts the distribution to the same entries before it draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np

from lab.bench.harness.plots import panels
from lab.bench.harness.report import Goal, Report, Row, make_row, progress
from lab.bench.harness.suite import Models
from lab.bench.two_sided.dragon_latency import (
    BASE_RTT_S,
    QUESTIONS,
    QUICK_QUESTIONS,
    TOKENS,
    answer,
    ask_questions,
)
from lab.bench.two_sided.dragon_prediction import Times, rate_of
from lab.bench.two_sided.dragon_probs import Question
from tandem.core.probs import Array, Truncation
from tandem.core.randomness import Purpose, SeededRandom
from tandem.testing.simulation.two_sided_answer import TwoSidedAnswer
from tandem.two_sided.protocol.draft_head import head_and_rest
from tandem.two_sided.protocol.local_drafting import cut_and_rounded, local_draft
from tandem.two_sided.protocol.mixture import (
    Side,
    Weights,
    coupled_side,
    mixture,
    side_weights,
)
from tandem.two_sided.protocol.presets import (
    AGGREGATION_PRESETS,
    AggregationPreset,
    LocalProbs,
    ProbsPayload,
)
from tandem.two_sided.serving.decoder_codec import probs_to_payload

CUT = "dragon payload=sparse"
"""Under this name, with `top_k` as many entries: the distribution is cut before the draw."""
SHIPPED = 64
WHOLE = 4096
SIZES = (16, SHIPPED, 256, WHOLE)
QUICK_SIZES = (SHIPPED, WHOLE)
STEP_S = 0.060
ADDED_S = 0.1
COLUMNS = (
    *("preset", "entries", "positions", "draft_bytes", "device_acceptance", "cloud_acceptance"),
    *("tpot_s", "bias_mean", "bias_largest", "left_out_mean"),
)


def run(report: Report, models: Models, peps: Path) -> None:
    """Report one row per preset and number of entries, over the same questions."""
    count = QUICK_QUESTIONS if report.quick else QUESTIONS
    questions = ask_questions(models, peps, report.seed, count)
    rows = []
    for entries in QUICK_SIZES if report.quick else SIZES:
        for preset in sending(entries):
            progress(f"{preset.name}, {entries} entries")
            rows.append(_row(preset, entries, questions, report.seed))
    for question in questions:
        question.close()
    title = (
        f"{count} answers of {TOKENS} tokens, temperature 1; seconds a token in virtual time: both"
        f" sides {STEP_S * 1e3:g} ms a step, {ADDED_S * 1e3:g} ms added round trip"
    )
    report.add(title, COLUMNS, rows)
    report.goals += goals(rows)
    report.notes += [
        "bias: total variation between what comes out at a position and the mixture of both whole"
        " distributions. left_out: mass of a side's distribution outside the entries, of which the"
        f" demo pair has {WHOLE:,}.",
        "Distributions are the demo pair's (draft at the device); step times are declared.",
    ]


def sending(entries: int) -> list[AggregationPreset]:
    """Return the presets that send this many entries."""
    dragon = AGGREGATION_PRESETS["dragon"]
    cut = LocalProbs(truncation=Truncation(top_k=entries))
    return [
        replace(dragon, probs=replace(dragon.probs, head=entries)),
        replace(dragon, name=CUT, probs=cut),
    ]


@dataclass(frozen=True, slots=True)
class Position:
    """Figures of one position of a text."""

    draft_bytes: float
    acceptance: tuple[float, float]
    bias: float
    left_out: float


def positions(preset: AggregationPreset, question: Question, seed: int) -> list[Position]:
    """Return the figures along a text of `TOKENS`, drawn from the mixture of the whole
    distributions: the same text for every preset."""
    rng = SeededRandom(seed)
    weights = side_weights(question.device.log_mass, question.cloud.log_mass)
    context = question.prompt_ids
    figures = []
    for _ in range(TOKENS):
        whole = (question.device(context), question.cloud(context))
        figures.append(_position(preset, whole, weights, rng, len(context)))
        owner = coupled_side(weights, rng, len(context))
        token = rng.gumbel_categorical(whole[owner], len(context), Purpose.DRAFT)
        context = (*context, token)
    return figures


def _position(
    preset: AggregationPreset,
    whole: tuple[Array, Array],
    weights: Weights,
    rng: SeededRandom,
    position: int,
) -> Position:
    choices = preset.probs
    sent = [
        local_draft(whole[side], choices, rng=rng, position=position, side=side)[1] for side in Side
    ]
    drawn = [cut_and_rounded(probs, choices) for probs in whole]
    entries = choices.head or choices.truncation.top_k
    return Position(
        draft_bytes=fmean(len(probs_to_payload(probs, choices)) for probs in sent),
        acceptance=(
            rate_of(choices, drawn[Side.DEVICE], drawn[Side.CLOUD], weights.device),
            rate_of(choices, drawn[Side.CLOUD], drawn[Side.DEVICE], weights.cloud),
        ),
        bias=float(np.abs(outcome(preset, drawn, weights) - mixture(*whole, weights)).sum() / 2),
        left_out=fmean(1 - float(np.sort(probs)[-entries:].sum()) for probs in whole),
    )


def outcome(preset: AggregationPreset, drawn: Sequence[Array], weights: Weights) -> Array:
    """Return the distribution [V] of the token that comes out when drafts are drawn from `drawn`
    and aggregated as the preset does."""
    if preset.probs.payload is ProbsPayload.HEAD:
        split = [
            head_and_rest(probs.astype(np.float64), preset.probs.head, preset.probs.precision)[2]
            for probs in drawn
        ]
    else:
        split = [np.zeros_like(probs) for probs in drawn]
    by_side = []
    for side in Side:
        heads = [probs - rest for probs, rest in zip(drawn, split, strict=True)]
        own, other, other_weight = heads[side], heads[side.other], weights[side.other]
        kept = own - other_weight * np.maximum(own - other, 0) + weights[side] * split[side]
        replaced = other_weight * (np.maximum(other - own, 0) + split[side.other])
        by_side.append(kept + replaced)
    found: Array = (by_side[Side.DEVICE] + by_side[Side.CLOUD]) / 2
    return found


def _row(preset: AggregationPreset, entries: int, questions: Sequence[Question], seed: int) -> Row:
    figures = [
        figure
        for number, question in enumerate(questions)
        for figure in positions(preset, question, seed + number)
    ]
    times = Times(STEP_S, STEP_S, BASE_RTT_S + ADDED_S)
    answers = [
        answer(preset, question, times, ADDED_S, seed + number)
        for number, question in enumerate(questions)
    ]
    return make_row(
        preset=preset.name,
        seed=seed,
        rtt_s=times.rtt_s,
        tpot_s=fmean(map(_tpot_s, answers)),
        entries=entries,
        positions=len(figures),
        draft_bytes=fmean(figure.draft_bytes for figure in figures),
        device_acceptance=fmean(figure.acceptance[Side.DEVICE] for figure in figures),
        cloud_acceptance=fmean(figure.acceptance[Side.CLOUD] for figure in figures),
        bias_mean=fmean(figure.bias for figure in figures),
        bias_largest=max(figure.bias for figure in figures),
        left_out_mean=fmean(figure.left_out for figure in figures),
    )


def _tpot_s(one: TwoSidedAnswer) -> float:
    return (one.commits[-1][0] - one.commits[0][0]) / (len(one.token_ids) - 1)


def goals(rows: Sequence[Row]) -> list[Goal]:
    """Return the goals: the head has no bias, and at the size that the presets have it costs
    little, in bytes beside the cut and in time beside the whole distribution."""
    at = {(row["preset"], row["entries"]): row for row in rows}
    head = at["dragon", SHIPPED]
    cut = at[CUT, SHIPPED]
    worst = max(row["bias_largest"] for row in rows if row["preset"] == "dragon")
    return [
        Goal("largest bias of dragon", worst, 1e-6, "at most"),
        Goal(
            f"bytes of a draft, dragon ÷ {CUT}, {SHIPPED} entries",
            head["draft_bytes"] / cut["draft_bytes"],
            1.05,
            "at most",
        ),
        Goal(
            f"seconds a token of dragon, {SHIPPED} entries ÷ all {WHOLE:,}",
            head["tpot_s"] / at["dragon", WHOLE]["tpot_s"],
            1.05,
            "at most",
        ),
    ]


def draw(report: Report, folder: Path) -> None:
    panels(
        folder / "bias.png",
        [row | {"all": "mixture"} for row in report.rows],
        x="entries",
        y="bias_mean",
        columns="all",
        lines="preset",
        title="Total variation from the mixture, per position",
    )
