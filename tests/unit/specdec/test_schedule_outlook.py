"""Outlooks are what the timelines say, and few timelines are followed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.specdec import schedule_outlook
from tandem.specdec.epoch_timeline import StepTimes, expected
from tandem.specdec.presets import PRESETS
from tandem.specdec.schedule_choice import ALL, candidates, choose
from tandem.specdec.schedule_outlook import PER_CHOICE, Outlooks
from tandem.specdec.scheduling import Measured, PairTimes

LIMITS = PRESETS["auto"].schedule
GOOD = Measured(PairTimes(0.024, 0.072, 0.003), 0.030, 0.8)


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("rtt_s", [0.0, 0.03, 0.3])
def test_an_outlook_is_what_the_timeline_expects(rate: float, rtt_s: float) -> None:
    measured = replace(GOOD, acceptance_rate=rate, rtt_s=rtt_s)
    found = Outlooks(ALL).expected(candidates(LIMITS, measured, 1.0), measured)
    pair, way_s = measured.pair, rtt_s / 2
    times = StepTimes(
        pair.draft_s, pair.verify_first_s, pair.verify_further_s, up_s=way_s, down_s=way_s
    )
    near = 0.04 if rate < 0.9 else 0.08  # so few positions are followed
    for schedule, outlook in found.items():
        exact = expected(schedule, times, rate)
        assert outlook.tpot_s == pytest.approx(exact.tpot_s, rel=near), schedule
        assert outlook.passes == pytest.approx(exact.passes, rel=near), schedule


def test_hits_of_pre_drafting_count_for_their_share() -> None:
    """Half the corrections find drafts."""
    schedules = [LIMITS]
    never, always, half = (
        Outlooks(ALL).expected(schedules, replace(GOOD, hit_rate=rate))[LIMITS].tpot_s
        for rate in (0.0, 1.0, 0.5)
    )
    assert always < half < never


def test_acceptance_changes_without_following_a_timeline_anew() -> None:
    outlooks = Outlooks(ALL)
    schedules = candidates(LIMITS, GOOD, 1.0)
    before = outlooks.expected(schedules, GOOD)
    followed = outlooks.followed
    assert followed == len(schedules)
    after = outlooks.expected(schedules, replace(GOOD, acceptance_rate=0.4))
    assert outlooks.followed == followed
    assert after[LIMITS].tpot_s > before[LIMITS].tpot_s
    longer = replace(GOOD, pair=PairTimes(0.0241, 0.0723, 0.003))
    outlooks.expected(schedules, longer)
    assert outlooks.followed == followed, "within the rounding of times"
    outlooks.expected(schedules, replace(GOOD, rtt_s=0.2))
    assert outlooks.followed == 2 * followed - 1, "of the cloud alone nothing changed"


def test_a_choice_follows_few_timelines_and_knows_the_cloud_alone_at_once() -> None:
    outlooks, decision, calls = Outlooks(), None, 0
    while not outlooks.settled:
        before = outlooks.followed
        decision = choose(LIMITS, GOOD, 1.0, decision, outlooks)
        assert outlooks.followed - before <= PER_CHOICE
        assert decision.alone_tpot_s == pytest.approx(0.072)
        calls += 1
    assert decision is not None
    assert calls > 2
    assert decision.tpot_s < 1.06 * choose(LIMITS, GOOD, 1.0, None).tpot_s
    followed = outlooks.followed
    assert choose(LIMITS, GOOD, 1.0, decision, outlooks) is decision
    assert outlooks.followed == followed
    assert outlooks.expected_of(decision.schedule, GOOD) is not None
    assert outlooks.expected_of(PRESETS["lookup"].schedule, GOOD) is None


def test_a_session_that_changes_much_keeps_no_more_outlooks_than_it_has_candidates() -> None:
    outlooks = Outlooks(ALL)
    for step in range(1, 20):
        measured = replace(GOOD, pair=PairTimes(0.004 * step, 0.072, 0.003))
        found = outlooks.expected(candidates(LIMITS, measured, 1.0), measured)
        assert len(found) <= 12
    assert outlooks.expected_of(LIMITS, GOOD) is not None


def test_another_session_follows_no_timeline_again(monkeypatch: pytest.MonkeyPatch) -> None:
    schedules = candidates(LIMITS, GOOD, 1.0)
    before = Outlooks(ALL).expected(schedules, GOOD)
    monkeypatch.setattr(schedule_outlook, "timeline", None)
    assert Outlooks(ALL).expected(schedules, GOOD) == before
