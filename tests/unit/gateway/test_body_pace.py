"""What a tenant sends faster than it may is read later, and holds up nobody else."""

from __future__ import annotations

import pytest

from tandem.gateway.body_pace import BURST_S, BodyPace

RATE = 1000.0


def test_a_burst_costs_nothing_and_what_is_more_waits_for_its_bytes() -> None:
    pace = BodyPace(RATE)
    assert pace.delay_s("a", 1000, now=10.0) == 0.0
    assert pace.delay_s("a", 500, now=10.0) == pytest.approx(0.5)
    assert pace.delay_s("a", 500, now=10.0) == pytest.approx(1.0), "it queues behind itself"
    assert pace.delay_s("b", 1000, now=10.0) == 0.0


def test_what_was_not_sent_counts_for_no_longer_than_a_burst() -> None:
    pace = BodyPace(RATE)
    pace.delay_s("a", 3000, now=0.0)
    assert pace.delay_s("a", 100, now=100.0) == 0.0
    assert pace.delay_s("a", 1000, now=100.0) == pytest.approx(0.1)


def test_no_rate_is_no_limit() -> None:
    assert BodyPace(0).delay_s("a", 10**9, now=0.0) == 0.0


def test_those_who_are_gone_are_forgotten() -> None:
    pace = BodyPace(RATE)
    for number in range(1000):
        pace.delay_s(f"tenant{number}", 100, now=number * BURST_S)
    assert len(pace) <= 3
