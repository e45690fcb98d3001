"""What a session's edge measures: robust against a few readings that are far off, quick to follow a
change, and forgotten with time."""

from __future__ import annotations

import pytest

from tandem.control.acceptance import AcceptanceKnown, AnswerAcceptanceRate
from tandem.control.conditions import Conditions
from tandem.control.config import DEFAULT_CONFIG
from tandem.control.estimates import (
    Estimates,
    Recent,
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


def test_readings_keep_their_age_from_one_request_to_the_next() -> None:
    found = Recent(DEFAULT_CONFIG, ((40.0, 3.0), (10.0, 4.0)), now=100.0)
    assert found.aged(130.0) == ((70.0, 3.0), (40.0, 4.0))


def test_acceptance_begins_with_a_guess_that_a_round_of_bad_drafts_outweighs() -> None:
    found = AnswerAcceptanceRate(DEFAULT_CONFIG)
    assert (found.rate, found.is_guess) == (0.7, True)
    for _ in range(4):
        found.add(0, 1)
    assert found.rate < 0.4
    assert not found.is_guess
    assert (found.judged, found.agreed) == (4, 0)


def test_acceptance_of_earlier_answers_counts_for_less_than_a_sentence_of_this_one() -> None:
    found = AnswerAcceptanceRate(DEFAULT_CONFIG, AcceptanceKnown(0.2, 500.0))
    assert found.rate == pytest.approx(0.2)
    assert not found.begins_guessed
    for _ in range(8):
        found.add(4, 0)
    assert found.rate > 0.7


def test_acceptance_that_is_old_gives_way_to_the_guess() -> None:
    faint = AnswerAcceptanceRate(DEFAULT_CONFIG, AcceptanceKnown(0.1, 1.0))
    assert 0.5 < faint.rate < 0.7
    assert faint.begins_guessed


def test_without_drafts_it_becomes_likelier_that_they_are_as_right_as_usual() -> None:
    found = AnswerAcceptanceRate(DEFAULT_CONFIG)
    for _ in range(40):
        found.add(0, 1)
    rate = found.rate
    assert found.optimistic < 0.1
    found.undrafted(60)
    assert found.rate == pytest.approx(rate), "nothing was measured"
    assert found.optimistic > 0.4
    found.add(0, 1)
    assert found.optimistic < 0.3


def test_what_may_be_hoped_for_comes_closer_to_what_is_measured() -> None:
    found = AnswerAcceptanceRate(DEFAULT_CONFIG)
    apart = []
    for _ in range(4):
        apart.append(found.optimistic - found.rate)
        found.add(7, 3)
    assert apart == sorted(apart, reverse=True)
    assert apart[-1] > 0


def measured(estimates: Estimates) -> Conditions:
    found = estimates.conditions()
    assert found is not None
    return found


def known(first_s: float = 0.05, rtt_s: float = 0.03) -> Estimates:
    estimates = Estimates()
    for number in range(4):
        estimates.passed(first_s, 0, 0.1 * number)
    estimates.tripped(rtt_s, 0.5)
    return estimates


def test_nothing_is_measured_before_a_pass_and_a_round_trip_were() -> None:
    estimates = Estimates()
    assert estimates.conditions() is None
    estimates.passed(0.05, 0, 0.0)
    assert estimates.conditions() is None
    estimates.tripped(0.03, 0.0)
    found = measured(estimates)
    assert (found.pair.verify_first_s, found.rtt_s) == (0.05, 0.03)
    assert found.pair.draft_s == pytest.approx(0.3 * 0.05), "a guess"


def test_passes_that_are_linear_in_their_rows_are_recognised_within_ten_tokens() -> None:
    """As those of llama.cpp on two cores: five rows cost 2.5 times as much as one."""
    estimates, row_share = Estimates(), (2.5 - 1) / 4
    tokens, now = 0, 0.0
    for drafts in (0, 0, 2, 2):
        now += 0.1
        estimates.passed(0.0147 * (1 + row_share * drafts), drafts, now)
        tokens += 1 + drafts
    assert tokens < 10
    assert estimates.row_share == pytest.approx(row_share, rel=0.3)
    estimates.tripped(0.0006, now)
    pair = measured(estimates).pair
    assert pair.verify_s(4) == pytest.approx(2.5 * 0.0147, rel=0.2)


def test_what_the_engine_measured_of_a_row_is_believed_before_the_first_drafts() -> None:
    """And after a few that took longer by chance; a process's own answers know it better."""
    estimates = Estimates()
    estimates.set_prior_row_share(0.375)
    assert estimates.row_share == 0.375
    for number, seconds in enumerate((0.0147, 0.0147, 0.06)):
        estimates.passed(seconds, 2 * (number == 2), float(number))
    assert estimates.row_share == pytest.approx(0.375, rel=0.3)
    own = Estimates(WarmStart(row_share=0.1))
    own.set_prior_row_share(0.375)
    assert own.row_share == 0.1


def test_a_pass_that_had_to_wait_counts_three_times_at_most() -> None:
    estimates = known(0.05)
    estimates.passed(60.0, 0, 1.0)
    assert estimates.first.aged(1.0)[-1][1] == pytest.approx(0.15)


def test_the_shortest_of_the_last_round_trips_counts_and_old_ones_are_forgotten() -> None:
    estimates = Estimates()
    for number in range(10):
        estimates.tripped(0.01 if number == 3 else 0.03, 0.1 * number)
    assert estimates.rtt_s == 0.01, "others waited for a pass"
    for number in range(4):
        estimates.tripped(0.3, 10.0 + number)
    assert estimates.rtt_s == 0.3, "the link has become slow"


def test_what_the_cloud_alone_takes_is_known_by_two_passes_and_follows_what_one_takes() -> None:
    estimates = known(0.05)
    estimates.decoded_alone(1.04, 1, 0, 0.5)
    assert not estimates.knows_alone
    estimates.decoded_alone(1.04, 1, 0, 0.6)
    assert estimates.knows_alone
    assert estimates.alone_s == pytest.approx(0.052)
    for number in range(9):
        estimates.passed(0.1, 0, 1.0 + number)
    assert estimates.alone_s == pytest.approx(0.104), "a load has begun"


def test_what_a_minute_ago_was_measured_counts_and_what_is_old_does_not() -> None:
    known_s = WarmStart(alone=((MINUTE_S, 1.0),) * 2, trip=((1.0, 0.03),))
    assert Estimates(known_s).knows_alone
    assert not Estimates(known_s.later(10 * MINUTE_S)).knows_alone


def test_a_request_begins_with_what_the_one_before_measured() -> None:
    estimates = known()
    estimates.drafted(2, 0.02, 1.0)
    estimates.passed(0.06, 2, 1.0)
    estimates.decoded_alone(1.04, 1, 0, 1.0)
    estimates.acceptance.add(3, 1)
    kept = estimates.snapshot(2.0)
    assert kept.alone == ((1.0, 1.04),)
    assert kept.acceptance == AcceptanceKnown(0.75, 4)
    later = Estimates(kept, now=500.0)
    assert measured(later).pair == measured(estimates).pair
    assert later.row_share == estimates.row_share


def test_a_snapshot_grows_older_as_a_whole() -> None:
    kept = WarmStart(alone=((1.0, 0.05),), trip=((2.0, 0.03),), row_share=0.1)
    assert kept.later(60.0) == WarmStart(alone=((61.0, 0.05),), trip=((62.0, 0.03),), row_share=0.1)


def test_draft_steps_too_short_for_the_clock_are_no_fault() -> None:
    estimates = known()
    estimates.drafted(1, 0.0, 0.0)
    assert measured(estimates).pair.draft_s == 0.0
