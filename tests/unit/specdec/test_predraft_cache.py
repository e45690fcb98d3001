"""The pre-draft cache: order, bounds, and what a divergence leaves of it."""

import numpy as np
import pytest

from tandem.specdec.choices import PredraftOrder
from tandem.specdec.events import Drafted, DraftWork
from tandem.specdec.predraft_cache import Branch, LikelyOutcome, Predrafts

PROBS = np.full(4, 0.25, dtype=np.float32)


def work_at(position: int, count: int = 2, ends: frozenset[int] = frozenset()) -> DraftWork:
    return DraftWork(0, (1,), position, count, ends, stepwise=True, branch=True)


def started(predrafts: Predrafts, count: int = 2) -> Branch:
    branch = predrafts.next_waiting()
    assert branch is not None
    predrafts.start(branch, work_at(branch.outcome.position + 1, count))
    return branch


def order_of(order: PredraftOrder, seed: int = 1) -> list[int]:
    predrafts = Predrafts(order, 16, seed)
    predrafts.expect(LikelyOutcome(5, token, share) for token, share in enumerate((0.1, 0.6, 0.3)))
    return [started(predrafts).outcome.token_id for _ in range(3)]


def test_orders() -> None:
    assert order_of(PredraftOrder.CONFIDENCE) == [1, 2, 0]
    assert order_of(PredraftOrder.FIFO) == [0, 1, 2]
    assert len({tuple(order_of(PredraftOrder.RANDOM, seed)) for seed in range(20)}) > 3
    assert order_of(PredraftOrder.RANDOM, 7) == order_of(PredraftOrder.RANDOM, 7)


def test_the_least_likely_that_wait_give_way() -> None:
    predrafts = Predrafts(PredraftOrder.CONFIDENCE, 2, 1)
    predrafts.expect([LikelyOutcome(5, 0, 0.1)])
    kept = started(predrafts)
    predrafts.expect([LikelyOutcome(5, 1, 0.2), LikelyOutcome(6, 2, 0.3)])
    assert len(predrafts) == 2
    assert started(predrafts).outcome.token_id == 2
    assert predrafts.next_waiting() is None
    assert kept.open, "what is being drafted stays"


def test_a_known_outcome_becomes_more_confident_only() -> None:
    predrafts = Predrafts(PredraftOrder.CONFIDENCE, 4, 1)
    for confidence in (0.2, 0.9, 0.4):
        predrafts.expect([LikelyOutcome(5, 1, confidence)])
    assert len(predrafts) == 1
    assert started(predrafts).outcome.confidence == 0.9


@pytest.mark.parametrize(("tokens", "still_open"), [((1,), True), ((1, 2), False), ((3,), False)])
def test_a_branch_closes_with_its_last_token(tokens: tuple[int, ...], still_open: bool) -> None:
    predrafts = Predrafts(PredraftOrder.FIFO, 4, 1)
    predrafts.expect([LikelyOutcome(5, 1, 0.5)])
    branch = predrafts.next_waiting()
    assert branch is not None
    predrafts.start(branch, work_at(6, 2, ends=frozenset({3})))
    branch.take([Drafted(token, PROBS) for token in tokens])
    assert branch.open is still_open
    assert predrafts.open_count == int(still_open)


def test_a_divergence_keeps_nothing_but_what_foresaw_it() -> None:
    predrafts = Predrafts(PredraftOrder.FIFO, 8, 1)
    predrafts.expect(LikelyOutcome(5, token, 0.5) for token in range(4))
    first, second = started(predrafts), started(predrafts)
    hit, void = predrafts.resolve(5, second.outcome.token_id)
    assert hit is second
    assert [id(work) for work in void] == [id(first.work)]
    assert len(predrafts) == 0
    predrafts.expect([LikelyOutcome(5, 3, 0.5)])
    assert predrafts.resolve(5, 3) == (None, []), "a branch that only waits is a miss"


def test_what_was_committed_otherwise_is_forgotten() -> None:
    predrafts = Predrafts(PredraftOrder.FIFO, 8, 1)
    predrafts.expect([LikelyOutcome(5, 1, 0.5), LikelyOutcome(6, 1, 0.5)])
    past, coming = started(predrafts), started(predrafts)
    assert [id(work) for work in predrafts.forget_before(6)] == [id(past.work)]
    assert coming.work is not None
    assert predrafts.of(coming.work) is coming


@pytest.mark.parametrize("order", [PredraftOrder.CONFIDENCE, PredraftOrder.FIFO])
def test_equal_outcomes_come_in_the_order_they_were_expected(order: PredraftOrder) -> None:
    predrafts = Predrafts(order, 2, 1)
    predrafts.expect([LikelyOutcome(5, 0, 0.5), LikelyOutcome(5, 1, 0.5)])
    predrafts.expect([LikelyOutcome(5, 2, 0.5)])
    assert len(predrafts) == 2, "the last that came gives way"
    assert [started(predrafts).outcome.token_id for _ in range(2)] == [0, 1]


def test_chance_orders_outcomes_anew_at_each_position() -> None:
    def first(position: int) -> int:
        predrafts = Predrafts(PredraftOrder.RANDOM, 4, 1)
        predrafts.expect(LikelyOutcome(position, token, 0.5) for token in (0, 1))
        return started(predrafts).outcome.token_id

    assert {first(position) for position in range(20)} == {0, 1}


def test_a_branch_that_is_drafted_to_its_end_needs_no_interrupt() -> None:
    predrafts = Predrafts(PredraftOrder.FIFO, 8, 1)
    predrafts.expect([LikelyOutcome(5, 1, 0.5)])
    started(predrafts, count=1).take([Drafted(2, PROBS)])
    assert predrafts.forget_before(6) == []
    assert len(predrafts) == 0
