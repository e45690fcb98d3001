"""What the schedules are for: drafting ahead hides the link, an idle cloud need not wait."""

import pytest

from tandem.core.errors import ProtocolError
from tandem.netem.link_model import LinkPair, link_from
from tandem.specdec.choices import Schedule
from tandem.specdec.drafting import Drafting
from tandem.specdec.events import DraftTask
from tandem.specdec.presets import Preset
from tandem.testing.simulation.model_times import ModelTimes
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


@pytest.mark.parametrize("name", ["dsd", "dssd", "coupled"])
def test_a_window_of_several_chunks_hides_the_link(name: str) -> None:
    """While one chunk is judged the next are drafted: the link is paid once, not per chunk."""
    waiting = mean_duration_s(preset(name, 4))
    pipelined = mean_duration_s(scheduled(name, Schedule(16, 4, True, bonus=False)))
    assert pipelined < 0.75 * waiting


def test_a_machine_that_keeps_a_stale_kv_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator's models know only what their KV was fed."""

    def forget_nothing(drafting: Drafting) -> list[DraftTask]:
        drafting.in_flight.clear()
        return drafting.interrupt()

    monkeypatch.setattr(Drafting, "discard", forget_nothing)
    with pytest.raises(ProtocolError):
        run(preset("coupled", 4), opposed_pair(), 1, max_tokens=20)
