"""Figures of several answers in virtual time."""

from __future__ import annotations

import pytest

from lab.simulation.answer_figures import answers_figures, cache_miss_rate, steady_tokens_per_s
from tandem.core.errors import InvalidArgument
from tandem.specdec.presets import PRESETS
from tandem.testing.simulation.answer import Conditions, simulate_answer
from tandem.testing.simulation.declared_pair import declared_pair
from tandem.testing.simulation.model_times import ModelTimes

TIMES = ModelTimes(draft_s=0.024, verify_first_s=0.072, verify_further_s=0.003)


def test_stop_and_wait_takes_the_sum_of_its_parts() -> None:
    """A round trip, four draft steps, and a pass over five tokens, by as many tokens as a round
    brings; bytes take no time where the bandwidth has no limit."""
    preset = PRESETS["coupled"].with_draft_length(4)
    answers = [
        simulate_answer(preset, declared_pair(0.7, seed=seed), Conditions(TIMES, 0.05), (1,), 96, 1)
        for seed in range(6)
    ]
    figures = answers_figures(answers)
    round_s = 0.05 + 4 * 0.024 + 0.072 + 4 * 0.003
    tokens = sum(0.7**count for count in range(5))
    assert figures["tpot_s"] == pytest.approx(round_s / tokens, rel=0.08)
    assert figures["target_passes_per_token"] == pytest.approx(1 / tokens, rel=0.08)
    assert figures["cache_miss_rate"] is cache_miss_rate(answers) is None


def test_a_steady_speed_is_that_of_one_pass_a_token() -> None:
    pair = declared_pair(0.5, seed=1)
    alone = simulate_answer(PRESETS["ar"], pair, Conditions(TIMES), (1, 2), 48, 1)
    assert steady_tokens_per_s([alone], 8) == pytest.approx(1 / 0.072, rel=0.02)
    with pytest.raises(InvalidArgument, match="never all under way"):
        steady_tokens_per_s([alone], 48)
