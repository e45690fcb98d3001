"""How far ahead to draft, from measured times."""

from dataclasses import replace

import pytest

from tandem.control.conditions import Conditions, PairTimes
from tandem.control.draft_window import decodes_alone, latency_aware, schedule_for, window_for
from tandem.control.schedule import Control, Schedule
from tandem.core.errors import InvalidArgument
from tandem.specdec.presets import PRESETS

PAIR = PairTimes(0.024, 0.072, 0.003)
SLOW = PairTimes(0.060, 0.072, 0.003)
STREAM = PRESETS["stream"].schedule


def measured(
    pair: PairTimes = PAIR, rtt_s: float = 0.03, acceptance_rate: float = 0.8
) -> Conditions:
    return Conditions(pair, rtt_s, acceptance_rate)


@pytest.mark.parametrize(
    ("pair", "rtt_s", "length"),
    [
        *[
            (PAIR, 0.0, 3),
            (PAIR, 0.03, 5),
            (PAIR, 0.3, 8),
            (SLOW, 0.0, 2),
            (PairTimes(1, 1), 0.0, 1),
        ],
        *[(PairTimes(0, 1), 0.0, 8), (PairTimes(4, 1), 0.0, 1), (PairTimes(0.25, 1), 0.25, 5)],
    ],
)
def test_a_chunk_takes_as_long_as_the_answer_to_the_one_before(
    pair: PairTimes, rtt_s: float, length: int
) -> None:
    schedule = latency_aware(Schedule(16, 8, True), measured(pair, rtt_s))
    assert (schedule.chunk, schedule.window) == (length, 2 * length)


def test_as_many_whole_chunks_are_in_flight_as_before() -> None:
    schedule = latency_aware(Schedule(20, 8, True), measured())
    assert (schedule.chunk, schedule.window) == (5, 10)


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
    assert schedule_for(Control.FIXED, STREAM, measured(SLOW, 3.0, 0.1), 1.0) is STREAM


LONG = Schedule(64, 4, token_by_token=True, decode_when_idle=True)


def window(
    pair: PairTimes, rtt_s: float, rate: float, schedule: Schedule = LONG, idle_weight: float = 0.5
) -> Schedule:
    return window_for(schedule, Conditions(pair, rtt_s, rate), idle_weight)


def test_a_window_holds_what_is_drafted_in_a_round_trip_and_two_passes_and_one_more() -> None:
    pair = PairTimes(0.25, 1.0)
    assert window(pair, 0.5, 1.0).window == 11
    assert window(pair, 0.51, 1.0).window == 12, "a part of a draft is a draft"
    assert window(pair, 0.5, 1.0, replace(LONG, window=10)).window == 10
    assert window(PairTimes(0.0, 0.001), 0.0, 1.0).window == 17, "a message takes 1/8 ms at least"


def test_a_window_ends_where_a_draft_costs_what_it_saves() -> None:
    """Half of the drafts stand: the fourth saves a sixteenth of a pass."""
    assert window(PairTimes(0.01, 1.0, 1 / 16), 0.0, 0.5).window == 4
    assert window(PairTimes(0.01, 1.0, 0.99 / 16), 0.0, 0.5).window == 4
    assert window(PairTimes(0.01, 1.0, 1.01 / 16), 0.0, 0.5).window == 3
    assert window(PairTimes(0.01, 1.0, 1.0), 0.0, 0.5).window == 1
    assert window(PairTimes(0.01, 1.0, 2.0), 0.0, 0.5).window == 1, "there is one at least"
    assert window(PairTimes(0.01, 1.0, 1 / 16), 0.0, 0.0).window == 1, "none ever stood"
    assert window(PairTimes(0.01, 1.0, 1 / 16), 0.0, 1.0).window == 64, "all stand"


