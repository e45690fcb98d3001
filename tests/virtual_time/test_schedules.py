"""What the schedules are for: drafting ahead hides the link, an idle cloud need not wait."""

import pytest

from tandem.core.errors import ProtocolError
from tandem.netem.link_model import LinkPair, link_from
from tandem.specdec.choices import Schedule
from tandem.specdec.drafting import Drafting
from tandem.specdec.events import DraftTask
from tandem.specdec.presets import Preset
from tandem.testing.simulation.model_times import ModelTimes
from tandem.testing.simulation.simulator import SimulationResult
from tests.virtual_time.cases import model_pair, opposed_pair, preset, run, scheduled

GOOD = model_pair(20, sharpness=5.0, noise=0.02)
TIMES = ModelTimes(draft_s=0.01, verify_first_s=0.04, verify_further_s=0.001)
RTT_S = 0.2


def link(seed: int = 0) -> LinkPair:
    return link_from(RTT_S, None, 0.0, seed)


def mean_duration_s(chosen: Preset, noise: float = 0.02, times: ModelTimes = TIMES) -> float:
    models = GOOD if noise == 0.02 else model_pair(20, sharpness=5.0, noise=noise)
    runs = [
        run(chosen, models, seed, max_tokens=60, link=link(seed), times=times) for seed in range(4)
    ]
    return sum(result.duration_s for result in runs) / len(runs)


def result_of(chosen: Preset, seed: int = 1) -> SimulationResult:
    return run(chosen, GOOD, seed, max_tokens=60, link=link(), times=TIMES)


@pytest.mark.parametrize("name", ["dsd", "dssd", "coupled"])
def test_a_window_of_several_chunks_hides_the_link(name: str) -> None:
    """While one chunk is judged the next are drafted: the link is paid once, not per chunk."""
    waiting = mean_duration_s(preset(name, 4))
    pipelined = mean_duration_s(scheduled(name, Schedule(16, 4, True, bonus=False)))
    assert pipelined < 0.75 * waiting


def test_an_idle_cloud_that_decodes_is_never_slower_than_one_alone() -> None:
    """Even with a draft model that is slow and always wrong."""
    slow = ModelTimes(draft_s=0.2, verify_first_s=0.04, verify_further_s=0.0)
    alone = mean_duration_s(preset("ar"), noise=1.0, times=slow)
    streamed = scheduled("coupled", Schedule(4, 1, decode_when_idle=True))
    assert mean_duration_s(streamed, noise=1.0, times=slow) <= alone + 1e-9
    stopped = mean_duration_s(preset("coupled", 4), noise=1.0, times=slow)
    assert stopped > 2 * alone


def test_drafts_that_match_what_the_cloud_decoded_live_on() -> None:
    """With the same model at both ends nothing is ever flushed: no draft is drafted twice."""
    same = model_pair(20, sharpness=5.0, noise=0.0)
    streamed = scheduled("coupled", Schedule(6, 2, decode_when_idle=True))
    result = run(streamed, same, 1, max_tokens=60, link=link(), times=TIMES)
    alone = run(preset("ar"), same, 1, max_tokens=60, link=link(), times=TIMES)
    assert result.token_ids == alone.token_ids
    assert result.stats.drafted <= 60 + 2
    assert result.duration_s <= alone.duration_s


def test_the_cloud_counts_its_passes() -> None:
    waiting = result_of(preset("coupled", 4))
    assert 60 / 5 <= waiting.stats.target_passes <= 30
    assert waiting.stats.accepted + waiting.stats.rounds >= 59
    assert waiting.stats.tokens == 60
    assert result_of(preset("ar")).stats.target_passes == 60


def test_rounds_take_all_of_the_time_in_stop_and_wait() -> None:
    result = result_of(preset("coupled", 4))
    assert result.stats.round_s == pytest.approx(result.duration_s)


@pytest.mark.parametrize("schedule", [Schedule(6, 2, bonus=False), Schedule(4, 1), Schedule(3, 3)])
def test_a_rejection_interrupts_drafting(
    schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens of interrupted work are never sent, committed, or counted."""
    interrupts = 0
    discard = Drafting.discard

    def count(drafting: Drafting) -> list[DraftTask]:
        nonlocal interrupts
        works = discard(drafting)
        interrupts += len(works)
        return works

    monkeypatch.setattr(Drafting, "discard", count)
    chosen = scheduled("coupled", schedule)
    for seed in range(10):
        alone = run(preset("ar"), opposed_pair(), seed, max_tokens=20)
        streamed = run(chosen, opposed_pair(), seed, max_tokens=20)
        assert streamed.token_ids == alone.token_ids
    drafts_ahead = schedule.window > schedule.chunk
    assert interrupts > 20 if drafts_ahead else interrupts == 0


def test_a_machine_that_keeps_a_stale_kv_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator's models know only what their KV was fed."""

    def forget_nothing(drafting: Drafting) -> list[DraftTask]:
        drafting.in_flight.clear()
        return drafting.interrupt()

    monkeypatch.setattr(Drafting, "discard", forget_nothing)
    with pytest.raises(ProtocolError):
        run(preset("coupled", 4), opposed_pair(), 1, max_tokens=20)
