"""What a token costs under each schedule, by hand; `tests/lab/analysis/test_cost_timelines.py`
compares it with timelines that follow every event."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.control.conditions import Conditions, PairTimes
from tandem.control.cost import Plan, candidates, expected_tpot_s, fastest
from tandem.control.schedule import Schedule, cloud_alone
from tandem.specdec.presets import PRESETS

LIMITS = PRESETS["auto"].schedule
PAIRS = (PairTimes(0.024, 0.072, 0.003), PairTimes(0.010, 0.050, 0.020), PairTimes(0.06, 0.07))
ALONE = Plan(cloud_alone(LIMITS))


def stream(window: int, *, waits: bool = False) -> Schedule:
    chunk = min(window, LIMITS.chunk)
    return replace(LIMITS, window=window, chunk=chunk, decode_when_idle=not waits)


def test_the_cloud_alone_costs_what_was_measured_or_else_a_pass() -> None:
    conditions = Conditions(PAIRS[0], 0.03, 0.9)
    assert expected_tpot_s(ALONE, conditions) == 0.072
    assert expected_tpot_s(ALONE, replace(conditions, alone_s=0.08)) == 0.08


def test_rounds_by_hand() -> None:
    """Two drafts of 10 ms, a trip of 30, a pass of 50 + 2·5: 1 + 0.5 + 0.25 tokens."""
    conditions = Conditions(PairTimes(0.010, 0.050, 0.005), 0.030, 0.5)
    assert expected_tpot_s(Plan(Schedule(2, 2)), conditions) == pytest.approx(0.110 / 1.75)


def test_a_round_that_was_drafted_ahead_hides_its_drafting() -> None:
    sure = Conditions(PairTimes(0.010, 0.050), 0.030, 1.0)
    plain, ahead = (expected_tpot_s(Plan(Schedule(4, 4), each), sure) for each in (False, True))
    assert plain == pytest.approx(0.120 / 5)
    assert ahead == pytest.approx(0.080 / 5)


def test_later_drafts_may_be_right_more_often_than_first_ones() -> None:
    even = Conditions(PAIRS[0], 0.0, 0.5)
    uneven = replace(even, later_acceptance_rate=0.9)
    for plan in (Plan(Schedule(4, 4)), Plan(stream(8))):
        assert expected_tpot_s(plan, uneven) < expected_tpot_s(plan, even)


def test_what_runs_beside_drafting_is_slowed_and_what_does_not_is_not() -> None:
    calm = Conditions(PAIRS[0], 0.001, 0.7)
    slowed = replace(calm, pass_slowdown=1.5, draft_slowdown=1.2)
    for plan, same in (
        (Plan(Schedule(4, 4)), True),
        (Plan(Schedule(4, 4), ahead=True), False),
        (Plan(stream(8)), False),
        (ALONE, True),
    ):
        equal = expected_tpot_s(plan, slowed) == pytest.approx(expected_tpot_s(plan, calm))
        assert equal is same, plan


def test_corrections_that_had_been_drafted_for_make_a_stream_cheaper() -> None:
    conditions = Conditions(PAIRS[0], 0.03, 0.6)
    hits = replace(conditions, hit_rate=0.5)
    assert expected_tpot_s(Plan(stream(8)), hits) < expected_tpot_s(Plan(stream(8)), conditions)


def test_linear_passes_and_bad_drafts_leave_the_cloud_alone() -> None:
    dear = Conditions(PairTimes(0.004, 0.0147, 0.0055), 0.0006, 0.3, pass_slowdown=1.2)
    assert fastest(LIMITS, dear) == cloud_alone(LIMITS)
    cheap = Conditions(PairTimes(0.004, 0.040, 0.001), 0.0006, 0.8)
    assert fastest(LIMITS, cheap).window > 0


def test_a_cloud_that_others_use_waits_for_nobody() -> None:
    shared = Conditions(PAIRS[0], 0.03, 0.8, sharing=4.0)
    plans = candidates(LIMITS, shared)
    assert all(plan.schedule.decode_when_idle for plan in plans)
    assert plans[0] == ALONE


def test_no_plan_exceeds_the_limits_of_its_preset() -> None:
    limits = PRESETS["auto"].with_draft_length(4).schedule
    for plan in candidates(limits, Conditions(PAIRS[0], 0.03, 0.7)):
        assert plan.schedule.window <= limits.window
        assert plan.schedule.chunk <= limits.chunk


@pytest.mark.parametrize("cloud", [{}, {"cloud_drafts": 2.0, "cloud_tokens": 1.2}])
def test_an_epoch_costs_the_same_however_often_it_happens(cloud: dict[str, float]) -> None:
    """Where a draft step takes no time, a correction that was drafted for gains nothing: tokens
    cost the same whichever share of the epochs begins with it."""
    none = Conditions(PairTimes(1e-12, 0.05, 0.003), 0.08, 0.6, **cloud)
    plan = Plan(stream(4))
    costs = [
        expected_tpot_s(plan, replace(none, hit_rate=hit_rate)) for hit_rate in (0.0, 0.5, 0.97)
    ]
    assert costs == pytest.approx([costs[0]] * 3, rel=1e-9)
