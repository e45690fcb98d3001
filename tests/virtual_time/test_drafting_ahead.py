"""Drafting for an outcome that is not known yet, be it likely or told by an early exit, decides
when drafts exist, never which: same text, same rounds, less time."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from tandem.netem.link_model import link_from
from tandem.specdec.choices import Predraft, PredraftOrder, Schedule
from tandem.specdec.edge_stats import EdgeStats
from tandem.specdec.messages import CloudMessage, Committed
from tandem.specdec.presets import Preset
from tandem.specdec.rounds.messages import EarlyVerdict
from tandem.testing.simulation.model_times import ModelTimes
from tandem.testing.simulation.simulator import SimulationResult
from tests.long_runs import with_long_cases
from tests.virtual_time.cases import (
    ModelPair,
    faults_of,
    model_pair,
    preset,
    run,
    scheduled,
    with_exits,
)
from tests.virtual_time.lockstep import Lockstep, Pace

PLAIN = model_pair(20, sharpness=5.0, noise=0.3)
MODELS = with_exits(PLAIN, (0.8, 0.4, 0.2, 0.0))
TIMES = ModelTimes(draft_s=0.010, verify_first_s=0.072, verify_further_s=0.003)
SLOW_DRAFTS = replace(TIMES, draft_s=0.024)
METHODS: dict[str, Preset] = {
    "dsd": preset("dsd", 3),
    "dssd": preset("dssd", 3, payload_top=4, payload_tail_draws=1),
    "dssd-full": preset("dssd-full", 4),
    "coupled": preset("coupled", 4),
    "pipelined": scheduled("dsd", Schedule(6, 3, bonus=False)),
    "pipelined, token by token": scheduled(
        "dssd", Schedule(4, 2, True, bonus=False, token_by_token=True)
    ),
    "streaming": scheduled("coupled", Schedule(4, 2, True, decode_when_idle=True)),
}
ORDERS = list(PredraftOrder)


def for_likely_outcomes(method: Preset, seed: int = 0) -> Preset:
    return replace(
        method,
        predraft=Predraft.LIKELY_OUTCOMES,
        predraft_workers=1 + seed % 4,
        predraft_order=ORDERS[seed % 3],
    )


def with_early_exits(method: Preset, seed: int = 0, exits: int = 4) -> Preset:
    return replace(
        method,
        predraft=Predraft.EARLY_EXITS,
        exits=exits,
        exit_order=ORDERS[seed % 3],
        predraft_order=ORDERS[seed // 3 % 3],
        predraft_workers=1 + seed % 4,
    )


def answer(
    chosen: Preset,
    seed: int,
    faulty: bool = False,
    models: ModelPair = MODELS,
    times: ModelTimes = TIMES,
    rtt_s: float = 0.02,
) -> SimulationResult:
    return run(
        chosen,
        models,
        seed,
        max_tokens=24,
        ends=frozenset({7}) if seed % 2 else frozenset(),
        link=link_from(rtt_s, (None, 20.0, 0.05)[seed % 3], 0.01, seed),
        times=times,
        faults=faults_of(seed, 1.5) if faulty else None,
    )


def miss_rate(answers: list[EdgeStats]) -> float:
    hits = sum(stats.predraft_hits for stats in answers)
    misses = sum(stats.predraft_misses for stats in answers)
    return misses / (hits + misses)


@pytest.mark.parametrize(
    ("ahead", "most_time"), [(for_likely_outcomes, 1.0), (with_early_exits, 0.97)]
)
@pytest.mark.parametrize(
    "method", with_long_cases(METHODS, ("dssd", "pipelined, token by token", "streaming"))
)
def test_the_text_and_the_rounds_are_the_same(
    method: str, ahead: Callable[[Preset, int], Preset], most_time: float
) -> None:
    plain, hits, received = METHODS[method], 0, 0
    times = TIMES if ahead is with_early_exits else SLOW_DRAFTS
    plain_s = ahead_s = 0.0
    for seed in range(10):
        without = answer(plain, seed, times=times)
        with_it = answer(ahead(plain, seed), seed, times=times)
        assert with_it.token_ids == without.token_ids, seed
        if plain.schedule.stop_and_wait:
            for count in ("rounds", "drafted", "accepted"):
                assert getattr(with_it.stats, count) == getattr(without.stats, count)
        faulty = answer(ahead(plain, seed), seed, faulty=True, times=times)
        assert faulty.token_ids == without.token_ids, seed
        hits += with_it.stats.predraft_hits + with_it.stats.predraft_begun
        received += with_it.stats.early_verdicts
        plain_s += without.duration_s
        ahead_s += with_it.duration_s
    assert hits > 5
    assert (received > 60) is (ahead is with_early_exits)
    if plain.schedule.stop_and_wait:
        assert ahead_s < most_time * plain_s


def test_more_workers_and_confidence_first_miss_less() -> None:
    def misses(workers: int, order: PredraftOrder) -> float:
        chosen = for_likely_outcomes(preset("coupled"))
        chosen = replace(chosen, predraft_workers=workers, predraft_order=order)
        return miss_rate(
            [answer(chosen, seed, models=PLAIN, times=SLOW_DRAFTS).stats for seed in range(20)]
        )

    by_confidence = misses(1, PredraftOrder.CONFIDENCE)
    assert misses(4, PredraftOrder.CONFIDENCE) < by_confidence
    assert by_confidence < misses(1, PredraftOrder.RANDOM)


@pytest.mark.parametrize("method", ["dsd", "dssd", "coupled"])
def test_more_exits_miss_less(method: str) -> None:
    """Asked for one after another, from the deepest; the deepest here is not quite right."""
    models = with_exits(PLAIN, (0.9, 0.6, 0.4, 0.3))
    rates = []
    for exits in (1, 2, 4):
        chosen = replace(METHODS[method], predraft=Predraft.EARLY_EXITS, exits=exits)
        rates.append(miss_rate([answer(chosen, seed, models=models).stats for seed in range(12)]))
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < rates[0]


def test_branches_are_drafted_beside_a_window_that_has_room() -> None:
    """A packed pass takes them along: after a rejection the next drafts are there already."""
    plain = scheduled("coupled", Schedule(16, 8, verify_on_arrival=True, token_by_token=True))
    beside = replace(for_likely_outcomes(plain), predraft_workers=16, predraft_outcomes=32)
    pairs = [
        [answer(each, seed, times=SLOW_DRAFTS, rtt_s=0.06) for each in (plain, beside)]
        for seed in range(8)
    ]
    for without, with_it in pairs:
        assert with_it.token_ids == without.token_ids
    plain_s, beside_s = (
        sum(each.duration_s for each in answers) for answers in zip(*pairs, strict=True)
    )
    assert miss_rate([with_it.stats for _, with_it in pairs]) < 0.35
    assert beside_s < 0.92 * plain_s


def test_a_window_that_closes_lets_out_what_was_drafted_before() -> None:
    """A poor draft model far away: the controller closes the window again and again, branches of
    which an outcome comes all the same are sent."""
    models = model_pair(20, sharpness=3.0, noise=0.6)
    slow = replace(TIMES, draft_s=0.060)
    for seed in range(4):
        done = run(preset("stream"), models, seed, max_tokens=40, link=link_from(0.3), times=slow)
        alone = run(preset("ar"), models, seed, max_tokens=40, link=link_from(0.3))
        assert len(done.token_ids) == 40
        assert done.token_ids == alone.token_ids


@pytest.mark.parametrize("method", ["dsd", "dssd", "dssd-full", "coupled"])
def test_an_exit_that_sees_what_the_model_sees_is_always_right(method: str) -> None:
    """Same distributions, same random numbers: every verdict of a pass was foreseen. What the
    prompt's pass has decided already is rejected without one; and what the edge must ask for is not
    foreseen.
    """
    models = with_exits(PLAIN, (0.0,))
    chosen = replace(METHODS[method], predraft=Predraft.EARLY_EXITS, exits=1)
    for seed in range(18):
        stats = answer(chosen, seed, models=models).stats
        unforeseen = stats.predraft_misses - stats.predraft_begun
        assert unforeseen <= 1 + stats.full_distribution_requests
        assert stats.predraft_hits + stats.predraft_misses >= stats.rounds - 1


def test_every_exit_says_what_the_verdict_will_say_if_its_distributions_are_the_models() -> None:
    """Compared frame by frame, over both machines."""
    models = with_exits(PLAIN, (0.0, 0.0))

    def keep(kept: list[CloudMessage], _: object, message: CloudMessage) -> bool:
        kept.append(message)
        return True

    for seed in range(12):
        said: list[CloudMessage] = []
        chosen = with_early_exits(METHODS["dsd"], seed, exits=2)
        Lockstep(chosen, models, seed=seed, pace=Pace(judge=3), to_edge=partial(keep, said)).run()
        early: list[EarlyVerdict] = []
        for message in said:
            if isinstance(message, EarlyVerdict):
                early.append(message)
            elif isinstance(message, Committed):
                for guess in early:
                    assert (guess.accepted, guess.rejected) == (message.accepted, message.refuses)
                    assert (guess.outcome,) == message.token_ids
                early.clear()
        assert sum(isinstance(message, EarlyVerdict) for message in said) >= 2
