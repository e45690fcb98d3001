"""How many tokens a cloud drafts itself: as many as make tokens come fastest."""

from itertools import product

import pytest

from tandem.control.cloud_draft_budget import (
    CloudDraftBudget,
    tokens_per_pass,
    worth_drafting,
)
from tandem.control.config import ControllerConfig
from tandem.control.pass_budget import PassBudget

NO_MARGIN = ControllerConfig(switch_gain=0.0)


def tokens_per_pass_time(rate: float, drafts: int, step: float) -> float:
    """What the docstring of `worth_drafting` says, by its definition."""
    return float(sum(rate**k for k in range(drafts + 1)) / (1 + drafts * step))


@pytest.mark.parametrize(
    ("rate", "step"), list(product((0.0, 0.2, 0.5, 0.8, 0.95), (0.02, 0.1, 0.3, 0.7)))
)
def test_no_other_number_of_drafts_is_faster(rate: float, step: float) -> None:
    best = max(range(17), key=lambda drafts: tokens_per_pass_time(rate, drafts, step))
    assert worth_drafting(rate, 16, step, NO_MARGIN) == best


def test_no_more_than_may_be() -> None:
    assert worth_drafting(0.99, 3, 0.01) == 3


def measured(sessions: int, draft_s: float, row_s: float = 0.003) -> CloudDraftBudget:
    """A budget after passes of 72 ms and `row_s` for each token, and draft steps."""
    passes = PassBudget()
    budget = CloudDraftBudget(passes)
    for number in range(60):
        tokens = sessions * (1 + number % 3)
        passes.passed(0.069 + row_s * tokens, tokens, sessions)
        budget.drafted(draft_s, sessions, sessions)
    return budget


def test_before_anything_is_measured_all_are_drafted() -> None:
    budget = CloudDraftBudget(PassBudget())
    budget.drafted(0.01, 1, 1)
    assert budget.drafts(0.1, 4) == 4


def test_what_is_looked_up_costs_its_rows_alone() -> None:
    passes = PassBudget()
    for number in range(60):
        passes.passed(0.006 + 0.004 * (1 + number % 3), 1 + number % 3, 1)
    assert CloudDraftBudget(passes).drafts(0.3, 8) == 0
    assert CloudDraftBudget(passes).drafts(0.8, 8) >= 2


def test_remembered_drafts_take_no_step_of_the_draft_model() -> None:
    budget = measured(1, draft_s=0.07)
    assert budget.drafts(0.9, 8) == 0
    assert budget.drafts(0.9, 8, by_model=False) == 8


def test_good_drafts_are_made_while_few_share_the_passes_and_none_when_many_do() -> None:
    assert measured(1, draft_s=0.005).drafts(0.8, 8) == 5
    some = measured(8, draft_s=0.015, row_s=0.006).drafts(0.8, 8)
    assert 1 <= some < 8
    assert measured(64, draft_s=0.08, row_s=0.01).drafts(0.8, 8) == 0


def test_bad_drafts_or_slow_ones_are_not_made() -> None:
    assert measured(1, draft_s=0.02).drafts(0.1, 8) == 0
    assert measured(1, draft_s=0.07).drafts(0.8, 8) == 0


def test_a_prompt_says_nothing_of_draft_steps() -> None:
    budget = measured(1, draft_s=0.005)
    budget.drafted(5.0, 900, 1)
    assert budget.drafts(0.8, 8) == measured(1, draft_s=0.005).drafts(0.8, 8)


def test_tokens_of_a_pass() -> None:
    assert tokens_per_pass(0.5, 2) == pytest.approx(1.75)
    assert tokens_per_pass(0.0, 3) == 1.0
    assert tokens_per_pass(1.0, 3) == 4.0


def test_drafts_that_are_there_already_cost_their_rows_alone() -> None:
    budget = measured(1, draft_s=0.018)
    made, to_make = (budget.speed(0.8, 3, made=made) for made in (True, False))
    assert made == pytest.approx(2.952 / (1 + 3 * 3 / 72), rel=0.02)
    assert to_make == pytest.approx(2.952 / (1 + 3 * 21 / 72), rel=0.02)
    assert budget.speed(0.8, 0) == 1.0


def test_rows_that_no_pass_had_yet_cost_what_the_engine_measured() -> None:
    """Passes over one token alone say nothing of a further one. On a few processor cores five rows
    take 2.5 times as long as one, and ten bad guesses as long as five passes."""
    drafts = {}
    for row_share in (None, 0.375):
        passes = PassBudget(row_share=row_share)
        for _ in range(8):
            passes.passed(0.02, 1, 1)
        drafts[row_share] = CloudDraftBudget(passes).drafts(0.7, 10)
    assert drafts[None] == 10
    assert drafts[0.375] <= 2


def test_drafts_that_do_not_pay_are_tried_less_often_where_their_rows_are_dear() -> None:
    cheap, dear = PassBudget(row_share=0.05), PassBudget(row_share=0.75)
    for passes in (cheap, dear):
        for _ in range(50):
            passes.passed(0.03, 1, 1)
    assert CloudDraftBudget(cheap).texts_before_try(2, 32, made=True) == 32
    assert CloudDraftBudget(dear).texts_before_try(2, 32, made=True) > 90


def test_a_draft_model_that_is_slow_or_has_to_read_first_is_tried_less_often() -> None:
    """The engine measured it, so it holds before the first try."""
    passes = PassBudget(row_share=0.05)
    for _ in range(50):
        passes.passed(0.03, 1, 1)
    texts = []
    for step_s, reading_row_s, unread_tokens in ((0.0003, 0, 0), (0.02, 0, 0), (0.02, 0.005, 60)):
        budget = CloudDraftBudget(passes)
        budget.knows(step_s, reading_row_s)
        texts.append(budget.texts_before_try(2, 32, made=False, unread_tokens=unread_tokens))
        assert (budget.drafts(0.5, 8) > 0) is (step_s < 0.001)
    assert texts[0] == 32
    assert texts[1] > 100
    assert texts[2] - texts[1] == pytest.approx(60 * 0.005 / 0.03 / 0.01, rel=0.05)
