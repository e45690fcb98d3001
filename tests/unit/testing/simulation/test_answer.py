"""Simulated answers: text, time and bytes are what the machines, the link and the codecs say."""

from dataclasses import replace

import pytest

from tandem.core.probs import SamplingParams
from tandem.specdec.choices import Acceptance
from tandem.specdec.presets import PRESETS
from tandem.testing.scripted import scripted_pair
from tandem.testing.simulation.answer import Conditions, SimulatedAnswer, simulate_answer
from tandem.testing.simulation.model_pair import SimulatedPair, simulated_pair
from tandem.testing.simulation.model_times import ModelTimes
from tests.long_runs import with_long_cases

TIMES = ModelTimes(draft_s=0.020, verify_first_s=0.050, verify_further_s=0.002)
NEAR = Conditions(TIMES)
PROMPT = (5, 6, 7)
TOKENS = 40


@pytest.fixture(scope="module")
def pair() -> SimulatedPair:
    return simulated_pair(*scripted_pair(0.2), SamplingParams())


def answer(
    pair: SimulatedPair, name: str, conditions: Conditions = NEAR, length: int = 4, seed: int = 3
) -> SimulatedAnswer:
    preset = PRESETS[name].with_draft_length(length)
    return simulate_answer(preset, pair, conditions, PROMPT, TOKENS, seed)


@pytest.mark.parametrize(
    "name",
    with_long_cases(
        PRESETS,
        (
            *("ar", "dsd", "dssd", "tslt", "picospec", "mc-dsd", "stream", "auto", "coupled"),
            *("fsd", "cloud-draft", "split"),
        ),
    ),
)
def test_every_preset_is_simulated_and_repeats_itself(pair: SimulatedPair, name: str) -> None:
    far = replace(NEAR, rtt_s=0.1, mbps=10, jitter_s=0.01)
    one, other = answer(pair, name, far), answer(pair, name, far)
    assert one == other
    assert len(one.token_ids) == TOKENS
    assert one.tpot_s is not None
    assert 0.1 < one.ttft_s < one.last_commit_s
    if PRESETS[name].acceptance is Acceptance.GUMBEL:
        assert one.token_ids == answer(pair, "ar").token_ids


def test_the_target_alone_takes_its_own_time(pair: SimulatedPair) -> None:
    done = answer(pair, "ar", replace(NEAR, rtt_s=0.08))
    assert done.ttft_s == pytest.approx(0.08 + 0.050 + 2 * 0.002)
    assert done.tpot_s == pytest.approx(0.050)


def test_bandwidth_is_paid_for_the_bytes_that_travel(pair: SimulatedPair) -> None:
    """`dsd` sends 2 · 256 bytes a draft; padded to 32,000 tokens, 125 times as much."""
    narrow = replace(NEAR, mbps=8.0)  # 1 byte per microsecond
    padded = replace(narrow, padded_vocabulary=32_000)
    wide, slim, fat = (answer(pair, "dsd", where) for where in (NEAR, narrow, padded))
    assert wide.token_ids == slim.token_ids == fat.token_ids
    assert fat.stats.drafted == slim.stats.drafted
    assert fat.uplink_bytes - slim.uplink_bytes == slim.stats.drafted * 2 * (32_000 - 256)
    lost_s = fat.last_commit_s - slim.last_commit_s
    assert lost_s == pytest.approx((fat.uplink_bytes - slim.uplink_bytes) / 1e6, rel=0.02)
