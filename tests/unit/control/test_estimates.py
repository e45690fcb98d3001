"""What a session's edge measures: robust against a few readings that are far off, quick to follow a
change, and forgotten with time."""

from __future__ import annotations

import pytest

from tandem.control.acceptance import AcceptanceKnown, AnswerAcceptanceRate
from tandem.control.conditions import Conditions
from tandem.control.config import DEFAULT_CONFIG
from tandem.control.estimates import (
    Estimates,
    WarmStart,
)


def test_acceptance_of_earlier_answers_counts_for_less_than_a_sentence_of_this_one() -> None:
    found = AnswerAcceptanceRate(DEFAULT_CONFIG, AcceptanceKnown(0.2, 500.0))
    assert found.rate == pytest.approx(0.2)
    assert not found.begins_guessed
    for _ in range(8):
        found.add(4, 0)
    assert found.rate > 0.7


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


def test_the_shortest_of_the_last_round_trips_counts_and_old_ones_are_forgotten() -> None:
    estimates = Estimates()
    for number in range(10):
        estimates.tripped(0.01 if number == 3 else 0.03, 0.1 * number)
    assert estimates.rtt_s == 0.01, "others waited for a pass"
    for number in range(4):
        estimates.tripped(0.3, 10.0 + number)
    assert estimates.rtt_s == 0.3, "the link has become slow"


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
