"""Pre-drafting decides when drafts exist, never which: same text, same rounds, less time."""

from dataclasses import replace

import pytest

from tandem.core.probs import SamplingParams
from tandem.netem.link_model import link_from
from tandem.specdec.choices import Predraft, PredraftOrder, Schedule
from tandem.specdec.events import DraftTask, Interrupt
from tandem.specdec.presets import Preset
from tandem.specdec.rounds.messages import EarlyVerdict
from tandem.testing.simulation.model_times import ModelTimes
from tandem.testing.simulation.simulator import SimulationResult
from tests.long_runs import with_long_cases
from tests.virtual_time.cases import faults_of, model_pair, preset, run, scheduled
from tests.virtual_time.edge_frames import (
    draft,
    drafts_of,
    edge_of,
    frame_of,
    sent,
    verdict_of,
)

MODELS = model_pair(20, sharpness=5.0, noise=0.3)
TIMES = ModelTimes(draft_s=0.024, verify_first_s=0.072, verify_further_s=0.003)
METHODS: dict[str, Preset] = {
    "dsd": preset("dsd", 3),
    "dssd": preset("dssd", 3, payload_top=2, payload_tail_draws=1),
    "dssd-full": preset("dssd-full", 4),
    "coupled": preset("coupled", 4),
    "pipelined": scheduled("dsd", Schedule(6, 3, bonus=False)),
    "pipelined, token by token": scheduled(
        "dssd", Schedule(4, 2, True, bonus=False, token_by_token=True)
    ),
}


def answer(
    chosen: Preset, seed: int, faulty: bool = False, rtt_s: float = 0.06
) -> SimulationResult:
    return run(
        chosen,
        MODELS,
        seed,
        max_tokens=24,
        ends=frozenset({7}) if seed % 2 else frozenset(),
        link=link_from(rtt_s, 20.0, 0.01, seed),
        times=TIMES,
        faults=faults_of(seed, 1.5) if faulty else None,
    )


@pytest.mark.parametrize(
    "method", with_long_cases(METHODS, ("dssd", "coupled", "pipelined, token by token"))
)
def test_the_text_and_the_rounds_are_the_same(method: str) -> None:
    hits, plain_s, predrafted_s = 0, 0.0, 0.0
    for seed in range(12):
        plain = METHODS[method]
        predrafting = replace(
            plain,
            predraft=Predraft.LIKELY_OUTCOMES,
            predraft_workers=1 + seed % 4,
            predraft_order=list(PredraftOrder)[seed % 3],
        )
        without, with_it = answer(plain, seed), answer(predrafting, seed)
        assert with_it.token_ids == without.token_ids, seed
        if plain.schedule.stop_and_wait:
            assert with_it.stats.rounds == without.stats.rounds
            assert with_it.stats.drafted == without.stats.drafted
            assert with_it.stats.accepted == without.stats.accepted
        assert answer(predrafting, seed, faulty=True).token_ids == without.token_ids, seed
        hits += with_it.stats.predraft_hits + with_it.stats.predraft_begun
        plain_s += without.duration_s
        predrafted_s += with_it.duration_s
    assert hits > 10
    assert predrafted_s < (0.97 if METHODS[method].schedule.stop_and_wait else 1.0) * plain_s


def test_more_workers_and_confidence_first_miss_less() -> None:
    def miss_rate(workers: int, order: PredraftOrder) -> float:
        chosen = preset(
            "coupled",
            predraft_workers=workers,
            predraft_order=order,
            predraft=Predraft.LIKELY_OUTCOMES,
        )
        results = [answer(chosen, seed).stats for seed in range(20)]
        hits = sum(stats.predraft_hits for stats in results)
        misses = sum(stats.predraft_misses for stats in results)
        return misses / (hits + misses)

    by_confidence = miss_rate(1, PredraftOrder.CONFIDENCE)
    assert miss_rate(4, PredraftOrder.CONFIDENCE) < by_confidence
    assert by_confidence < miss_rate(1, PredraftOrder.RANDOM)