@pytest.mark.parametrize(
    ("draft_s", "verify_s", "rtt_s", "rate", "leads"),
    [
        (0.25, 0.75, 0.5, 0.02, True),  # of the drafts that would lead, one in fifty stands
        (0.25, 0.75, 0.5, 0.0199, False),
        (0.25, 0.75, 2.5, 0.5, True),
        (0.25, 0.75, 3.0, 0.5, False),
        (0.75, 0.75, 0.0, 0.9, False),
        (0.74, 0.75, 0.0, 0.9, True),
    ],
)
def test_drafts_that_cannot_lead_are_left_out_where_latency_alone_counts(
    draft_s: float, verify_s: float, rtt_s: float, rate: float, leads: bool
) -> None:
    pair = PairTimes(draft_s, verify_s)
    schedule = window(pair, rtt_s, rate, idle_weight=1.0)
    assert (schedule.window > 0, schedule.chunk > 0) == (leads, leads)
    assert window(pair, rtt_s, rate, idle_weight=0.99).window > 0


def test_a_message_carries_what_is_drafted_while_one_is_handled() -> None:
    """That is half a millisecond."""
    sizes = {}
    for step_us in (0, 125, 250, 499, 500):
        found = window(PairTimes(step_us / 1e6, 0.01), 0.0, 0.9, replace(LONG, chunk=1))
        sizes[step_us] = (found.chunk, found.token_by_token)
    assert sizes == {
        **{0: (4, False), 125: (4, False), 250: (2, False)},
        **{499: (2, False), 500: (1, True)},
    }
    assert window(PairTimes(0.001, 0.01), 0.0, 0.9).chunk == 4, "the preset's chunk"
    assert window(PairTimes(0.001, 0.01), 0.0, 0.9, replace(LONG, window=3)).chunk == 3
    assert window(PairTimes(0.0, 0.01), 0.0, 0.9, replace(LONG, window=3, chunk=1)).chunk == 3


@pytest.mark.parametrize(("draft_s", "waits"), [(0.64, True), (0.65, True), (0.66, False)])
def test_the_cloud_waits_for_a_draft_for_a_third_more_than_it_saves(
    draft_s: float, waits: bool
) -> None:
    """Half of them stand, and each saves a pass of a second."""
    assert window(PairTimes(draft_s, 1.0), 0.0, 0.5).decode_when_idle is not waits
    assert window(PairTimes(draft_s - 0.5, 1.0), 0.5, 0.5).decode_when_idle is not waits


def test_a_schedule_that_never_decodes_alone_is_not_asked_to() -> None:
    patient = replace(LONG, decode_when_idle=False)
    assert not window(PairTimes(0.66, 1.0), 0.0, 0.5, patient).decode_when_idle


def test_a_pass_over_drafts_costs_each_of_them_once() -> None:
    assert PairTimes(0.1, 1.0, 0.25).verify_s(3) == 1.75
    assert PairTimes(0.0, 1.0).verify_further_s == 0.0


@pytest.mark.parametrize(
    ("times", "field"),
    [
        *[((-0.1, 1.0, 0.0), "draft_s"), ((0.1, -1.0, 0.0), "verify_first_s")],
        *[((0.1, 1.0, -0.1), "verify_further_s"), ((float("inf"), 1.0, 0.0), "draft_s")],
        *[((0.1, 0.0, 0.0), "verify_first_s"), ((0.1, float("nan"), 0.0), "verify_first_s")],
    ],
)
def test_no_time_is_negative_or_endless(times: tuple[float, float, float], field: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        PairTimes(*times)
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("weight", "tokens_per_pass", "alone"),
    [
        (0.0, 0.5, True),
        (1.0, 5.0, True),
        (0.0, 1.0, True),
        (0.0, 1.1, False),
        (0.5, 2.0, True),
        (0.5, 2.1, False),
    ],
)
def test_going_on_alone_is_weighed(weight: float, tokens_per_pass: float, alone: bool) -> None:
    assert decodes_alone(weight, tokens_per_pass) is alone
