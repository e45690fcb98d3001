"""Figures of simulated answers beside what the cost models predict of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lab.simulation.answer_figures import answers_figures, predicted_tpot_s
from tandem.core.probs import SamplingParams
from tandem.specdec.choices import CloudDrafts, Predraft
from tandem.specdec.presets import PRESETS
from tandem.testing.scripted import scripted_pair
from tandem.testing.simulation.answer import Conditions, simulate_answer
from tandem.testing.simulation.declared_pair import declared_pair
from tandem.testing.simulation.model_pair import SimulatedPair, simulated_pair
from tandem.testing.simulation.model_times import ModelTimes
from tests.unit.testing.simulation.test_answer import NEAR, PROMPT, TOKENS, answer
from tests.virtual_time.cases import preset

CLOUD_TIMES = ModelTimes(draft_s=0.024, verify_first_s=0.072, verify_further_s=0.003)
"""A draft step in the cloud takes a fifth of the edge's."""


@pytest.fixture(scope="module")
def pair() -> SimulatedPair:
    return simulated_pair(*scripted_pair(0.2), SamplingParams())


def test_stop_and_wait_takes_the_sum_of_its_parts(pair: SimulatedPair) -> None:
    """What the cost model says of the measured acceptance, within the rounds' spread."""
    conditions = replace(NEAR, rtt_s=0.05, mbps=20)
    answers = [answer(pair, "coupled", conditions, seed=seed) for seed in range(12)]
    figures = answers_figures(answers)
    preset = PRESETS["coupled"].with_draft_length(4)
    expected = predicted_tpot_s(preset, conditions, 256, answers)
    assert expected == pytest.approx(figures["tpot_s"], rel=0.08)


def test_drafting_ahead_is_counted_as_its_hits_save_it(pair: SimulatedPair) -> None:
    preset = replace(PRESETS["coupled"], predraft=Predraft.LIKELY_OUTCOMES).with_draft_length(4)
    answers = [simulate_answer(preset, pair, NEAR, PROMPT, TOKENS, seed) for seed in range(12)]
    figures = answers_figures(answers)
    assert 0 < figures["cache_miss_rate"] < 1
    expected = predicted_tpot_s(preset, NEAR, 256, answers)
    assert expected == pytest.approx(figures["tpot_s"], rel=0.2)
    plain = predicted_tpot_s(PRESETS["coupled"].with_draft_length(4), NEAR, 256, answers)
    assert plain is not None
    assert figures["tpot_s"] < plain


@pytest.mark.parametrize(
    ("name", "rate", "rtt_s", "off"),
    [("cloud-draft", 0.8, 0.3, 0.08), ("cloud-draft", 0.05, 0.0, 0.08)]
    + [("stream", rate, rtt_s, 0.2) for rate, rtt_s in ((0.8, 0.0), (0.6, 0.1))],
)
def test_the_time_of_a_token_is_predicted(name: str, rate: float, rtt_s: float, off: float) -> None:
    choices: dict[str, Any] = {"cloud_drafts": CloudDrafts.MODEL}
    chosen, conditions = preset(name, **choices), Conditions(CLOUD_TIMES, rtt_s)
    declared = declared_pair(rate, seed=3, vocabulary_size=64)
    done = simulate_answer(chosen, declared, conditions, (1, 2), 120, 1)
    expected = predicted_tpot_s(chosen, conditions, 64, [done])
    assert expected == pytest.approx(done.tpot_s, rel=off)
    looked_up = preset("cloud-draft", cloud_drafts=CloudDrafts.LOOKUP)
    assert predicted_tpot_s(looked_up, conditions, 64, [done]) is None
