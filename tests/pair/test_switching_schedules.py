"""Schedules that change while a text is written change nothing about it: with coupling it is the
cloud's own, under the rejection rule short sequences follow the target's distribution.

In virtual time. `make test-texts` takes 1,000 pairs of prompt and seed, and 2,500 sequences of each
kind: a total variation of 0.13 is then found in 99 of 100 runs, and a false alarm comes once in
10,000. `make test` takes 20 pairs, and 250 sequences (0.29) of the preset whose window the
controller chooses, `make test-long` as many of those of which it chooses less.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tandem.control import latency_aware as control
from tandem.control.latency_aware import latency_aware
from tandem.control.least_cost import LeastCost
from tandem.control.schedule import Control, Schedule
from tandem.core.probs import Array
from tandem.netem.link_model import link_from, shape_from
from tandem.specdec.events import EdgeRequest
from tandem.specdec.messages import GenerationParams
from tandem.specdec.presets import PRESETS, Preset
from tandem.specdec.rules import Proposal, RejectionRule, TargetProbs
from tandem.testing.goodness_of_fit import FALSE_ALARM, POWER, choose_cells, fit
from tandem.testing.simulation.answer import Conditions, Question, simulate_answers
from tandem.testing.simulation.declared_pair import declared_pair
from tandem.testing.simulation.model_times import ModelTimes
from tandem.testing.simulation.simulated_verifier import TargetModel
from tandem.testing.simulation.simulator import SimulatedRequest, simulate_together
from tests.long_runs import with_long_cases
from tests.virtual_time.cases import ModelPair, TokenIds, model_pair, preset, scheduled

FEW = 5
"""As `--prompts` is in `make test`."""
HARDWARE = ((0.024, 0.072, 0.003), (0.060, 0.072, 0.003), (0.010, 0.072, 0.001))
SESSIONS = 4


@pytest.mark.timeout(1800)
def test_coupled_texts_are_the_clouds_own_while_schedules_switch(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Acceptance falls and rises, the link gets long and short, and four sessions share a cloud."""
    prompts = pytestconfig.getoption("--prompts")
    groups = 2 * prompts if prompts > FEW else FEW
    switches = counted_switches(monkeypatch)
    different = []
    for seed in range(groups):
        source = random.Random(f"switching {seed}")
        rates = source.choice((0.9, 0.8)), source.choice((0.05, 0.3))
        pair = declared_pair(partial(rate_at, rates), seed=seed, vocabulary_size=64)
        far = shape_from(source.choice((0.3, 0.1)))
        changes = ((0.6, far), (1.6, shape_from(0.01)))
        times = ModelTimes(*source.choice(HARDWARE))
        conditions = Conditions(times, 0.01, 100.0, link_changes=changes)
        questions = [
            Question((seed % 64, number), 24, SESSIONS * seed + number, number * source.random())
            for number in range(SESSIONS)
        ]
        alone, chosen = (
            simulate_answers(PRESETS[name], pair, conditions, questions) for name in ("ar", "auto")
        )
        texts = zip(alone, chosen, strict=True)
        different += [seed for one, other in texts if one.token_ids != other.token_ids]
    assert not different, f"{len(different)} of {groups * SESSIONS} differ"
    assert switches() > groups, "schedules changed"


def rate_at(rates: tuple[float, float], position: int) -> float:
    return rates[position // 8 % 2]


def counted_switches(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often a session of `auto` has gone on with another schedule since."""
    found: list[bool] = []

    follow = LeastCost._follow

    def recorded(chooser: LeastCost, schedule: Schedule) -> None:
        before = chooser.schedule
        follow(chooser, schedule)
        found.append(chooser.schedule != before)

    monkeypatch.setattr(LeastCost, "_follow", recorded)
    return lambda: sum(found)


TOKENS = 5
TIMES = ModelTimes(draft_s=0.03, verify_first_s=0.05, verify_further_s=0.01)
MODELS = model_pair(4, sharpness=2.0, noise=0.7)
METHODS: dict[str, Preset] = {
    "picospec": preset("picospec", payload_top=1, payload_tail_draws=1),
    "dsd, rounds as long as pays": scheduled(
        "dsd", Schedule(6, 6, bonus=False), control=Control.LATENCY_AWARE
    ),
}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("method", with_long_cases(METHODS, ("picospec",)))
def test_sequences_follow_the_target_under_rejection_while_schedules_switch(
    method: str, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = pytestconfig.getoption("--prompts")
    samples = 20 * prompts if prompts > FEW else 250
    found, switched = sequences(METHODS[method], samples, monkeypatch)
    cells = choose_cells(after_prompt(MODELS), TOKENS, samples)
    tested = fit(cells, found)
    assert tested.fits, tested
    assert (FALSE_ALARM, POWER) == (1e-4, 0.99)
    assert tested.detectable < (0.29 if samples < 2500 else 0.13), tested
    assert switched > samples / 8, "many schedules changed"
    assert not fit(cells, [each[::-1] for each in found]).fits


class AcceptsAll(RejectionRule):
    """Wrong: the draft model's distribution comes out."""

    def accepted(self, target: TargetProbs, proposal: Proposal, position: int) -> int | None:
        return 0


def test_a_wrong_rule_fails_the_same_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tandem.specdec.cloud.acceptance_rule",
        lambda chosen, seed, rng, keep_probs: AcceptsAll(rng),
    )
    found, _ = sequences(METHODS["dsd, rounds as long as pays"], 250, monkeypatch)
    assert not fit(choose_cells(after_prompt(MODELS), TOKENS, 250), found).fits


PROMPT = (1, 2)


def after_prompt(models: ModelPair) -> Callable[[TokenIds], Array]:
    """The target's distribution after an answer's beginning."""
    return lambda answer: models.target_probs((*PROMPT, *answer))


def sequences(
    chosen: Preset, samples: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[TokenIds], int]:
    """Answers with seeds of their own over links that get short at some moment, and how many of
    them had more than one schedule of those that the controller chose."""
    schedules: set[Schedule] = set()

    def recorded(*arguments: Any, **named: Any) -> Schedule:
        schedules.add(schedule := latency_aware(*arguments, **named))
        return schedule

    monkeypatch.setattr(control, "latency_aware", recorded)
    found, switched = [], 0
    for seed in range(samples):
        schedules.clear()
        found.append(answered(chosen, seed))
        switched += len(schedules) > 1
    return found, switched


def answered(chosen: Preset, seed: int) -> TokenIds:
    """One answer in virtual time."""
    source = random.Random(f"link {seed}")
    request = EdgeRequest(
        session=1,
        prompt_ids=PROMPT,
        vocabulary_hash="scripted",
        vocabulary_size=MODELS.vocabulary_size,
        params=GenerationParams(seed=seed, max_tokens=TOKENS, ignore_eos=True),
        preset=chosen,
    )
    asked = SimulatedRequest(
        request,
        MODELS.draft_probs,
        TargetModel(MODELS.target_probs),
        link_from(source.choice((0.06, 0.2))),
        link_changes=((source.uniform(0.05, 0.3), shape_from(0.004)),),
    )
    (result,) = simulate_together([asked], TIMES)
    return result.token_ids
