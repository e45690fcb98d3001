"""What `tandem.control.cost` says that a token costs, against state machines in virtual time."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import pytest

from lab.simulation.answer_figures import answers_figures
from tandem.control.conditions import Conditions, PairTimes
from tandem.control.cost import expected_tpot_s, stream_within
from tandem.control.schedule import Schedule
from tandem.specdec.choices import Control
from tandem.specdec.presets import PRESETS
from tandem.testing.simulation.answer import Conditions as Simulated
from tandem.testing.simulation.answer import simulate_answer
from tandem.testing.simulation.declared_pair import declared_pair
from tandem.testing.simulation.model_times import ModelTimes
from tests.unit.control.test_cost import ALONE, LIMITS, PAIRS, stream

TOKENS = 120


@cache
def oracle_s(schedule: Schedule, conditions: Conditions) -> float:
    """The same by the state machines in virtual time, with drafts that are right by chance."""
    pair = conditions.pair
    times = ModelTimes(pair.draft_s, pair.verify_first_s, pair.verify_further_s)
    preset = replace(
        PRESETS["stream" if schedule.window else "ar"], schedule=schedule, control=Control.FIXED
    )
    pair_of_words = declared_pair(conditions.acceptance_rate, seed=3, vocabulary_size=64)
    there = Simulated(times, conditions.rtt_s)
    answer = simulate_answer(preset, pair_of_words, there, (1,), TOKENS, 1)
    return float(answers_figures([answer])["tpot_s"])


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.95])
@pytest.mark.parametrize("rtt_s", [0.03, 0.3])
@pytest.mark.parametrize("pair", PAIRS)
def test_streams_cost_about_what_is_simulated(pair: PairTimes, rtt_s: float, rate: float) -> None:
    conditions = Conditions(pair, rtt_s, rate)
    for window in (4, 16):
        cost_s = expected_tpot_s(stream(window), conditions)
        simulated_s = oracle_s(stream(window), conditions)
        assert 0.6 * simulated_s < cost_s < 1.4 * simulated_s, window


@pytest.mark.parametrize(("pair", "rtt_s", "rate"), list(product(PAIRS, (0.0, 0.3), (0.1, 0.9))))
def test_what_is_fastest_is_about_as_fast_in_simulation(
    pair: PairTimes, rtt_s: float, rate: float
) -> None:
    conditions = Conditions(pair, rtt_s, rate)
    options = ALONE, stream_within(LIMITS)
    chosen = min(options, key=lambda schedule: expected_tpot_s(schedule, conditions))
    best_s = min(oracle_s(schedule, conditions) for schedule in options)
    assert oracle_s(chosen, conditions) < 1.25 * best_s
