"""`bench prompts`: its set, and what its figures are relative to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from lab.bench.harness.report import Row
from lab.bench.speculation.named_prompts import PROMPTS, NamedPrompt
from lab.bench.speculation.prompt_set import (
    ALONE,
    GREEDY,
    TOGETHER,
    Round,
    Setting,
    goals,
    notes,
    order_of,
    own_sampling,
    prompt_row,
    summary_row,
)
from tandem.core.errors import InvalidArgument
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


def test_the_set_has_two_prompts_of_each_of_six_kinds() -> None:
    assert set(Counter(prompt.kind for prompt in PROMPTS).values()) == {2}
    assert len({prompt.name for prompt in PROMPTS}) == len({p.text for p in PROMPTS}) == 12


def test_whoever_answers_first_changes_along_prompts_and_rounds() -> None:
    first = {(number, place): order_of(number, place)[0] for number in (0, 1) for place in (0, 1)}
    assert first == {(0, 0): ALONE, (0, 1): TOGETHER, (1, 0): TOGETHER, (1, 1): ALONE}
    assert set(order_of(0, 0)) == set(order_of(0, 1)) == {ALONE, TOGETHER}


def test_a_ratio_is_of_all_rounds_of_the_prompt() -> None:
    row = row_of("a", round_of(2.0, 1.0), round_of(4.0, 5.0))
    assert row["ratio"] == row["speedup_over_ar"] == pytest.approx(6 / 6)
    assert row["alone_s_per_token"] == pytest.approx(6 / 8)
    assert row["times_s"] == {ALONE: [2.0, 4.0], TOGETHER: [1.0, 5.0]}
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


def test_texts_must_be_equal_where_the_target_is_exact() -> None:
    other = {ALONE: answer(1.0, (1, 2)), TOGETHER: answer(1.0, (1, 3))}
    rows = [row_of("a", round_of(1.0, 1.0)), row_of("b", other)]
    (goal,) = goals([summary_row(rows)])
    assert (goal.figure, goal.met) == (0.5, False)
    rounding = [row_of("a", round_of(1.0, 1.0, same_bits=False))]
    assert goals([summary_row(rounding)]) == []
    assert any("same_bits" in note for note in notes(SamplingParams(), rounding))
    assert len(list(notes(SamplingParams(), rows))) == 1


@pytest.mark.parametrize(
    ("config", "sampling"),
    [
        (None, SamplingParams()),
        ('{"eos_token_id": 2}', SamplingParams()),
        (
            '{"temperature": 0.7, "top_p": 0.8, "top_k": 20, "do_sample": true}',
            SamplingParams(temperature=0.7, top_p=0.8, top_k=20),
        ),
    ],
)
def test_the_models_own_sampling_is_read_from_its_folder(
    tmp_path: Path, config: str | None, sampling: SamplingParams
) -> None:
    if config is not None:
        (tmp_path / "generation_config.json").write_text(config)
    assert own_sampling(tmp_path) == sampling


@pytest.mark.parametrize("config", ["[]", "{", '{"temperature": [1]}'])
def test_settings_that_cannot_be_read_are_refused(tmp_path: Path, config: str) -> None:
    (tmp_path / "generation_config.json").write_text(config)
    with pytest.raises(InvalidArgument, match="generation_config"):
        own_sampling(tmp_path)
