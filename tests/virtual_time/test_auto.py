"""`auto`: never slower than the cloud alone, whose own text it writes, whatever is chosen."""

from __future__ import annotations

import pytest

from tandem.netem.link_model import settings_from
from tandem.simulation.answer import Conditions, Question, SimulatedAnswer, simulate_answers
from tandem.simulation.answer_figures import tokens_per_s_together
from tandem.simulation.declared_pair import declared_pair
from tandem.simulation.simulator import ModelTimes
from tandem.specdec.presets import PRESETS

TIMES = ModelTimes(0.024, 0.072, 0.003)
JUMPS = ((1.5, settings_from(0.3)), (4.0, settings_from(0.01)))


def answers_of(
    name: str, pair_seed: int, rates: tuple[float, float], conditions: Conditions, sessions: int
) -> list[SimulatedAnswer]:
    """Acceptance changes every 30 positions."""
    pair = declared_pair(lambda at: rates[at // 30 % 2], seed=pair_seed)
    questions = [
        Question((pair_seed, number + 1), 64, pair_seed + number, number * 0.07)
        for number in range(sessions)
    ]
    return simulate_answers(PRESETS[name], pair, conditions, questions)


@pytest.mark.parametrize("seed", range(6))
def test_the_text_is_the_clouds_own_while_schedules_change(seed: int) -> None:
    """The link jumps from 10 to 300 ms and back, acceptance falls and rises, sessions come."""
    conditions = Conditions(TIMES, 0.010, link_changes=JUMPS)
    sessions = 1 + 3 * (seed % 2)
    found = {
        name: answers_of(name, seed, (0.9, 0.05), conditions, sessions) for name in ("ar", "auto")
    }
    texts = {name: [answer.token_ids for answer in answers] for name, answers in found.items()}
    assert texts["auto"] == texts["ar"]
    assert any(answer.stats.accepted for answer in found["auto"])


@pytest.mark.parametrize(
    ("sessions", "rtt_s", "rate"),
    [(1, 0.0, 0.05), (1, 0.03, 0.3), (1, 0.3, 0.6), (6, 0.0, 0.05), (6, 0.03, 0.4), (6, 0.1, 0.9)],
)
def test_it_is_never_slower_than_the_cloud_alone(sessions: int, rtt_s: float, rate: float) -> None:
    conditions = Conditions(TIMES, rtt_s, 100.0)
    alone, auto = (
        tokens_per_s_together(answers_of(name, 3, (rate, rate), conditions, sessions))
        for name in ("ar", "auto")
    )
    assert auto > 0.975 * alone
