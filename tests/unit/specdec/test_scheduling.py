"""How far ahead to draft, from measured times."""

from dataclasses import replace

import pytest

from tandem.specdec.choices import Control, Schedule
from tandem.specdec.presets import PRESETS
from tandem.specdec.scheduling import (
    Measured,
    PairTimes,
    decodes_alone,
    latency_aware,
    schedule_for,
    window_for,
)

PAIR = PairTimes(0.024, 0.072, 0.003)
SLOW = PairTimes(0.060, 0.072, 0.003)
STREAM = PRESETS["stream"].schedule


def measured(pair: PairTimes = PAIR, rtt_s: float = 0.03, acceptance_rate: float = 0.8) -> Measured:
    return Measured(pair, rtt_s, acceptance_rate)


@pytest.mark.parametrize(
    ("pair", "rtt_s", "length"),
    [(PAIR, 0.0, 3), (PAIR, 0.03, 5), (PAIR, 0.3, 8), (SLOW, 0.0, 2), (PairTimes(1, 1), 0.0, 1)],
)
def test_a_chunk_takes_as_long_as_the_answer_to_the_one_before(
    pair: PairTimes, rtt_s: float, length: int
) -> None:
    schedule = latency_aware(Schedule(16, 8, True), measured(pair, rtt_s))
    assert (schedule.chunk, schedule.window) == (length, 2 * length)


def test_a_window_covers_the_round_trip_and_no_more() -> None:
    windows = [window_for(STREAM, measured(rtt_s=rtt), 1.0).window for rtt in (0.0, 0.03, 0.1)]
    assert windows == sorted(windows)
    assert windows[0] == 7
    assert max(windows) <= STREAM.window


def test_drafts_that_would_hardly_stand_are_left_out() -> None:
    """Each costs 3 ms of a pass that saves 72."""
    windows = [window_for(STREAM, measured(acceptance_rate=rate), 1.0).window for rate in
               (0.2, 0.5, 0.9)]  # fmt: skip
    assert windows == [1, 4, 9]


def test_no_window_where_drafts_cannot_lead() -> None:
    late = PairTimes(0.08, 0.072, 0.003)
    assert window_for(STREAM, measured(late), 1.0).window == 0
    assert window_for(STREAM, measured(late), 0.5).window > 0, "this cloud may wait for drafts"
    waiting = replace(STREAM, decode_when_idle=False)
    assert window_for(waiting, measured(late), 1.0).window > 0


def test_a_draft_that_comes_soon_is_waited_for() -> None:
    assert not window_for(STREAM, measured(rtt_s=0.0), 1.0).decode_when_idle
    assert window_for(STREAM, measured(rtt_s=0.1), 1.0).decode_when_idle


def test_fast_drafts_travel_together() -> None:
    fast = window_for(STREAM, measured(PairTimes(0.0001, 0.01, 0.0)), 1.0)
    assert not fast.token_by_token
    assert fast.chunk > 1
    assert window_for(STREAM, measured(), 1.0).token_by_token


def test_a_fixed_schedule_stays() -> None:
    fixed = replace(PRESETS["stream"], control=Control.FIXED)
    assert schedule_for(fixed, measured(SLOW, 3.0, 0.1)) is fixed.schedule


@pytest.mark.parametrize(
    ("weight", "tokens_per_pass", "alone"),
    [(1.0, 5.0, True), (0.0, 1.0, True), (0.0, 1.1, False), (0.5, 2.0, True), (0.5, 2.1, False)],
)
def test_going_on_alone_is_weighed(weight: float, tokens_per_pass: float, alone: bool) -> None:
    assert decodes_alone(weight, tokens_per_pass) is alone
