"""When a new adapter is used: only if acceptance on held-back texts rises by more than chance."""

from __future__ import annotations

import numpy as np

from tandem.learning.evaluation import Outcome, Score, acceptance, evaluate, falls_behind, rises


def scores(*shares: float, tokens: int = 50) -> list[Score]:
    return [Score(share * tokens, tokens) for share in shares]


LOW = scores(0.40, 0.45, 0.50, 0.38, 0.42, 0.47)
HIGH = scores(0.46, 0.50, 0.57, 0.42, 0.49, 0.52)


def test_an_adapter_that_is_better_on_every_text_is_adopted() -> None:
    evaluation = evaluate(LOW, LOW, HIGH)
    assert evaluation.outcome is Outcome.ADOPTED
    assert (evaluation.base, evaluation.before) == (acceptance(LOW), acceptance(LOW))
    assert evaluation.after == acceptance(HIGH)


def test_one_that_is_better_by_chance_alone_is_rejected() -> None:
    # On average better by 0.02, but the texts disagree by far more.
    erratic = scores(0.70, 0.15, 0.80, 0.13, 0.72, 0.24)
    assert acceptance(erratic) > acceptance(LOW) + 0.01
    assert evaluate(LOW, LOW, erratic).outcome is Outcome.REJECTED


def test_a_gain_that_does_not_pay_is_rejected_however_sure() -> None:
    barely = [Score(each.accepted + 0.1, each.tokens) for each in LOW]
    assert evaluate(LOW, LOW, barely).outcome is Outcome.REJECTED


def test_too_few_texts_or_tokens_judge_nothing() -> None:
    assert evaluate(LOW[:3], LOW[:3], HIGH[:3]).outcome is Outcome.REJECTED
    few, more = scores(*[0.4] * 6, tokens=5), scores(*[0.9] * 6, tokens=5)
    assert evaluate(few, few, more).outcome is Outcome.REJECTED


def test_one_that_beats_the_one_in_use_but_not_the_draft_itself_is_rejected() -> None:
    worst = scores(0.30, 0.35, 0.41, 0.29, 0.33, 0.36)
    assert evaluate(LOW, worst, scores(0.36, 0.41, 0.46, 0.34, 0.38, 0.43)).outcome is (
        Outcome.ROLLED_BACK
    )


def test_one_in_use_that_fell_behind_the_draft_itself_is_given_up() -> None:
    assert evaluate(HIGH, LOW, LOW).outcome is Outcome.ROLLED_BACK
    assert evaluate(HIGH, HIGH, LOW).outcome is Outcome.REJECTED


def test_of_equal_adapters_few_are_adopted() -> None:
    """One-sided at 1.64 standard errors: some 5 %."""
    rng = np.random.default_rng(1)
    adopted = 0
    for _ in range(400):
        before = [Score(float(x), 50) for x in rng.binomial(50, 0.5, 20)]
        after = [Score(float(x), 50) for x in rng.binomial(50, 0.5, 20)]
        adopted += rises(before, after)
    assert adopted < 40


def test_three_texts_of_a_kind_that_an_adapter_harms_outweigh_those_that_it_served() -> None:
    served, harmed = (0.6, 0.6, 0.6, 0.6, 0.6), (0.45, 0.45, 0.45)
    frozen = scores(*[0.5] * 8, tokens=128)
    used = scores(*served, *harmed, tokens=128)
    assert acceptance(used) > acceptance(frozen), "over all that are remembered"
    assert falls_behind(frozen, used)
    assert not falls_behind(frozen[:7], used[:7]), "two may be chance"
    assert not falls_behind(frozen, used[::-1]), "it serves what is asked now"


def test_short_texts_are_too_few_to_say_it() -> None:
    frozen, used = scores(*[0.5] * 8, tokens=40), scores(*[0.6] * 5, *[0.4] * 3, tokens=40)
    assert not falls_behind(frozen, used), "three have 120 tokens; seven say that it serves"
