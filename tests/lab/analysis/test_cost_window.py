"""The window's cost model: by hand at its ends, and against the machines in virtual time."""

import pytest

from lab.analysis.cost_models import LinkTimes
from lab.analysis.cost_of_preset import Sizes, predict
from lab.analysis.cost_window import streaming
from lab.simulation.simulator import ModelTimes
from tandem.core.errors import InvalidArgument
from tandem.netem.link_model import link_from
from tandem.specdec.choices import Schedule
from tandem.specdec.presets import PRESETS
from tandem.specdec.scheduling import PairTimes
from tests.virtual_time.cases import model_pair, run, scheduled

PAIR = PairTimes(draft_s=0.010, verify_first_s=0.040, verify_further_s=0.001)
LINK = LinkTimes(rtt_s=0.100)


def test_with_everything_accepted_drafting_is_the_pace() -> None:
    wide = streaming(PAIR, LINK, acceptance_rate=1.0, window=40, chunk=2)
    assert wide.tpot_s == pytest.approx(0.010)


def test_a_short_window_is_paid_in_round_trips() -> None:
    """Every 4 tokens take 4·10 + 100 + 40 + 3·1 ms."""
    short = streaming(PAIR, LINK, acceptance_rate=1.0, window=4, chunk=4)
    assert short.tpot_s == pytest.approx(0.183 / 4)


def test_a_window_hides_the_link_that_lasts_to_its_first_verdict() -> None:
    """A chunk of 2 is judged 20 + 100 + 41 ms after its first step began: 17 steps of 10 ms."""
    for length, pace_s in ((17, 0.010), (16, 0.161 / 16)):
        found = streaming(PAIR, LINK, acceptance_rate=1.0, window=length, chunk=2)
        assert found.tpot_s == pytest.approx(pace_s)


def test_with_nothing_accepted_every_token_is_an_epoch() -> None:
    lost = streaming(PAIR, LINK, acceptance_rate=0.0, window=8, chunk=2)
    assert lost.tpot_s == pytest.approx(2 * 0.010 + 0.100 + 0.041)


def test_an_idle_cloud_bounds_it() -> None:
    lost = streaming(PAIR, LINK, acceptance_rate=0.0, window=8, chunk=2, decode_when_idle=True)
    assert lost.tpot_s == pytest.approx(0.040)


@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("rtt_s", [0.02, 0.2])
@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_it_tells_what_the_machines_do(noise: float, rtt_s: float, chunk: int) -> None:
    """Within 15 % of the simulated time, over 300 tokens."""
    models = model_pair(20, sharpness=5.0, noise=noise)
    chosen = scheduled("coupled", Schedule(24, chunk, verify_on_arrival=True, bonus=False))
    times = ModelTimes(PAIR.draft_s, PAIR.verify_first_s, PAIR.verify_further_s)
    duration_s = accepted = rejected = tokens = 0.0
    for seed in range(2):
        done = run(chosen, models, seed, max_tokens=150, link=link_from(rtt_s), times=times)
        duration_s += done.commits[-1][0] - done.commits[0][0]
        tokens += done.stats.tokens - 1
        accepted += done.stats.accepted
        rejected += done.stats.tokens - done.stats.accepted
    rate = accepted / (accepted + rejected)
    expected = streaming(PAIR, LinkTimes(rtt_s), acceptance_rate=rate, window=24, chunk=chunk)
    assert expected.tpot_s == pytest.approx(duration_s / tokens, rel=0.15)


@pytest.mark.parametrize("name", list(PRESETS))
def test_every_preset_has_a_cost(name: str) -> None:
    found = predict(
        PRESETS[name], PAIR, LINK, acceptance_rate=0.7, sizes=Sizes(vocabulary_size=32_000)
    )
    assert 0 < found.tpot_s < 1
    assert found.tokens_per_round >= 1


def test_bad_values_are_named() -> None:
    with pytest.raises(InvalidArgument, match="chunk"):
        streaming(PAIR, LINK, acceptance_rate=0.5, window=2, chunk=3)
    with pytest.raises(InvalidArgument, match="acceptance_rate"):
        streaming(PAIR, LINK, acceptance_rate=1.5, window=2, chunk=1)
