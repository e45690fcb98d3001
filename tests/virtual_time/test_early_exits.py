"""Early verdicts decide what is drafted ahead, never what is said: same text, same rounds."""

from dataclasses import replace
from functools import partial

import pytest

from tandem.netem.link_model import link_from
from tandem.specdec.choices import Predraft, PredraftOrder, Schedule
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

MODELS = with_exits(model_pair(20, sharpness=5.0, noise=0.3), (0.8, 0.4, 0.2, 0.0))
TIMES = ModelTimes(draft_s=0.010, verify_first_s=0.072, verify_further_s=0.003)
METHODS: dict[str, Preset] = {
    "dsd": preset("dsd", 3),
    "dssd": preset("dssd", 3, payload_top=4, payload_tail_draws=1),
    "dssd-full": preset("dssd-full", 4),
    "coupled": preset("coupled", 4),
    "pipelined": scheduled("dsd", Schedule(6, 3, bonus=False)),
    "streaming": scheduled("coupled", Schedule(4, 2, True, decode_when_idle=True)),
}


def with_early_exits(method: Preset, exits: int = 4, seed: int = 0) -> Preset:
    orders = list(PredraftOrder)
    return replace(
        method,
        predraft=Predraft.EARLY_EXITS,
        exits=exits,
        exit_order=orders[seed % 3],
        predraft_order=orders[seed // 3 % 3],
        predraft_workers=1 + seed % 4,
    )


def answer(
    chosen: Preset, seed: int, faulty: bool = False, models: ModelPair = MODELS
) -> SimulationResult:
    return run(
        chosen,
        models,
        seed,
        max_tokens=24,
        ends=frozenset({7}) if seed % 2 else frozenset(),
        link=link_from(0.02, (None, 20.0, 0.05)[seed % 3], 0.01, seed),
        times=TIMES,
        faults=faults_of(seed, 1.5) if faulty else None,
    )


@pytest.mark.parametrize("method", with_long_cases(METHODS, ("dssd", "pipelined", "streaming")))
def test_the_text_and_the_rounds_are_the_same(method: str) -> None:
    received = hits = 0
    plain_s = hearing_s = 0.0
    for seed in range(10):
        plain = METHODS[method]
        without, with_it = answer(plain, seed), answer(with_early_exits(plain, seed=seed), seed)
        assert with_it.token_ids == without.token_ids, seed
        if plain.schedule.stop_and_wait:
            assert with_it.stats.rounds == without.stats.rounds
            assert with_it.stats.drafted == without.stats.drafted
            assert with_it.stats.accepted == without.stats.accepted
        assert (
            answer(with_early_exits(plain, seed=seed), seed, faulty=True).token_ids
            == without.token_ids
        )
        received += with_it.stats.early_verdicts
        hits += with_it.stats.predraft_hits + with_it.stats.predraft_begun
        plain_s += without.duration_s
        hearing_s += with_it.duration_s
    assert received > 60
    assert hits > 12
    if plain.schedule.stop_and_wait:
        assert hearing_s < 0.97 * plain_s


def miss_rate(chosen: Preset, models: ModelPair = MODELS) -> float:
    results = [answer(chosen, seed, models=models).stats for seed in range(12)]
    hits = sum(stats.predraft_hits for stats in results)
    misses = sum(stats.predraft_misses for stats in results)
    return misses / (hits + misses)


@pytest.mark.parametrize("method", ["dsd", "dssd", "dssd-full", "coupled"])
def test_an_exit_that_sees_what_the_model_sees_is_always_right(method: str) -> None:
    """Same distributions, same random numbers: every verdict of a pass was foreseen. What the
    prompt's pass has decided already is rejected without one; and what the edge must ask for is not
    foreseen.
    """
    models = with_exits(MODELS, (0.0,))
    chosen = replace(METHODS[method], predraft=Predraft.EARLY_EXITS, exits=1)
    for seed in range(18):
        stats = answer(chosen, seed, models=models).stats
        unforeseen = stats.predraft_misses - stats.predraft_begun
        assert unforeseen <= 1 + stats.full_distribution_requests
        assert stats.predraft_hits + stats.predraft_misses >= stats.rounds - 1


@pytest.mark.parametrize("method", ["dsd", "dssd", "coupled"])
def test_more_exits_miss_less(method: str) -> None:
    """Asked for one after another, from the deepest; the deepest here is not quite right."""
    models = with_exits(MODELS, (0.9, 0.6, 0.4, 0.3))
    rates = [
        miss_rate(replace(METHODS[method], predraft=Predraft.EARLY_EXITS, exits=exits), models)
        for exits in (1, 2, 4)
    ]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < rates[0]


def test_every_exit_says_what_the_verdict_will_say_if_its_distributions_are_the_models() -> None:
    """Compared frame by frame, over both machines."""
    models = with_exits(MODELS, (0.0, 0.0))
    for seed in range(12):
        said: list[CloudMessage] = []

        def keep(kept: list[CloudMessage], _: object, message: CloudMessage) -> bool:
            kept.append(message)
            return True

        chosen = with_early_exits(METHODS["dsd"], 2, seed)
        machines = Lockstep(
            chosen, models, seed=seed, pace=Pace(judge=3), to_edge=partial(keep, said)
        )
        machines.run()
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
