"""The schedule of least expected cost: what is chosen, when another one is, and why."""

from __future__ import annotations

from dataclasses import astuple, replace

import pytest

from tandem.specdec import schedule_choice
from tandem.specdec.choices import Schedule
from tandem.specdec.epoch_timeline import Expected
from tandem.specdec.presets import PRESETS
from tandem.specdec.schedule_choice import (
    CLOUD_ALONE,
    FRAME_BYTES,
    TOKEN_BYTES,
    Decision,
    Reason,
    candidates,
    choose,
    cloud_alone,
)
from tandem.specdec.schedule_outlook import Outlooks
from tandem.specdec.scheduling import Measured, PairTimes
from tandem.specdec.seen_times import SeenTimes, kind_of

LIMITS = PRESETS["auto"].schedule
PAIR = PairTimes(0.024, 0.072, 0.003)
GOOD = Measured(PAIR, 0.030, 0.9)


def chosen(
    measured: Measured, before: Decision | None = None, idle_weight: float = 1.0
) -> Decision:
    return choose(LIMITS, measured, idle_weight, before)


def test_a_bad_draft_model_leaves_the_cloud_alone() -> None:
    decision = chosen(replace(GOOD, acceptance_rate=0.02))
    assert decision.words == CLOUD_ALONE
    assert decision.tpot_s == decision.alone_tpot_s == pytest.approx(0.072)
    assert decision.schedule.decode_when_idle
    assert not decision.branches
    assert decision.reason is Reason.FIRST


def test_a_good_one_keeps_many_drafts_in_flight() -> None:
    decision = chosen(GOOD)
    assert decision.schedule.window >= 4
    assert decision.tpot_s < 0.6 * decision.alone_tpot_s
    assert decision.branches
    assert f"window {decision.schedule.window}" in decision.words


def test_among_others_no_session_waits_and_none_drafts_for_outcomes() -> None:
    """The passes go on without it, and are long enough to draft after a correction."""
    shared = replace(GOOD, sharing=16.0, pair=PairTimes(0.024, 0.25, 0.003))
    assert all(schedule.decode_when_idle for schedule in candidates(LIMITS, shared, 1.0))
    decision = chosen(shared)
    assert decision.schedule.window >= 4
    assert not decision.branches


def test_where_passes_count_and_not_time_the_cloud_waits_for_drafts() -> None:
    decision = chosen(replace(GOOD, acceptance_rate=0.7), idle_weight=0.0)
    assert not decision.schedule.decode_when_idle
    assert decision.schedule.window >= 4


def test_a_schedule_is_kept_until_another_is_clearly_better() -> None:
    first = chosen(GOOD)
    assert chosen(replace(GOOD, acceptance_rate=0.885), first) is first
    assert chosen(replace(GOOD, acceptance_rate=0.85), first).schedule == first.schedule
    worse = chosen(replace(GOOD, acceptance_rate=0.05), first)
    assert worse.schedule != first.schedule
    assert worse.reason is Reason.ACCEPTANCE
    assert chosen(replace(GOOD, rtt_s=0.9, acceptance_rate=0.8), first).reason is Reason.ROUND_TRIP
    assert chosen(replace(GOOD, sharing=8.0), first).reason is Reason.LOAD
    slower = replace(GOOD, pair=replace(PAIR, draft_s=0.048))
    assert chosen(slower, first).reason is Reason.STEP_TIMES
    busy = chosen(replace(GOOD, sharing=8.0))
    assert chosen(replace(GOOD, sharing=8.2), busy) is busy, "by a fortieth"


def test_a_stream_says_whether_the_cloud_waits_in_it() -> None:
    decision = chosen(GOOD)
    for goes_on, words in ((True, "stream, window 8"), (False, "stream that waits, window 8")):
        schedule = replace(LIMITS, window=8, chunk=4, decode_when_idle=goes_on)
        assert replace(decision, schedule=schedule).words == words
    rounds = Schedule(window=4, chunk=4)
    assert replace(decision, schedule=rounds).words == "rounds of 4"


def test_alone_short_windows_are_tried_with_a_cloud_that_goes_on_and_one_that_waits() -> None:
    found = candidates(LIMITS, GOOD, 1.0)
    tried = {(schedule.window, schedule.decode_when_idle) for schedule in found}
    assert tried >= {(4, True), (4, False), (8, True), (8, False)}


def test_no_schedule_goes_beyond_the_presets_own() -> None:
    limits = replace(LIMITS, window=6, chunk=3)
    for sharing in (1.0, 4.0):
        found = candidates(limits, replace(GOOD, sharing=sharing), 1.0)
        assert max(schedule.window for schedule in found) == 6
        assert max(schedule.chunk for schedule in found) == 3
        assert len(set(found)) == len(found)
        assert all(schedule.chunk <= schedule.window for schedule in found)


