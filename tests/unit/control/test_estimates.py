"""What a session's edge measures: robust against a few readings that are far off, quick to follow a
change, and forgotten with time."""

from __future__ import annotations

import random

import pytest

from tandem.control.conditions import Conditions
from tandem.control.config import DEFAULT_CONFIG, ControllerConfig
from tandem.control.estimates import (
    AcceptanceKnown,
    AcceptanceRate,
    Estimates,
    Recent,
    RecentTime,
    StepTime,
    WarmStart,
)

MINUTE_S = 60.0


def recent(*values: float) -> Recent:
    found = Recent(DEFAULT_CONFIG)
    for number, value in enumerate(values):
        found.add(value, float(number))
    return found


@pytest.mark.parametrize(
    ("values", "value"),
    [
        ((), None),
        ((3.0,), 3.0),
        ((9.0, 3.0), 3.0),
        ((9.0, 3.0, 3.5), 3.5),
        ((9.0, 9.0, 9.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0), 3.0),
        ((3.0,) * 20 + (9.0,) * 3, 3.0),
        ((9.0,) * 20 + (3.0,) * 6, 3.0),
    ],
)
def test_a_few_readings_that_are_far_off_move_nothing_and_a_change_is_believed_soon(
    values: tuple[float, ...], value: float | None
) -> None:
    assert recent(*values).value == value


def test_a_time_that_jumps_is_believed_at_once_where_it_becomes_shorter() -> None:
    """A load has ended, or a process's first steps are over. Longer it may be by chance."""
    found = RecentTime(DEFAULT_CONFIG)
    for number, value in enumerate((9.0,) * 9 + (3.0, 3.1)):
        found.add(value, float(number))
    assert found.value == 3.0
    for number, value in enumerate((9.0, 9.1)):
        found.add(value, 20.0 + number)
    assert found.value is not None
    assert found.value < 7.0
    found.add(9.0, 22.0)
    assert found.value == 9.0


def test_a_reading_counts_half_after_a_half_life_and_is_forgotten_after_two() -> None:
    half_life_s = DEFAULT_CONFIG.half_life_s
    found = recent(3.0)
    assert found.weight(0.0) == 1.0
    assert found.weight(half_life_s) == pytest.approx(0.5)
    assert found.doubt(half_life_s) > found.doubt(0.0)
    found.add(5.0, 2 * half_life_s + 1)
    assert found.value == 5.0
    kept = Recent(DEFAULT_CONFIG, ((2 * half_life_s + 1, 3.0),), now=0.0)
    assert kept.value is None


def test_readings_keep_their_age_from_one_request_to_the_next() -> None:
    found = Recent(DEFAULT_CONFIG, ((40.0, 3.0), (10.0, 4.0)), now=100.0)
    assert found.at_s == 90.0
    assert found.aged(130.0) == ((70.0, 3.0), (40.0, 4.0))


def step(quiet: tuple[float, float] | None, busy: tuple[float, float] | None) -> StepTime:
    """Each (seconds, moment)."""
    found = StepTime(RecentTime(DEFAULT_CONFIG), RecentTime(DEFAULT_CONFIG))
    for reading, is_busy in ((quiet, False), (busy, True)):
        if reading is not None:
            found.add(reading[0], reading[1], busy=is_busy)
    return found


def passes(*seconds: float) -> Estimates:
    """Passes over one token each, one a second."""
    found = Estimates()
    for number, value in enumerate(seconds):
        found.passed(value, 0, float(number), busy=False)
    return found


def test_load_comes_and_goes_where_passes_jump_both_ways_within_half_a_minute() -> None:
    slow, quick = (0.1,) * 4, (0.05,) * 4
    assert not passes(*quick, *slow).load_comes_and_goes(8.0), "it came"
    assert not passes(*slow, *quick).load_comes_and_goes(8.0), "it went: it may have been a start"
    found = passes(*quick, *slow, *quick)
    assert found.load_comes_and_goes(12.0)
    assert not found.load_comes_and_goes(6.0 + DEFAULT_CONFIG.restless_s)
    assert Estimates(found.snapshot(12.0), 20.0).load_comes_and_goes(20.0), "the next answer knows"


def test_a_step_that_was_seen_one_way_only_is_believed_to_be_like_that() -> None:
    assert step(None, None).seconds() is None
    assert step((2.0, 0.0), None).seconds() == (2.0, 2.0)
    assert step(None, (3.0, 0.0)).seconds() == (3.0, 3.0)
    assert step((2.0, 0.0), (3.0, 1.0)).seconds() == (2.0, 3.0)


def test_where_a_step_seems_faster_beside_other_work_the_newer_reading_is_right() -> None:
    """A machine that was busy is idle again, or the other way round."""
    assert step((9.0, 0.0), (3.0, 1.0)).seconds() == (3.0, 3.0)
    assert step((9.0, 1.0), (3.0, 0.0)).seconds() == (9.0, 9.0)


