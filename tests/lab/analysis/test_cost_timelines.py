"""What `tandem.control.cost` says that a token costs, against timelines that follow every event."""

from __future__ import annotations

from itertools import product

import pytest

from lab.analysis.cost_of_preset import schedule_of
from lab.analysis.epoch_timeline import StepTimes, expected
from tandem.control.conditions import Conditions, PairTimes
from tandem.control.cost import expected_tpot_s, stream_within
from tandem.control.schedule import Schedule
from tandem.specdec.presets import PRESETS
from tests.unit.control.test_cost import ALONE, LIMITS, PAIRS, stream


def oracle_s(schedule: Schedule, conditions: Conditions) -> float:
    """The same by a timeline in which every event is followed."""
    pair, half_s = conditions.pair, conditions.rtt_s / 2
    times = StepTimes(
        pair.draft_s, pair.verify_first_s, pair.verify_further_s, up_s=half_s, down_s=half_s
    )
    head_s = conditions.rtt_s + pair.verify_first_s
    return expected(schedule, times, conditions.acceptance_rate, head_s=head_s).tpot_s


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("rtt_s", [0.0, 0.03, 0.3])
@pytest.mark.parametrize("pair", PAIRS)
def test_streams_cost_about_what_the_timeline_says(
    pair: PairTimes, rtt_s: float, rate: float
) -> None:
    """The timeline has a draft judged a second time by the pass that it is fed to; a cloud whose
    drafts are judged in parts commits it at once."""
    conditions = Conditions(pair, rtt_s, rate)
    for window in (4, 16):
        cost_s = expected_tpot_s(stream(window), conditions)
        timeline_s = oracle_s(stream(window), conditions)
        assert 0.6 * timeline_s < cost_s < 1.4 * timeline_s, window


@pytest.mark.parametrize(
    ("pair", "rtt_s", "rate"), list(product(PAIRS, (0.0, 0.03, 0.3), (0.1, 0.6, 0.9)))
)
def test_what_is_fastest_is_about_as_fast_by_the_timeline(
    pair: PairTimes, rtt_s: float, rate: float
) -> None:
    conditions = Conditions(pair, rtt_s, rate)
    best_s = min(oracle_s(schedule, conditions) for schedule in (ALONE, stream_within(LIMITS)))
    assert oracle_s(schedule_of(PRESETS["auto"], conditions), conditions) < 1.25 * best_s