def test_a_kind_that_takes_longer_than_expected_is_left_and_the_cloud_alone_is_measured() -> None:
    """Where both models share cores, drafting slows the passes, which no timeline knows."""
    first = chosen(GOOD)
    seen = SeenTimes()
    for _ in range(10):
        seen.took(first.schedule, 10, 10 * 3 * first.tpot_s, first.tpot_s)
    decision = choose(LIMITS, GOOD, 1.0, first, seen=seen)
    assert kind_of(decision.schedule) is not kind_of(first.schedule)
    assert decision.reason is Reason.SEEN_TIMES
    for _ in range(10):
        seen.took(cloud_alone(LIMITS), 10, 10 * 0.144, 0.072)
    assert choose(LIMITS, GOOD, 1.0, decision, seen=seen).alone_tpot_s > 0.1


def test_branches_that_slow_the_draft_steps_are_left_out() -> None:
    assert chosen(replace(GOOD, branching=1.1)).branches
    assert not chosen(replace(GOOD, branching=2.0)).branches


def test_who_changed_often_needs_a_better_reason_to_change() -> None:
    first = chosen(replace(GOOD, acceptance_rate=0.3))
    better = replace(GOOD, acceptance_rate=0.6)
    gain = chosen(better).tpot_s / choose(LIMITS, better, 1.0, first, stays=0.01).tpot_s
    assert chosen(better, first).schedule != first.schedule
    assert choose(LIMITS, better, 1.0, first, stays=0.9 * gain).schedule == first.schedule


def test_of_two_that_cost_about_the_same_the_one_in_use_stays() -> None:
    """Though the cloud alone would take much longer than either."""
    first, kept = chosen(GOOD), 0
    for percent in range(50, 90):
        now = replace(GOOD, acceptance_rate=percent / 100)
        fresh, after = chosen(now), chosen(now, first)
        if fresh.schedule != first.schedule and after.schedule == first.schedule:
            assert fresh.tpot_s > 0.94 * after.tpot_s
            assert after.tpot_s < 0.85 * after.alone_tpot_s
            kept += 1
    assert kept > 0


def test_where_drafts_do_not_pay_the_cloud_alone_is_the_one_candidate_without() -> None:
    for sharing in (1.0, 16.0):
        found = candidates(LIMITS, replace(GOOD, acceptance_rate=0.001, sharing=sharing), 1.0)
        assert [schedule.window for schedule in found].count(0) == 1


FAST = Measured(PairTimes(0.002, 0.004, 0.0), 0.0012, 0.75)
"""The demo pair, whose both models share two cores: a message costs a quarter of a pass."""


def test_where_messages_cost_as_much_as_passes_rounds_are_tried_first() -> None:
    """And nothing is drafted beside them, which would slow the passes."""
    first = choose(LIMITS, FAST, 1.0, None, Outlooks())
    assert first.schedule.stop_and_wait
    assert first.words.startswith("rounds of ")
    assert not first.branches
    assert not first.ahead
    assert first.alone_tpot_s == pytest.approx(0.005)
    assert chosen(GOOD).ahead


def test_a_fast_pair_far_from_its_cloud_leaves_it_alone() -> None:
    assert chosen(replace(FAST, rtt_s=0.03)).words == CLOUD_ALONE


def test_rounds_that_take_twice_as_long_as_expected_are_left() -> None:
    first, seen = chosen(FAST), SeenTimes()
    for _ in range(10):
        seen.took(first.schedule, 10, 10 * 2.5 * first.tpot_s, first.tpot_s)
    assert not choose(LIMITS, FAST, 1.0, first, seen=seen).schedule.stop_and_wait


def test_an_estimate_has_the_cloud_s_seconds_the_links_bytes_and_the_edge_s_drafting() -> None:
    """Half a pass of two sharers, a draft and a half fed and two drawn in a quarter of a frame."""
    pair = PairTimes(draft_s=0.01, verify_first_s=0.1, verify_further_s=0.004)
    measured = Measured(pair, 0.03, 0.5, sharing=2.0)
    found = schedule_choice._estimate(Expected(0.2, 0.5, 2.0, 0.25, 2.0, 0.1), measured)
    link_bytes = 0.75 * FRAME_BYTES + 2 * TOKEN_BYTES
    assert astuple(found) == pytest.approx((0.2, 0.5, 0.031, link_bytes, 0.02))


def test_no_cloud_waits_for_drafts_of_which_nothing_is_known() -> None:
    """Unless passes cost more than time, or messages as much as passes."""
    near = replace(GOOD, rtt_s=0.0)
    assert not chosen(near).schedule.decode_when_idle
    guessed = replace(near, guesses_acceptance=True)
    assert chosen(guessed).schedule.decode_when_idle
    assert not chosen(guessed, idle_weight=0.0).schedule.decode_when_idle
    assert choose(LIMITS, replace(FAST, guesses_acceptance=True), 1.0, None).schedule.stop_and_wait
