"""Pre-drafting decides when drafts exist, never which: same text, same rounds, less time."""

from dataclasses import replace

import pytest

from tandem.netem.link_model import link_from
from tandem.specdec.choices import Predraft, PredraftOrder, Schedule
from tandem.specdec.presets import Preset
from tandem.testing.simulation.model_times import ModelTimes
from tandem.testing.simulation.simulator import SimulationResult
from tests.long_runs import with_long_cases
from tests.virtual_time.cases import faults_of, model_pair, preset, run, scheduled

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
    assert hits > 5
    assert predrafted_s < plain_s


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