def test_acceptance_begins_with_a_guess_that_a_round_of_bad_drafts_outweighs() -> None:
    found = AcceptanceRate(DEFAULT_CONFIG)
    assert (found.rate, found.is_guess) == (0.7, True)
    for _ in range(4):
        found.add(0, 1)
    assert found.rate < 0.4
    assert not found.is_guess
    assert (found.judged, found.agreed) == (4, 0)


def test_acceptance_of_earlier_answers_counts_for_less_than_a_sentence_of_this_one() -> None:
    found = AcceptanceRate(DEFAULT_CONFIG, AcceptanceKnown(0.2, 500.0))
    assert found.rate == pytest.approx(0.2)
    assert not found.begins_guessed
    for _ in range(8):
        found.add(4, 0)
    assert found.rate > 0.7


def test_acceptance_that_is_old_gives_way_to_the_guess() -> None:
    faint = AcceptanceRate(DEFAULT_CONFIG, AcceptanceKnown(0.1, 1.0))
    assert 0.5 < faint.rate < 0.7
    assert faint.begins_guessed


def test_first_drafts_and_later_ones_may_be_right_as_often_as_they_are() -> None:
    """First ones always, later ones every other time."""
    found = AcceptanceRate(DEFAULT_CONFIG)
    for number in range(120):
        found.add(1 + number % 2, 1)
    first, later = found.by_position()
    assert first > found.rate > later
    even, chance = AcceptanceRate(DEFAULT_CONFIG), random.Random(3)
    for _ in range(400):
        even.add(*((1, 0) if chance.random() < 0.5 else (0, 1)))
    assert even.by_position() == pytest.approx((even.rate, even.rate), abs=0.1)


def test_without_drafts_it_becomes_likelier_that_they_are_as_right_as_usual() -> None:
    found = AcceptanceRate(DEFAULT_CONFIG)
    for _ in range(40):
        found.add(0, 1)
    rate = found.rate
    assert found.regained == pytest.approx(0.0)
    found.undrafted(60)
    assert found.rate == pytest.approx(rate), "nothing was measured"
    assert found.regained > 0.4
    assert found.deviation > 0.07
    found.add(0, 1)
    assert found.regained == pytest.approx(0.0)


def measured(estimates: Estimates, now: float = 1.0, hope: bool = False) -> Conditions:
    found = estimates.conditions(now, hope=hope)
    assert found is not None
    return found


def known(first_s: float = 0.05, rtt_s: float = 0.03) -> Estimates:
    estimates = Estimates()
    for number in range(4):
        estimates.passed(first_s, 0, 0.1 * number, busy=False)
    estimates.tripped(rtt_s, 0.5)
    return estimates


def test_nothing_is_measured_before_a_pass_and_a_round_trip_were() -> None:
    estimates = Estimates()
    assert estimates.conditions(0.0) is None
    estimates.passed(0.05, 0, 0.0, busy=False)
    assert estimates.conditions(0.0) is None
    estimates.tripped(0.03, 0.0)
    found = measured(estimates)
    assert (found.pair.verify_first_s, found.rtt_s) == (0.05, 0.03)
    assert found.pair.draft_s == pytest.approx(0.3 * 0.05), "a guess"


def test_a_machine_that_both_models_share_is_seen_to_slow_passes() -> None:
    assert measured(known(rtt_s=0.0004)).pass_slowdown == 1.0
    seen = known(rtt_s=0.0004)
    for number in range(3):
        seen.passed(0.08, 0, 1.0 + number, busy=True)
    assert measured(seen, 4.0).pass_slowdown == pytest.approx(1.6)


def test_passes_that_are_linear_in_their_rows_are_recognised_within_ten_tokens() -> None:
    """As those of llama.cpp on two cores: five rows cost 2.5 times as much as one."""
    estimates, row_share = Estimates(), (2.5 - 1) / 4
    tokens, now = 0, 0.0
    for drafts in (0, 0, 2, 2):
        now += 0.1
        estimates.passed(0.0147 * (1 + row_share * drafts), drafts, now, busy=False)
        tokens += 1 + drafts
    assert tokens < 10
    assert estimates.row_share == pytest.approx(row_share, rel=0.3)
    estimates.tripped(0.0006, now)
    pair = measured(estimates, now).pair
    assert pair.verify_s(4) == pytest.approx(2.5 * 0.0147, rel=0.2)


def test_what_the_engine_measured_of_a_row_is_believed_before_the_first_drafts() -> None:
    """And after a few that took longer by chance; a process's own answers know it better."""
    estimates = Estimates()
    estimates.begin_with(0.375)
    assert estimates.row_share == 0.375
    for number, seconds in enumerate((0.0147, 0.0147, 0.06)):
        estimates.passed(seconds, 2 * (number == 2), float(number), busy=number == 2)
    assert estimates.row_share == pytest.approx(0.375, rel=0.2)
    own = Estimates(WarmStart(row_share=0.1))
    own.begin_with(0.375)
    assert own.row_share == 0.1


