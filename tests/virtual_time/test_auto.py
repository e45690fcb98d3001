"""`auto`: never slower than the cloud alone. Its texts: tests/pair/test_switching_schedules.py."""

from __future__ import annotations

import pytest

from tandem.simulation.answer import Conditions, Question, SimulatedAnswer, simulate_answers
from tandem.simulation.answer_figures import tokens_per_s_together
from tandem.simulation.declared_pair import declared_pair
from tandem.simulation.simulator import ModelTimes
from tandem.specdec.presets import PRESETS

TIMES = ModelTimes(0.024, 0.072, 0.003)


def answers_of(
    name: str, rate: float, conditions: Conditions, sessions: int
) -> list[SimulatedAnswer]:
    seed, pair = 3, declared_pair(rate, seed=3)
    questions = [
        Question((seed, number + 1), 64, seed + number, number * 0.07) for number in range(sessions)
    ]
    return simulate_answers(PRESETS[name], pair, conditions, questions)


@pytest.mark.parametrize(
    ("sessions", "rtt_s", "rate"),
    [(1, 0.0, 0.05), (1, 0.03, 0.3), (1, 0.3, 0.6), (6, 0.0, 0.05), (6, 0.03, 0.4), (6, 0.1, 0.9)],
)
def test_it_is_never_slower_than_the_cloud_alone(sessions: int, rtt_s: float, rate: float) -> None:
    conditions = Conditions(TIMES, rtt_s, 100.0)
    alone, auto = (
        tokens_per_s_together(answers_of(name, rate, conditions, sessions))
        for name in ("ar", "auto")
    )
    assert auto > 0.975 * alone
