"""Drafts in the cloud in virtual time: where they pay, and that they cost nothing where not."""

from dataclasses import replace
from functools import cache
from statistics import fmean
from typing import Any

import pytest

from tandem.specdec.choices import Acceptance, CloudDrafts
from tandem.testing.simulation.answer import (
    Conditions,
    Question,
    SimulatedAnswer,
    simulate_answer,
    simulate_answers,
    tokens_per_s_together,
)
from tandem.testing.simulation.declared_pair import declared_pair
from tandem.testing.simulation.model_times import ModelTimes
from tests.long_runs import LONG
from tests.virtual_time.cases import preset

TIMES = ModelTimes(draft_s=0.024, verify_first_s=0.072, verify_further_s=0.003)
"""A draft step in the cloud takes a fifth of the edge's."""
TOKENS = 120


@cache
def answer(name: str, rate: float, rtt_s: float, **choices: Any) -> SimulatedAnswer:
    pair = declared_pair(rate, seed=3, vocabulary_size=64)
    conditions = Conditions(TIMES, rtt_s)
    return simulate_answer(preset(name, **choices), pair, conditions, (1, 2), TOKENS, 1)


def tpot_s(name: str, rate: float, rtt_s: float = 0.0, **choices: Any) -> float:
    seconds = answer(name, rate, rtt_s, **choices).tpot_s
    assert seconds is not None
    return seconds


@pytest.mark.parametrize("rule", list(Acceptance))
def test_good_drafts_of_the_cloud_pay_at_any_distance(rule: Acceptance) -> None:
    for rtt_s in (0.0, 0.3):
        drafted = tpot_s("cloud-draft", 0.8, rtt_s, acceptance=rule)
        assert drafted < tpot_s("ar", 0.8, rtt_s) / 2
    assert answer("cloud-draft", 0.8, 0.3).stats.cloud_accepted > TOKENS / 2


def test_bad_ones_cost_next_to_nothing() -> None:
    for rate in (0.0, 0.05):
        assert tpot_s("cloud-draft", rate) < 1.06 * tpot_s("ar", rate)


def test_a_step_takes_its_time() -> None:
    """A round of four drafts that all stand: four steps of 4.8 ms and a pass over five tokens."""
    round_s = 4 * 0.0048 + 0.072 + 4 * 0.003
    assert tpot_s("cloud-draft", 1.0) == pytest.approx(round_s / 5, rel=0.02)
    slow = replace(TIMES, cloud_draft_s=0.01)
    pair = declared_pair(1.0, seed=3, vocabulary_size=64)
    done = simulate_answer(preset("cloud-draft"), pair, Conditions(slow), (1, 2), TOKENS, 1)
    assert done.tpot_s == pytest.approx((4 * 0.01 + 0.072 + 4 * 0.003) / 5, rel=0.02)


def test_both_are_about_as_fast_as_the_better_of_the_two() -> None:
    for rtt_s in (0.0, 0.1):
        better = min(tpot_s("stream", 0.8, rtt_s), tpot_s("cloud-draft", 0.8, rtt_s))
        both = tpot_s("stream", 0.8, rtt_s, cloud_drafts=CloudDrafts.MODEL)
        assert both < 1.05 * better, rtt_s


def together(name: str, sessions: int, times: ModelTimes = TIMES, **choices: Any) -> float:
    """Tokens per second of all sessions."""
    pair = declared_pair(0.8, seed=3, vocabulary_size=64)
    questions = [Question((1, 2), 60, seed) for seed in range(sessions)]
    return tokens_per_s_together(
        simulate_answers(preset(name, **choices), pair, Conditions(times), questions)
    )


def test_a_busy_cloud_does_not_draft_itself_slower() -> None:
    """Each row makes the pass longer for all: eight sessions with four drafts take twice the time
    of eight without."""
    busy = replace(TIMES, verify_further_s=0.012, cloud_draft_s=0.02)
    assert together("cloud-draft", 8, busy) > 0.97 * together("ar", 8, busy)


def test_sessions_draft_in_shared_steps() -> None:
    alone, four = (together("cloud-draft", sessions) for sessions in (1, 4))
    assert four > 2 * alone


def test_auto_compares_the_edge_s_drafts_with_a_cloud_that_drafts() -> None:
    """Far away a cloud that drafts is faster than anything the edge could send it."""
    drafting: dict[str, Any] = {"cloud_drafts": CloudDrafts.MODEL}
    far = tpot_s("auto", 0.8, 0.3, **drafting)
    assert far < 1.1 * tpot_s("cloud-draft", 0.8, 0.3)
    assert fmean((far, tpot_s("auto", 0.8, **drafting))) < tpot_s("ar", 0.8) / 2


CELLS = [
    *((0.05, 1, 0.0), (0.6, 1, 0.3), (0.8, 1, 0.0)),
    pytest.param(0.9, 6, 0.1, marks=LONG),
]


@pytest.mark.parametrize(("rate", "sessions", "rtt_s"), CELLS)
def test_auto_is_no_slower_than_the_best_of_a_cloud_without_an_edge(
    rate: float, sessions: int, rtt_s: float
) -> None:
    times = replace(TIMES, offers_cloud_drafts=True)
    pair = declared_pair(rate, seed=3, vocabulary_size=64)
    questions = [Question((1, 2), 96, seed, start_s=0.1 * seed) for seed in range(sessions)]
    ar, drafting, auto = (
        tokens_per_s_together(
            simulate_answers(preset(name), pair, Conditions(times, rtt_s), questions)
        )
        for name in ("ar", "cloud-draft", "auto")
    )
    assert auto > 0.97 * max(ar, drafting)


def test_auto_drafts_nothing_in_a_cloud_without_a_draft_model() -> None:
    assert answer("auto", 0.8, 0.0).stats.cloud_drafted < TOKENS / 10, "by lookup alone"