def test_passes_beside_drafting_tell_the_cost_of_a_row_too() -> None:
    estimates = Estimates()
    for number in range(24):
        drafts, busy = number % 5, number >= 12
        took_s = (1.5 if busy else 1.0) * 0.04 * (1 + 0.1 * drafts)
        estimates.passed(took_s, drafts, 0.1 * number, busy=busy)
    estimates.tripped(0.03, 2.4)
    found = measured(estimates, 2.4)
    assert estimates.row_share == pytest.approx(0.1, abs=0.03)
    assert found.pass_slowdown == pytest.approx(1.5, abs=0.1)


def test_a_pass_that_had_to_wait_counts_three_times_at_most() -> None:
    estimates = known(0.05)
    estimates.passed(60.0, 0, 1.0, busy=False)
    assert estimates.first.quiet.aged(1.0)[-1][1] == pytest.approx(0.15)


def test_the_shortest_of_the_last_round_trips_counts_and_old_ones_are_forgotten() -> None:
    estimates = Estimates()
    for number in range(10):
        estimates.tripped(0.01 if number == 3 else 0.03, 0.1 * number)
    assert estimates.rtt_s == 0.01, "others waited for a pass"
    for number in range(4):
        estimates.tripped(0.3, 10.0 + number)
    assert estimates.rtt_s == 0.3, "the link has become slow"


def test_what_the_cloud_alone_takes_is_known_by_two_tokens_and_not_for_ever() -> None:
    estimates = Estimates()
    estimates.decoded_alone(0.052, 0.05, 0.0)
    assert not estimates.knows_alone(0.0)
    estimates.decoded_alone(0.052, 0.05, 0.05)
    assert estimates.knows_alone(1.0)
    assert not estimates.knows_alone(5 * MINUTE_S)
    assert estimates.alone_s == 0.052


def test_newer_passes_that_are_shorter_say_that_the_cloud_alone_is_faster_too() -> None:
    """A load on the machine has ended."""
    estimates = Estimates()
    for number in range(4):
        estimates.passed(0.147, 0, float(number), busy=False)
        estimates.decoded_alone(0.148, 0.147, float(number))
    for number in range(6):
        estimates.passed(0.049, 0, 10.0 + number, busy=True)
    assert estimates.alone_s == pytest.approx(0.148 / 3, rel=0.01)
    assert not estimates.knows_alone(16.0), "it is an estimate now"


def test_what_may_be_hoped_for_comes_closer_to_what_is_measured() -> None:
    few, many = known(), known()
    for number in range(30):
        for estimates in (few, many) if number < 2 else (many,):
            estimates.drafted(1, 0.01, 1.0, busy=True, branches=False)
            estimates.passed(0.06, 2, 1.0, busy=True)
            estimates.acceptance.add(1, 1)
    spans = []
    for estimates in (few, many):
        found, hoped = (measured(estimates, 1.0, hope) for hope in (False, True))
        assert hoped.pair.draft_s < found.pair.draft_s
        spans.append(hoped.acceptance_rate - found.acceptance_rate)
    assert spans[1] > 0
    assert spans[1] < spans[0]


def test_a_request_begins_with_what_the_one_before_measured() -> None:
    estimates = known()
    estimates.drafted(2, 0.02, 1.0, busy=False, branches=False)
    estimates.passed(0.06, 2, 1.0, busy=False)
    estimates.decoded_alone(0.052, 0.05, 1.0)
    estimates.acceptance.add(3, 1)
    kept = estimates.snapshot(2.0)
    assert kept.alone == ((1.0, 0.052),)
    assert kept.acceptance == AcceptanceKnown(0.75, 4)
    later = Estimates(kept, now=500.0)
    assert later.alone.at_s == 499.0
    assert measured(later, 500.0).pair == measured(estimates, 2.0).pair
    assert later.row_share == estimates.row_share


def test_a_snapshot_grows_older_as_a_whole() -> None:
    kept = WarmStart(alone=((1.0, 0.05),), trip=((2.0, 0.03),), row_share=0.1)
    assert kept.later(60.0) == WarmStart(alone=((61.0, 0.05),), trip=((62.0, 0.03),), row_share=0.1)


def test_a_branching_step_tells_how_much_longer_it_takes_and_not_how_long_a_step_is() -> None:
    estimates = known()
    estimates.drafted(1, 0.01, 1.0, busy=True, branches=False)
    for _ in range(3):
        estimates.drafted(1, 0.013, 1.0, busy=True, branches=True)
    found = measured(estimates)
    assert found.branching == pytest.approx(1.3)
    assert found.pair.draft_s == pytest.approx(0.01)


def test_how_long_readings_count_is_configured() -> None:
    short = ControllerConfig(half_life_s=10.0)
    found = Recent(short)
    found.add(3.0, 0.0)
    found.add(5.0, 21.0)
    assert found.value == 5.0


def test_draft_steps_too_short_for_the_clock_are_no_fault() -> None:
    estimates = Estimates()
    for busy in (False, True):
        estimates.drafted(1, 0.0, 0.0, busy=busy, branches=False)
    estimates.drafted(1, 0.001, 1.0, busy=True, branches=True)
    assert estimates.branching.value is not None
    assert estimates.branching.value >= 1.0
