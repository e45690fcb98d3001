"""Several sessions over one simulated verifier."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.control.pass_budget import PassBudget
from tandem.netem.link_model import shape_from
from tandem.specdec.choices import Predraft
from tandem.specdec.cloud import CloudMachine
from tandem.specdec.messages import Work
from tandem.specdec.presets import PRESETS
from tandem.testing.simulation.answer import (
    Conditions,
    Question,
    simulate_answer,
    simulate_answers,
    tokens_per_s_together,
    verified_acceptance,
)
from tandem.testing.simulation.declared_pair import declared_pair
from tandem.testing.simulation.model_times import ModelTimes
from tests.long_runs import with_long_cases
from tests.virtual_time.cloud_frames import (
    MODELS,
    V,
    committed_of,
    draft_after,
    opening,
    own_tokens,
    pass_of,
    work_of,
)
from tests.virtual_time.lockstep import judgement_for, model_for

TIMES = ModelTimes(0.024, 0.072, 0.003)
PAIR = declared_pair(0.6, seed=4, vocabulary_size=64)


def test_a_pass_takes_every_session_whose_work_is_due() -> None:
    questions = [Question((number + 1,), 30, 1, number * 0.01) for number in range(8)]
    answers = simulate_answers(PRESETS["ar"], PAIR, Conditions(TIMES), questions)
    assert abs(tokens_per_s_together(answers) * TIMES.pass_s(8) / 8 - 1) < 0.05
    assert max(answer.stats.queue_s for answer in answers) < TIMES.pass_s(8) + 1e-9


def test_texts_do_not_depend_on_who_shares_the_verifier() -> None:
    questions = [Question((number + 1, 2), 16, number, number * 0.03) for number in range(3)]
    conditions = Conditions(TIMES, 0.05, 20.0)
    for name in ("stream", "dssd", "picospec", "fsd"):
        together = simulate_answers(PRESETS[name], PAIR, conditions, questions)
        alone = [
            simulate_answer(PRESETS[name], PAIR, conditions, q.prompt_ids, q.max_tokens, q.seed)
            for q in questions
        ]
        assert [a.token_ids for a in together] == [a.token_ids for a in alone]


def test_a_link_changes_while_an_answer_is_written() -> None:
    steady = Conditions(TIMES, 0.01)
    slower = Conditions(TIMES, 0.01, link_changes=((1.0, shape_from(0.3)),))
    (before,) = simulate_answers(PRESETS["dssd"], PAIR, steady, [Question((1,), 60, 1)])
    (after,) = simulate_answers(PRESETS["dssd"], PAIR, slower, [Question((1,), 60, 1)])
    assert after.token_ids == before.token_ids
    assert after.last_commit_s > before.last_commit_s + 3


def test_an_uplink_narrower_than_the_downlink_delays_what_goes_up() -> None:
    question = [Question((1,), 60, 1)]
    answers = {}
    for up, down in ((0.05, 50.0), (50.0, 0.05), (50.0, 50.0)):
        link = shape_from(0.01, mbps_up=up, mbps_down=down)
        for preset in ("dsd", "dssd"):
            conditions = Conditions(TIMES, link=link, padded_vocabulary=32_000)
            (answer,) = simulate_answers(PRESETS[preset], PAIR, conditions, question)
            answers[preset, up, down] = answer.last_commit_s
    # DSD sends distributions up, DSSD one down where a draft is rejected: the papers' premise.
    assert answers["dsd", 0.05, 50.0] > 5 * answers["dssd", 0.05, 50.0]
    assert answers["dssd", 50.0, 50.0] <= answers["dssd", 50.0, 0.05]


def test_drafts_are_accepted_at_the_declared_rate() -> None:
    for name in ("dssd", "coupled"):
        pair = declared_pair(
            lambda position: 0.9 if position < 400 else 0.3, seed=2, vocabulary_size=64
        )
        answer = simulate_answer(PRESETS[name], pair, Conditions(TIMES), (1,), 399, 1)
        rate = verified_acceptance([answer])
        assert rate is not None
        assert abs(rate - 0.9) < 0.05


@pytest.mark.parametrize("rate", with_long_cases([0.05, 0.5, 0.9], [0.9]))
def test_drafts_never_slow_the_verifier_down(rate: float) -> None:
    """A pass takes no more drafts than it can bear: sixteen sessions are as fast as without."""
    pair = declared_pair(rate, seed=4, vocabulary_size=64)
    questions = [Question((number + 1,), 30, 1, number * 0.05) for number in range(16)]
    drafting = replace(PRESETS["stream"], predraft=Predraft.OFF)
    alone, drafted = (
        simulate_answers(preset, pair, Conditions(TIMES, 0.03), questions)
        for preset in (PRESETS["ar"], drafting)
    )
    assert [a.token_ids for a in drafted] == [a.token_ids for a in alone]
    assert tokens_per_s_together(drafted) > 0.97 * tokens_per_s_together(alone)
    passes = sum(answer.stats.target_passes for answer in drafted)
    assert rate < 0.9 or passes < 0.5 * sum(answer.stats.target_passes for answer in alone)


def test_a_pass_that_feeds_no_draft_judges_the_first_all_the_same() -> None:
    """What waits is compared with what the cloud says by itself, at the moment it says it."""
    stream = PRESETS["stream"]
    right = own_tokens(stream, 3)
    full = PassBudget()
    full.price = 1.0
    cloud = CloudMachine(opening(stream), model_for(MODELS, frozenset()), budget=full)
    wrong = (right[2] + 1) % V
    cloud.receive(draft_after(cloud, (*right[:2], wrong)))
    for expected in right[:2]:
        work = work_of(cloud)
        assert work.drafts == 0
        verdict = committed_of(cloud.complete(judgement_for(MODELS, cloud, work), Work()))
        assert (verdict.accepted, verdict.refuses, verdict.token_ids) == (1, False, ())
        assert cloud.committed.last == expected
    verdict = committed_of(pass_of(cloud))
    assert (verdict.accepted, verdict.refuses, verdict.token_ids) == (0, True, (right[2],))
    assert cloud.kv_length == len(cloud.committed) - 1
