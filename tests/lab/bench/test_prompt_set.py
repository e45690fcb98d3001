"""`bench prompts`: its set, and what its figures are relative to."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lab.bench.harness.baselines import ALONE, CLOUD_DRAFT
from lab.bench.harness.report import Row
from lab.bench.speculation.named_prompts import NamedPrompt
from lab.bench.speculation.prompt_set import (
    ARMS,
    BEST,
    COMPARED,
    GREEDY,
    TOGETHER,
    Round,
    Setting,
    goals,
    notes,
    prompt_row,
    summary_row,
)
from tandem.core.probs import SamplingParams
from tandem.generation.client import Generated
from tandem_api.common.v1 import generation_pb2 as pb

SETTING = Setting(GREEDY, SamplingParams(temperature=0.0))


def answer(
    seconds: float, token_ids: Sequence[int] = (1, 2, 3, 4), *, same_bits: bool = True
) -> Generated:
    summary = pb.Summary(
        tokens=len(token_ids), drafted=8, accepted=2, target_passes=2, same_bits=same_bits
    )
    return Generated(token_ids=list(token_ids), duration_s=seconds, summary=summary)


def round_of(alone_s: float, together_s: float, *, same_bits: bool = True) -> Round:
    return {
        ALONE: answer(alone_s, same_bits=same_bits),
        TOGETHER: answer(together_s, same_bits=same_bits),
    }


def row_of(name: str, *rounds: Round) -> Row:
    return prompt_row(NamedPrompt(name, "code", "Write."), rounds, SETTING)


def test_a_ratio_is_of_all_rounds_of_the_prompt() -> None:
    row = row_of("a", round_of(2.0, 1.0), round_of(4.0, 5.0))
    assert row["ratio"] == row["speedup_over_ar"] == pytest.approx(6 / 6)
    assert row["alone_s_per_token"] == pytest.approx(6 / 8)
    assert row["times_s"] == {ALONE: [2.0, 4.0], TOGETHER: [1.0, 5.0]}
    assert row["cloud_draft_ratio"] is None
    assert (row["tokens"], row["acceptance_rate"], row["target_passes_per_token"]) == (8, 0.25, 0.5)


def test_answers_of_other_lengths_are_compared_by_the_token() -> None:
    longer = {ALONE: answer(2.0, (1, 2)), TOGETHER: answer(2.0, (1, 2, 3, 4))}
    row = row_of("a", longer)
    assert row["ratio"] == pytest.approx(2.0)
    assert row["same_text"] == 0.0


def test_the_summary_has_mean_spread_and_the_prompts_at_both_ends() -> None:
    rows = [
        row_of("slow", round_of(0.9, 1.0)),
        row_of("even", round_of(1.0, 1.0)),
        row_of("fast", round_of(1.7, 1.0)),
    ]
    summary = summary_row(rows)
    assert summary["mean"] == pytest.approx(1.2)
    assert summary["standard_deviation"] == pytest.approx(((0.09 + 0.04 + 0.25) / 2) ** 0.5)
    assert (summary["least_prompt"], summary["most_prompt"]) == ("slow", "fast")
    assert (summary["least"], summary["most"]) == (pytest.approx(0.9), pytest.approx(1.7))
    assert (summary["prompts"], summary["slower"]) == (3, 1)
    assert summary_row(rows[:1])["standard_deviation"] == 0.0


def test_the_baseline_is_the_fastest_that_the_cloud_does_alone() -> None:
    """Prompt by prompt, where a cloud that drafts may lose to one that does not."""

    def round_with(alone_s: float, draft_s: float, together_s: float) -> Round:
        seconds = dict(zip(ARMS, (alone_s, draft_s, together_s), strict=True))
        return {preset: answer(took_s) for preset, took_s in seconds.items()}

    rows = [
        row_of("drafts gain", round_with(2.0, 1.0, 1.25)),
        row_of("drafts lose", round_with(2.0, 4.0, 1.0)),
    ]
    assert [row["best_cloud"] for row in rows] == [CLOUD_DRAFT, ALONE]
    assert [row["over_cloud"] for row in rows] == pytest.approx([0.8, 2.0])
    assert [row["cloud_draft_ratio"] for row in rows] == pytest.approx([2.0, 0.5])
    means = {pair: summary_row(rows, preset=pair[0], over=pair[1])["mean"] for pair in COMPARED}
    assert means[TOGETHER, ALONE] == pytest.approx((1.6 + 2.0) / 2)
    assert means[TOGETHER, CLOUD_DRAFT] == pytest.approx((0.8 + 4.0) / 2)
    assert means[TOGETHER, BEST] == pytest.approx((0.8 + 2.0) / 2)
    slower = summary_row(rows, preset=CLOUD_DRAFT, over=ALONE)
    assert (slower["slower"], slower["least_prompt"], slower["preset"]) == (
        1,
        "drafts lose",
        CLOUD_DRAFT,
    )


def test_texts_must_be_equal_where_the_target_is_exact() -> None:
    other = {ALONE: answer(1.0, (1, 2)), TOGETHER: answer(1.0, (1, 3))}
    rows = [row_of("a", round_of(1.0, 1.0)), row_of("b", other)]
    (goal,) = goals([summary_row(rows)])
    assert (goal.figure, goal.met) == (0.5, False)
    rounding = [row_of("a", round_of(1.0, 1.0, same_bits=False))]
    assert goals([summary_row(rounding)]) == []
    assert any("same_bits" in note for note in notes(SamplingParams(), rounding))
    assert len(list(notes(SamplingParams(), rows))) == 1
