"""The streaming window: as fast as the cloud alone at worst."""

from dataclasses import replace
from functools import cache
from statistics import fmean

import pytest

from tandem.netem.link_model import link_from
from tandem.specdec.choices import Control
from tandem.specdec.presets import Preset
from tandem.testing.simulation.model_times import ModelTimes
from tandem.testing.simulation.simulator import SimulationResult
from tests.long_runs import LONG
from tests.virtual_time.cases import model_pair, preset, run

SERVER = ModelTimes(draft_s=0.024, verify_first_s=0.072, verify_further_s=0.003)
SLOW_EDGE = ModelTimes(draft_s=0.060, verify_first_s=0.072, verify_further_s=0.003)
HOPELESS = ModelTimes(draft_s=0.200, verify_first_s=0.072, verify_further_s=0.010)
GOOD = model_pair(30, sharpness=6.0, noise=0.1)
MODERATE = model_pair(30, sharpness=6.0, noise=0.4)
USELESS = model_pair(30, sharpness=6.0, noise=1.0)
SEEDS = 3


@cache
def answers(
    chosen: Preset, noise: int, rtt_s: float, times: ModelTimes = SERVER
) -> list[SimulationResult]:
    models = (GOOD, MODERATE, USELESS)[noise]
    return [
        run(chosen, models, seed, max_tokens=48, link=link_from(rtt_s, None, 0.0, 1), times=times)
        for seed in range(SEEDS)
    ]


@cache
def alone_s(rtt_s: float, times: ModelTimes = SERVER) -> float:
    """Of the cloud alone, which takes a pass a token whatever the models and the seed."""
    link = link_from(rtt_s, None, 0.0, 1)
    return run(preset("ar"), GOOD, 0, max_tokens=48, link=link, times=times).duration_s


def duration_s(chosen: Preset, noise: int, rtt_s: float, times: ModelTimes = SERVER) -> float:
    return fmean(result.duration_s for result in answers(chosen, noise, rtt_s, times))


@pytest.mark.parametrize("rtt_s", [0.1, pytest.param(0.0, marks=LONG)])
def test_it_is_never_slower_than_the_cloud_alone(rtt_s: float) -> None:
    """But for a pass of 48, which chance may cost."""
    for times in (SERVER, SLOW_EDGE, HOPELESS):
        longest_s = 1.02 * alone_s(rtt_s, times)
        for noise in range(3):
            streamed_s = duration_s(preset("stream"), noise, rtt_s, times)
            assert streamed_s <= longest_s, (times, noise)


def test_good_drafts_pay_at_any_distance() -> None:
    for rtt_s, gain in ((0.0, 2.0), (0.1, 1.5), (0.3, 1.1)):
        assert alone_s(rtt_s) > gain * duration_s(preset("stream"), 0, rtt_s)


def test_far_away_it_beats_a_cloud_that_waits() -> None:
    stream = preset("stream")
    waiting = replace(stream, schedule=replace(stream.schedule, decode_when_idle=False))
    assert duration_s(stream, 1, 0.3) < 0.8 * duration_s(waiting, 1, 0.3)


@pytest.mark.parametrize(("rtt_s", "noise"), [pytest.param(0.0, 1, marks=LONG), (0.1, 0)])
def test_the_controller_is_within_a_twentieth_of_the_best_fixed_window(
    rtt_s: float, noise: int
) -> None:
    best = min(
        duration_s(preset("stream", control=Control.FIXED).with_draft_length(length), noise, rtt_s)
        for length in (2, 4, 8)
    )
    assert duration_s(preset("stream"), noise, rtt_s) < 1.05 * best


def test_a_stream_whose_cloud_waits_for_drafts_costs_fewer_passes() -> None:
    stream = preset("stream")
    waiting = replace(stream, schedule=replace(stream.schedule, decode_when_idle=False))
    passes, seconds = [], []
    for chosen in (waiting, stream):
        results = answers(chosen, 1, 0.1)
        passes.append(sum(result.stats.target_passes for result in results))
        seconds.append(sum(result.duration_s for result in results))
    assert passes[0] < passes[1]
    assert seconds[0] > seconds[1]


def test_nothing_is_drafted_where_drafts_come_too_late() -> None:
    """But for a try now and then: what is known of acceptance grows old."""
    stats = [result.stats for result in answers(preset("stream"), 2, 0.3, HOPELESS)]
    assert sum(each.drafted for each in stats) < 6 * SEEDS
    good = [result.stats for result in answers(preset("stream"), 0, 0.03)]
    assert sum(each.drafted for each in good) > 35 * SEEDS
