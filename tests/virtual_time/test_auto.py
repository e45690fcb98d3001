"""`auto`: never slower than the cloud alone. Its texts: tests/pair/test_switching_schedules.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.simulation.answer import Conditions, Question, SimulatedAnswer, simulate_answers
from lab.simulation.answer_figures import tokens_per_s_together
from lab.simulation.declared_pair import declared_pair
from lab.simulation.simulated_verifier import TargetModel
from lab.simulation.simulator import Asked, ModelTimes, SimulationResult, simulate_together
from tandem.netem.link_model import link_from
from tandem.specdec.events import EdgeRequest
from tandem.specdec.messages import GenerationParams
from tandem.specdec.presets import PRESETS
from tandem.specdec.profile import NOTHING_EARLIER, Earlier

TIMES = ModelTimes(0.024, 0.072, 0.003)


def answers_of(
    name: str, rate: float, conditions: Conditions, sessions: int
) -> list[SimulatedAnswer]:
    seed, pair = 3, declared_pair(rate, seed=3)
    questions = [
        Question((seed, number + 1), 64, seed + number, number * 0.07) for number in range(sessions)
    ]
    return simulate_answers(PRESETS[name], pair, conditions, questions)


@pytest.mark.parametrize(
    ("sessions", "rtt_s", "rate"),
    [(1, 0.0, 0.05), (1, 0.03, 0.3), (1, 0.3, 0.6), (6, 0.0, 0.05), (6, 0.03, 0.4), (6, 0.1, 0.9)],
)
def test_it_is_never_slower_than_the_cloud_alone(sessions: int, rtt_s: float, rate: float) -> None:
    conditions = Conditions(TIMES, rtt_s, 100.0)
    alone, auto = (
        tokens_per_s_together(answers_of(name, rate, conditions, sessions))
        for name in ("ar", "auto")
    )
    assert auto > 0.975 * alone


@pytest.mark.parametrize("rtt_s", [0.03, 0.3])
def test_later_requests_do_not_try_what_a_long_link_forbids(rtt_s: float) -> None:
    """Passes of 4 ms: a round of drafts costs many of them, and answers that take less than a round
    trip hear no ping in time. Once a round trip was believed to shrink with each token; a request
    then took up to six times as long as the cloud alone."""
    earlier = NOTHING_EARLIER
    for seed in range(6):
        alone, auto = (answer(name, earlier, rtt_s, seed) for name in ("ar", "auto"))
        assert lasts_s(auto) < 1.015 * lasts_s(alone), seed
        rtt_known_s = auto.profile.own.rtt_s or earlier.rtt_s
        earlier = replace(auto.profile.own, rtt_s=rtt_known_s, draft_s=0.0012, acceptance_rate=0.6)


def answer(name: str, earlier: Earlier, rtt_s: float, seed: int) -> SimulationResult:
    """Of a request that knows what `earlier` ones measured."""
    pair = declared_pair(0.6, seed=1, vocabulary_size=64)
    request = EdgeRequest(
        session=1,
        prompt_ids=tuple(range(seed, seed + 20)),
        vocabulary_hash="declared",
        vocabulary_size=pair.vocabulary_size,
        params=GenerationParams(max_tokens=60, seed=seed, ignore_eos=True),
        preset=PRESETS[name].fitted(pair.vocabulary_size),
        earlier=earlier,
    )
    asked = Asked(request, pair.draft_probs, TargetModel(pair.target_probs), link_from(rtt_s))
    return simulate_together([asked], ModelTimes(0.0012, 0.004, 0.0003))[0]


def lasts_s(answer: SimulationResult) -> float:
    """From the first token to the last."""
    return answer.commits[-1][0] - answer.commits[0][0]


@pytest.mark.parametrize(("slowed", "rate"), [(1.2, 0.3), (1.5, 0.5)])
def test_where_drafts_slow_the_passes_it_is_hardly_slower_either(
    slowed: float, rate: float
) -> None:
    """Both models on one machine: passes and draft steps take so many times as long beside each
    other. Six requests one after the other, each knowing what those before measured: once
    nothing told what the cloud alone takes, and they were slower by 5 % and more."""
    earlier, alone_s, auto_s = NOTHING_EARLIER, 0.0, 0.0
    for seed in range(6):
        alone_s += lasts_s(shared_answer("ar", NOTHING_EARLIER, slowed, rate, seed))
        auto = shared_answer("auto", earlier, slowed, rate, seed)
        auto_s += lasts_s(auto)
        known = auto.profile.own
        rate_known, rtt_s = known.acceptance_rate, known.rtt_s
        earlier = replace(
            known,
            acceptance_rate=earlier.acceptance_rate if rate_known is None else rate_known,
            rtt_s=earlier.rtt_s if rtt_s is None else rtt_s,
            draft_s=known.draft_s or earlier.draft_s,
        )
    assert auto_s < 1.03 * alone_s


def shared_answer(
    name: str, earlier: Earlier, slowed: float, rate: float, seed: int
) -> SimulationResult:
    """The link is this machine's own; a pass takes 33 ms, a further token 5, a draft step 4.6."""
    pair = declared_pair(rate, seed=seed, vocabulary_size=64)
    params = GenerationParams(sampling=pair.sampling, seed=seed, max_tokens=60, ignore_eos=True)
    request = EdgeRequest(1, (1, seed), "simulated", 64, params, PRESETS[name], earlier=earlier)
    asked = Asked(
        request, pair.draft_probs, TargetModel(pair.target_probs), link_from(0.0006, None, 0.0, 1)
    )
    return simulate_together([asked], ModelTimes(0.0046, 0.033, 0.005, slowed))[0]
