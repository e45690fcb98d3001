"""What a token costs under each schedule, by hand; `tests/lab/analysis/test_cost_timelines.py`
compares it with state machines in virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.control.conditions import Conditions, PairTimes
from tandem.control.cost import expected_tpot_s, stream_within
from tandem.control.schedule import Schedule, cloud_alone
from tandem.specdec.presets import PRESETS

LIMITS = PRESETS["auto"].schedule
PAIRS = (PairTimes(0.024, 0.072, 0.003), PairTimes(0.010, 0.050, 0.020), PairTimes(0.06, 0.07))
ALONE = cloud_alone(LIMITS)


def stream(window: int) -> Schedule:
    return replace(LIMITS, window=window, chunk=min(window, LIMITS.chunk))


def streams(conditions: Conditions) -> bool:
    """Whether the stream takes less time than the cloud alone."""
    return expected_tpot_s(stream(16), conditions) < expected_tpot_s(ALONE, conditions)


def test_the_cloud_alone_costs_what_was_measured_or_else_a_pass() -> None:
    conditions = Conditions(PAIRS[0], 0.03, 0.9)
    assert expected_tpot_s(ALONE, conditions) == 0.072
    assert expected_tpot_s(ALONE, replace(conditions, alone_s=0.08)) == 0.08


def test_a_stream_by_hand() -> None:
    """Behind 40 ms a draft of 10 ms leads a cloud of 50 ms a token after (40 + 50)/(50 - 10) - 1
    tokens, in whole ones 2. Then 4 drafts come in each pass, so that it yields 1 + … + a⁴."""
    conditions = Conditions(PairTimes(0.010, 0.050), 0.040, 0.5)
    led_s = 0.050 / (1 + 0.5 + 0.25 + 0.125 + 0.0625)
    assert expected_tpot_s(stream(16), conditions) == pytest.approx(0.75 * 0.050 + 0.25 * led_s)


def test_a_window_that_does_not_cover_the_round_trip_never_leads() -> None:
    far = Conditions(PairTimes(0.010, 0.050), 0.300, 0.9)
    assert expected_tpot_s(stream(4), far) == expected_tpot_s(ALONE, far)
    assert expected_tpot_s(stream(16), far) < expected_tpot_s(ALONE, far)


def test_linear_passes_and_bad_drafts_leave_the_cloud_alone() -> None:
    dear = Conditions(PairTimes(0.004, 0.0147, 0.0125), 0.0006, 0.1)
    assert not streams(dear)
    cheap = Conditions(PairTimes(0.004, 0.040, 0.001), 0.0006, 0.8)
    assert streams(cheap)


def test_a_cloud_whose_drafts_are_as_good_and_faster_is_left_alone() -> None:
    none = Conditions(PAIRS[0], 0.03, 0.8)
    assert streams(none)
    assert not streams(replace(none, alone_s=0.025, cloud_drafts=4.0))


@pytest.mark.parametrize("length", [1, 4, 16])
def test_the_stream_keeps_to_the_limits_of_its_preset(length: int) -> None:
    limits = replace(LIMITS, window=length, chunk=min(length, LIMITS.chunk))
    found = stream_within(limits)
    assert (found.window, found.chunk) == (limits.window, limits.chunk)
    assert found.decode_when_idle
    assert stream_within(replace(limits, window=64)).window == 16
