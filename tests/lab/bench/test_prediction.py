"""The predictor against virtual time, where there is no overhead: efficiency is 1."""

import numpy as np
import pytest

from lab.bench.harness.workload import measured_tpot_s
from lab.bench.speculation.efficiency import predicted_tpot_s
from lab.bench.speculation.prediction import (
    RoundSums,
    SetLink,
    stop_and_wait_tpot_s,
    streamed_tpot_s,
)
from tandem.core.errors import InvalidArgument
from tandem.generation.client import Generated
from tandem.netem.link_model import link_from
from tandem.specdec.events import EdgeRequest
from tandem.specdec.messages import CloudMessage, EdgeMessage, GenerationParams
from tandem.specdec.presets import PRESETS
from tandem.testing.scripted import noisy_probs, scripted_probs
from tandem.testing.simulation.model_times import ModelTimes
from tandem.testing.simulation.simulator import SimulationResult, simulate
from tandem_api.common.v1 import generation_pb2

MBPS = 20.0
FRAME_BYTES = 20_000
CLOUD_MESSAGES = CloudMessage.__args__


class Run:
    """One request in virtual time, with the bytes of both directions."""

    def __init__(self, preset: str, rtt_s: float, max_tokens: int = 120) -> None:
        self.uplink_bytes = self.downlink_bytes = 0
        target = scripted_probs(1, 64, sharpness=8.0)
        draft = noisy_probs(target, scripted_probs(2, 64, sharpness=8.0), 0.3)
        times = ModelTimes()
        self.done: SimulationResult = simulate(
            EdgeRequest(
                *(7, (1, 2, 3), "hash", 64),
                params=GenerationParams(seed=5, max_tokens=max_tokens),
                preset=PRESETS[preset],
            ),
            draft_probs=lambda context: np.asarray(draft(context)),
            target_probs=lambda context: np.asarray(target(context)),
            link=link_from(rtt_s, MBPS),
            times=times,
            size_of=self.size_of,
        )
        self.times = times

    def size_of(self, message: EdgeMessage | CloudMessage) -> int:
        if isinstance(message, CLOUD_MESSAGES):
            self.downlink_bytes += FRAME_BYTES
        else:
            self.uplink_bytes += FRAME_BYTES
        return FRAME_BYTES

    @property
    def tpot_s(self) -> float:
        commits = self.done.commits
        return (commits[-1][0] - commits[0][0]) / (len(self.done.token_ids) - 1)

    def sums(self) -> RoundSums:
        stats = self.done.stats
        return RoundSums(
            tokens=stats.tokens,
            rounds=stats.rounds,
            drafted=stats.drafted,
            draft_s=stats.draft_s,
            verify_s=stats.verify_s,
            uplink_bytes=self.uplink_bytes,
            downlink_bytes=self.downlink_bytes,
            full_distribution_requests=stats.full_distribution_requests,
        )


@pytest.mark.parametrize("rtt_s", [0.0, 0.03, 0.1])
@pytest.mark.parametrize("preset", ["dsd", "dssd-full", "coupled"])
def test_stop_and_wait_is_predicted_exactly_where_nothing_else_takes_time(
    preset: str, rtt_s: float
) -> None:
    run = Run(preset, rtt_s)
    predicted_s = stop_and_wait_tpot_s(run.sums(), SetLink(rtt_s, MBPS))
    assert predicted_s == pytest.approx(run.tpot_s, rel=0.03)


def test_the_cloud_alone_is_predicted_exactly() -> None:
    run = Run("ar", 0.1)
    stats = run.done.stats
    prefill_s = run.times.verify_first_s + 2 * run.times.verify_further_s
    predicted_s = streamed_tpot_s(
        stats.tokens, stats.verify_s, prefill_s, run.downlink_bytes, SetLink(0.1, MBPS)
    )
    assert predicted_s == pytest.approx(run.tpot_s, rel=1e-6)


def test_a_narrow_link_bounds_a_stream() -> None:
    assert streamed_tpot_s(11, 1.1, 0.1, 11 * 1_000_000, SetLink(0.0, 8.0)) == pytest.approx(1.0)


def test_each_part_of_a_round_counts_once() -> None:
    sums = RoundSums(
        tokens=31,
        rounds=11,
        drafted=44,
        draft_s=44 * 0.02,
        verify_s=11 * 0.08,
        uplink_bytes=11 * 2_500,
        downlink_bytes=11 * 5_000,
    )
    round_s = 4 * 0.02 + 0.08 + 0.03 + 0.001 + 0.002
    predicted_s = stop_and_wait_tpot_s(sums, SetLink(0.03, 20.0))
    assert predicted_s == pytest.approx(round_s * 10 / 30)


def test_a_request_for_the_full_distribution_costs_a_round_trip() -> None:
    parts = (31, 11, 44, 0.88, 0.88, 0, 0)
    link = SetLink(rtt_s=0.1)
    more_s = stop_and_wait_tpot_s(RoundSums(*parts, full_distribution_requests=11), link)
    less_s = stop_and_wait_tpot_s(RoundSums(*parts), link)
    assert more_s - less_s == pytest.approx(0.1 * 10 / 30)


def test_one_round_predicts_nothing() -> None:
    with pytest.raises(InvalidArgument, match="rounds"):
        stop_and_wait_tpot_s(RoundSums(4, 1, 4, 0.1, 0.1, 0, 0), SetLink())
    with pytest.raises(InvalidArgument, match="tokens"):
        streamed_tpot_s(1, 0.1, 0.1, 0, SetLink())


def test_answers_weigh_by_their_tokens() -> None:
    def answer(tokens: int, step_s: float) -> Generated:
        summary = generation_pb2.Summary(tokens=tokens, verify_s=0.5 + (tokens - 1) * step_s)
        return Generated(
            token_ids=list(range(tokens)),
            ttft_s=0.6,
            last_commit_s=0.6 + (tokens - 1) * step_s,
            summary=summary,
        )

    answers = [answer(11, 0.01), answer(31, 0.03)]
    predicted_s = predicted_tpot_s(answers, [0.5, 0.5], SetLink())
    assert predicted_s == pytest.approx((10 * 0.01 + 30 * 0.03) / 40)
    assert measured_tpot_s(answers) == pytest.approx(predicted_s)
