"""A cloud that is silent, dead, or leaving: noticed in time, and never at the cost of the text."""

from functools import cache
from itertools import takewhile

import pytest

from tandem.core.stopping import FinishReason
from tandem.netem.link_model import link_from
from tandem.specdec.choices import Predraft, Schedule
from tandem.specdec.liveness import LivenessTimes, LostCloud
from tandem.specdec.messages import Drafts
from tandem.specdec.pending_drafts import PendingDrafts
from tandem.specdec.presets import PRESETS
from tandem.testing.simulation.model_times import ModelTimes
from tandem.testing.simulation.simulator import SimulationResult
from tandem.testing.simulation.virtual_time import Faults
from tests.long_runs import with_long_cases
from tests.virtual_time.cases import model_pair, preset, run, scheduled

TICK_S = 0.2
TIMES = LivenessTimes(ping_after_s=0.3, dead_after_s=0.9, give_up_after_s=4.0)
MODELS = model_pair(12, sharpness=4.0, noise=0.4)
EVERY = {
    **{name: preset(name) for name in PRESETS},
    "predraft": preset("coupled", predraft=Predraft.LIKELY_OUTCOMES),
    "always the full distribution": preset("dssd", payload_top=0, payload_tail_draws=0),
    "pipelined": scheduled("dsd", Schedule(8, 2, bonus=False)),
    "pipelined, split": scheduled(
        "dssd", Schedule(8, 2, bonus=False), payload_top=0, payload_tail_draws=0
    ),
    "streaming": scheduled("coupled", Schedule(4, 1, decode_when_idle=True)),
}
FOREVER_S = 1e6
METHODS = with_long_cases(
    EVERY,
    (
        *("dsd", "dssd", "picospec", "mc-dsd", "predraft", "fsd", "cloud-draft", "split"),
        *("always the full distribution", "pipelined, split", "streaming"),
    ),
)
"""In `make test` one of each kind that resumes in its own way: its rule, what it sends up and is
answered, its schedule. Others combine these."""


def answer(
    method: str,
    faults: Faults,
    lost_cloud: LostCloud = LostCloud.WAIT,
    seed: int = 3,
    rtt_s: float = 0.08,
) -> SimulationResult:
    return run(
        EVERY[method],
        MODELS,
        seed,
        max_tokens=30,
        link=link_from(rtt_s, 20.0, 0.01, seed),
        faults=faults,
        lost_cloud=lost_cloud,
        liveness_times=TIMES,
    )


@cache
def undisturbed(method: str) -> SimulationResult:
    return answer(method, Faults())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("cut_at_s", [0.0, 0.31, 0.77, 1.1])
def test_a_dead_cloud_is_noticed_in_time(method: str, cut_at_s: float) -> None:
    uncut = undisturbed(method)
    result = answer(method, Faults(cuts=((cut_at_s, cut_at_s + 10.0),)))
    assert result.stats.links_lost >= 1
    assert TIMES.dead_after_s <= result.stats.loss_noticed_s <= TIMES.dead_after_s + TICK_S
    assert result.token_ids == uncut.token_ids


