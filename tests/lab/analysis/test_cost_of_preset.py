"""The cost of a preset against the real machines in virtual time, alone and with others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lab.analysis.cost_models import LinkTimes
from lab.analysis.cost_of_preset import CloudDrafting, Sizes, predict
from lab.simulation.answer_figures import undrafted_rate
from tandem.control.conditions import PairTimes
from tandem.core.errors import InvalidArgument
from tandem.specdec.choices import CloudDrafts, Predraft
from tandem.specdec.presets import PRESETS, Preset
from tandem.testing.simulation.answer import (
    Conditions,
    Question,
    simulate_answers,
    tokens_per_s_together,
    verified_acceptance,
)
from tandem.testing.simulation.declared_pair import declared_pair
from tandem.testing.simulation.model_times import ModelTimes
from tests.long_runs import LONG

SERVER = ModelTimes(0.024, 0.072, 0.003)
SLOW_EDGE = ModelTimes(0.060, 0.072, 0.003)
MBPS = 100.0


def ratio(
    preset: Preset, times: ModelTimes, rtt_s: float, rate: float, sessions: int, tokens: int
) -> float:
    """Predicted over simulated tokens per second of all sessions."""
    pair = declared_pair(rate, seed=1, vocabulary_size=64)
    questions = [
        Question((number + 1, 7, 3), tokens, seed=1, start_s=number * 0.19)
        for number in range(sessions)
    ]
    conditions = Conditions(times, rtt_s, MBPS, padded_vocabulary=151_936)
    answers = simulate_answers(preset, pair, conditions, questions)
    miss_rate, seen = undrafted_rate(answers), verified_acceptance(answers)
    found = predict(
        preset,
        PairTimes(times.draft_s, times.verify_first_s, times.verify_further_s),
        LinkTimes(rtt_s, MBPS * 1e6 / 8, MBPS * 1e6 / 8),
        acceptance_rate=rate if seen is None else seen,
        sizes=Sizes(151_936),
        miss_rate=1.0 if miss_rate is None else miss_rate,
        sessions=sessions,
    )
    return sessions / found.tpot_s / tokens_per_s_together(answers)


@pytest.mark.parametrize(
    ("name", "rate", "tokens"),
    [
        *(("dsd", 0.6, 200), ("coupled", 0.05, 200), ("picospec", 0.6, 200), ("dssd", 0.9, 600)),
        ("stream", 0.05, 60),
        *(
            pytest.param(*case, marks=LONG)
            for case in (
                *(("dsd", 0.05, 200), ("coupled", 0.6, 200), ("picospec", 0.05, 200)),
                ("stream", 0.6, 120),
            )
        ),
    ],
)
def test_one_session_takes_what_is_predicted(name: str, rate: float, tokens: int) -> None:
    assert ratio(PRESETS[name], SERVER, 0.030, rate, 1, tokens) == pytest.approx(1, rel=0.07)


def test_hits_of_drafts_made_ahead_are_counted() -> None:
    branches = replace(PRESETS["coupled"], predraft=Predraft.LIKELY_OUTCOMES)
    assert ratio(branches, SERVER, 0.030, 0.6, 1, 150) == pytest.approx(1, rel=0.07)


@pytest.mark.parametrize(
    ("name", "times", "rate"),
    [
        ("ar", SERVER, 0.0),
        ("coupled", SERVER, 0.3),
        pytest.param("dssd", SLOW_EDGE, 0.05, marks=LONG),
    ],
)
def test_sessions_wait_for_each_other_as_predicted(
    name: str, times: ModelTimes, rate: float
) -> None:
    assert ratio(PRESETS[name], times, 0.030, rate, 4, 150) == pytest.approx(1, rel=0.07)


def test_the_cloud_alone_serves_all_sessions_in_one_pass() -> None:
    found = predict(
        PRESETS["ar"],
        PairTimes(0.024, 0.072, 0.003),
        LinkTimes(0.030),
        acceptance_rate=0.0,
        sizes=Sizes(32_000),
        sessions=16,
    )
    assert found.tpot_s == pytest.approx(0.072 + 15 * 0.003, rel=0.01)


def test_a_cloud_that_drafts_takes_steps_and_a_pass_for_the_tokens_that_stand() -> None:
    pair, link = PairTimes(0.024, 0.072, 0.003), LinkTimes(0.3)
    asked: dict[str, Any] = {"acceptance_rate": 0.8, "sizes": Sizes(512)}
    drafted = predict(PRESETS["cloud-draft"], pair, link, **asked)
    tokens = sum(0.8**count for count in range(5))
    assert drafted.tpot_s == pytest.approx((0.072 + 4 * (0.003 + 0.0048)) / tokens)
    assert drafted.uplink_bytes == 0
    slow = CloudDrafting(0.06, 0.8)
    alone = predict(PRESETS["cloud-draft"], pair, link, **asked, cloud_drafting=slow)
    assert alone.tpot_s == pytest.approx(0.072), "its drafts are not worth their time"
    shared = predict(PRESETS["cloud-draft"], pair, link, **asked, sessions=4)
    assert drafted.tpot_s < shared.tpot_s < pair.verify_s(3)
    with pytest.raises(InvalidArgument):
        predict(
            replace(PRESETS["cloud-draft"], cloud_drafts=CloudDrafts.LOOKUP), pair, link, **asked
        )