def test_branches_are_drafted_beside_a_window_that_has_room() -> None:
    """A packed pass takes them along: after a rejection the next drafts are there already."""
    schedule = Schedule(16, 8, verify_on_arrival=True, token_by_token=True)
    plain = scheduled("coupled", schedule)
    beside = replace(
        plain, predraft=Predraft.LIKELY_OUTCOMES, predraft_workers=16, predraft_outcomes=32
    )
    plain_s = beside_s = 0.0
    hits = misses = 0
    for seed in range(8):
        without, with_it = answer(plain, seed), answer(beside, seed)
        assert with_it.token_ids == without.token_ids
        plain_s += without.duration_s
        beside_s += with_it.duration_s
        hits += with_it.stats.predraft_hits
        misses += with_it.stats.predraft_misses
    assert misses < 0.35 * (hits + misses)
    assert beside_s < 0.92 * plain_s


def test_a_window_that_closes_lets_out_what_was_drafted_before() -> None:
    """A poor draft model far away: the controller closes the window again and again, branches of
    which an outcome comes all the same are sent."""
    models = model_pair(20, sharpness=3.0, noise=0.6)
    slow = ModelTimes(draft_s=0.060, verify_first_s=0.072, verify_further_s=0.003)
    for seed in range(4):
        done = run(preset("stream"), models, seed, max_tokens=40, link=link_from(0.3), times=slow)
        alone = run(preset("ar"), models, seed, max_tokens=40, link=link_from(0.3))
        assert len(done.token_ids) == 40
        assert done.token_ids == alone.token_ids


def test_an_expected_outcome_is_in_flight_at_once() -> None:
    """What early verdicts feed: the chunk after an outcome leaves with the verdict."""
    edge = edge_of(preset("coupled", 2, predraft=Predraft.EARLY_EXITS, exits=2))
    edge.connect(0.0)
    draft(edge, 0, 1)
    assert edge.work(0.0) is None, "nothing is expected yet"
    for accepted, token, confidence in ((1, 2, 0.4), (2, 0, 0.9), (1, 1, 1.0)):
        early = EarlyVerdict(*frame_of(edge), 0, accepted, accepted < 2, token, confidence)
        edge.receive(early, 0.0)
    sure, unsure = edge.work(0.0), edge.work(0.0)
    assert sure == DraftTask(3, (1, 0), 5, 2, stepwise=True, branch=True)
    assert unsure == DraftTask(3, (2,), 4, 2, stepwise=True, branch=True)
    assert edge.work(0.0) is None, "the drafts in flight speak of the third"
    assert edge.context(unsure) == (1, 2, 0, 2)
    assert edge.drafted(unsure, drafts_of(1), 4, 0.01, 0.1) == []
    outputs = edge.receive(verdict_of(edge, 1, True, 2), 0.2)
    assert Interrupt(sure) in outputs
    assert Interrupt(unsure) not in outputs, "it goes on as the work that is due"
    assert sent(outputs) == []
    (frame,) = sent(edge.drafted(unsure, drafts_of(2), 5, 0.01, 0.3))
    assert (frame.base, frame.token_ids) == (4, (1, 2))
    stats = edge.stats
    assert (stats.predraft_hits, stats.predraft_misses, stats.predraft_begun) == (0, 1, 1)
    assert edge.kv_length == 3, "the branch was drafted on a fork"


def test_greedy_predrafting_is_greedy() -> None:
    models = model_pair(20, sharpness=5.0, noise=0.5, sampling=SamplingParams(temperature=0.0))
    for seed in range(10):
        alone = run(preset("ar"), models, seed, max_tokens=20)
        assert (
            run(
                preset("coupled", predraft=Predraft.LIKELY_OUTCOMES), models, seed, max_tokens=20
            ).token_ids
            == alone.token_ids
        )