@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize(
    "method", ["dsd", "dssd", "picospec", "mc-dsd", "pipelined, split", "coupled", "streaming"]
)
def test_drafts_that_are_dropped_though_they_are_live_cost_time_and_no_token(
    method: str, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever made them void: where the cloud goes on alone it catches up, and where both would
    wait the round is lost after a while, and goes on with a fresh stream."""
    whole = undisturbed(method)
    live = PendingDrafts.follows_text
    seen = 0

    def drops_one(drafts: PendingDrafts, frame: Drafts) -> bool:
        nonlocal seen
        follows = live(drafts, frame)
        seen += follows
        return follows and seen != nth

    monkeypatch.setattr(PendingDrafts, "follows_text", drops_one)
    result = answer(method, Faults())
    assert seen > nth
    assert result.token_ids == whole.token_ids
    schedule = EVERY[method].schedule
    lost = result.stats.links_lost
    assert lost <= (not schedule.decode_when_idle)
    assert lost or schedule.decode_when_idle or not schedule.stop_and_wait, "void anyway, in time"


@pytest.mark.parametrize("method", METHODS)
def test_a_cut_shorter_than_the_deadline_is_waited_out(method: str) -> None:
    result = answer(method, Faults(cuts=((0.4, 1.1),)))
    assert result.stats.links_lost == 0
    assert result.token_ids == undisturbed(method).token_ids


@pytest.mark.parametrize("method", METHODS)
def test_a_reset_is_resumed_at_once(method: str) -> None:
    uncut = undisturbed(method)
    for reset_at_s in (0.05, 0.2, 0.5, 0.9):
        result = answer(method, Faults(resets=(reset_at_s,)))
        assert result.token_ids == uncut.token_ids
        assert result.stats.links_lost == 1
        assert result.duration_s < uncut.duration_s + 0.6


@pytest.mark.parametrize("method", METHODS)
def test_waiting_outlasts_any_outage(method: str) -> None:
    result = answer(method, Faults(cuts=((0.5, 60.0),)))
    assert result.token_ids == undisturbed(method).token_ids
    assert 60.0 < result.duration_s < 70.0
    assert result.stats.unverified_tokens == 0


@pytest.mark.parametrize("method", METHODS)
def test_failing_comes_at_the_deadline(method: str) -> None:
    uncut = undisturbed(method)
    result = answer(method, Faults(cuts=((0.5, FOREVER_S),)), LostCloud.FAIL)
    assert result.finish.reason is FinishReason.ERROR
    assert result.token_ids == uncut.token_ids[: len(result.token_ids)]
    assert len(result.token_ids) < len(uncut.token_ids)
    last_word_s = max((at for at, _ in result.commits), default=0.0)
    noticed_s = TIMES.give_up_after_s + TICK_S
    assert last_word_s + TIMES.give_up_after_s <= result.duration_s <= 0.5 + noticed_s


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("cut_at_s", [0.0, 0.41, 0.62, 1.2])
def test_the_edge_goes_on_alone(method: str, cut_at_s: float) -> None:
    uncut = undisturbed(method)
    result = answer(method, Faults(cuts=((cut_at_s, FOREVER_S),)), LostCloud.EDGE)
    assert result.finish.reason is FinishReason.LENGTH
    assert len(result.token_ids) == 30
    marks = [commit.unverified for _, commit in result.commits]
    assert marks == sorted(marks), "verified tokens after unverified ones"
    verified = sum(
        len(commit.token_ids)
        for _, commit in takewhile(lambda timed: not timed[1].unverified, result.commits)
    )
    assert result.token_ids[:verified] == uncut.token_ids[:verified]
    assert result.stats.unverified_tokens == 30 - verified > 0
    assert result.duration_s < cut_at_s + TIMES.give_up_after_s + 2.0


def test_the_edge_goes_on_alone_whenever_the_cut_comes() -> None:
    """Also while it draws a recovered token, and while the cloud is leaving."""
    drawing = 0
    for step in range(30):
        at_s = 0.05 * step
        faults = Faults(cuts=((at_s, FOREVER_S),), departures=(at_s - 0.1,) if step % 2 else ())
        for method in ("always the full distribution", "pipelined, split", "predraft"):
            result = answer(method, faults, LostCloud.EDGE, seed=step, rtt_s=0.25)
            assert len(result.token_ids) == 30
            drawing += result.stats.full_distribution_requests
    assert drawing > 10


@pytest.mark.parametrize("method", METHODS)
def test_a_departing_cloud_loses_nothing(method: str) -> None:
    uncut = undisturbed(method)
    for departs_at_s in (0.1, 0.3, 0.45, 0.6, 0.8, 1.0):
        result = answer(method, Faults(departures=(departs_at_s,)))
        assert result.token_ids == uncut.token_ids
        assert result.stats.links_lost == 0
        assert result.stats.departures == 1
        assert result.duration_s < uncut.duration_s + 0.6


@pytest.mark.parametrize("method", METHODS)
def test_a_session_that_moves_loses_nothing(method: str) -> None:
    unmoved = undisturbed(method)
    result = answer(method, Faults(departures=(0.1, 0.3, 0.45, 0.8, 1.0), resets=(0.6,)))
    assert result.token_ids == unmoved.token_ids
    assert result.stats.links_lost == 1
    assert result.stats.departures >= 3
    assert result.stats.unverified_tokens == 0


@pytest.mark.parametrize("method", ["dsd", "dssd", "dssd-full", "coupled"])
def test_a_departure_waits_for_the_round(method: str) -> None:
    """No draft is judged twice: the stream changes between two rounds."""
    uncut = undisturbed(method)
    result = answer(method, Faults(departures=(0.3, 0.9)))
    assert result.stats.departures == 2
    assert result.stats.rounds == uncut.stats.rounds
    assert result.stats.drafted == uncut.stats.drafted
    assert result.stats.full_distribution_requests == uncut.stats.full_distribution_requests


def test_a_slow_cloud_is_not_a_dead_one() -> None:
    """Pongs keep a stream alive whose passes take longer than the deadline."""
    slow = ModelTimes(draft_s=0.01, verify_first_s=3.0, verify_further_s=0.0)
    result = run(
        preset("coupled"),
        MODELS,
        1,
        max_tokens=6,
        times=slow,
        liveness_times=TIMES,
        link=link_from(0.05, None, 0.0, 1),
    )
    assert result.stats.links_lost == 0
    assert result.duration_s > 3.0
