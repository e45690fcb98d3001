"""Which outcomes are drafted for before the verdict, how many tokens, and where that ends: what the
edge's machine is told by early verdicts or its draft model, and the tasks that it gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tandem.specdec.choices import Control, Predraft, PredraftOrder, Schedule
from tandem.specdec.edge import EdgeMachine
from tandem.specdec.events import Drafted, DraftTask, Interrupt
from tandem.specdec.presets import Preset
from tandem.specdec.proposers import DraftSource
from tandem.specdec.rounds.messages import EarlyVerdict
from tests.virtual_time.cases import preset, scheduled
from tests.virtual_time.edge_frames import (
    PROBS,
    connected,
    draft,
    drafts_in_flight,
    drafts_of,
    frame_of,
    sent,
    task_of,
    tokens_of,
    verdict_of,
)

EARLY: dict[str, Any] = {"predraft": Predraft.EARLY_EXITS, "exits": 4}
LIKELY = preset("coupled", 2, predraft=Predraft.LIKELY_OUTCOMES)
STREAMING = scheduled("coupled", Schedule(4, 2, bonus=False), **EARLY, predraft_workers=2)


def waiting(
    workers: int = 2,
    order: PredraftOrder = PredraftOrder.CONFIDENCE,
    outcomes: int = 16,
    **options: Any,
) -> EdgeMachine:
    """With the drafts 0 and 1 in flight, at positions 2 and 3."""
    chosen = preset(
        "coupled",
        2,
        **EARLY,
        predraft_workers=workers,
        predraft_order=order,
        predraft_outcomes=outcomes,
    )
    return in_flight(chosen, **options)


def in_flight(chosen: Preset, **options: Any) -> EdgeMachine:
    edge = connected(chosen, **options)
    draft(edge, *(0, 1)[: min(chosen.schedule.chunk, edge.request.max_tokens)])
    return edge


def expect(edge: EdgeMachine, position: int, token: int, confidence: float = 0.5) -> None:
    """An early exit says that all drafts before a position stand, and that this token comes."""
    accepted = position - len(edge.committed)
    rejected = accepted < edge.drafts_sent
    found = EarlyVerdict(*frame_of(edge), 0, accepted, rejected, token, confidence)
    assert edge.receive(found, 0.1) == []


def begun(edge: EdgeMachine) -> DraftTask:
    """The next branch."""
    task = task_of(edge, 0.1)
    assert task.branch
    return task


def outcome(task: DraftTask) -> tuple[int, int]:
    """What a branch is drafted for."""
    return task.position - 1, task.token_ids[-1]


def outcomes(edge: EdgeMachine) -> list[tuple[int, int]]:
    """Those that are drafted for now, in their order."""
    found = []
    while (task := edge.work(0.1)) is not None:
        found.append(outcome(task))
    return found


def take(edge: EdgeMachine, task: DraftTask, *token_ids: int) -> None:
    assert edge.drafted(task, drafts_of(*token_ids), 0, 0.0, 0.1) == []


@pytest.mark.parametrize(
    ("position", "token", "wanted"),
    [(2, 0, False), (2, 1, True), (3, 1, False), (3, 0, True), (4, 0, True), (4, 1, True)],
)
def test_what_the_drafts_in_flight_say_already_is_no_outcome(
    position: int, token: int, wanted: bool
) -> None:
    edge = waiting()
    expect(edge, position, token)
    assert outcomes(edge) == [(position, token)] * wanted


@pytest.mark.parametrize(("max_tokens", "count"), [(12, 2), (4, 2), (3, 1), (2, None)])
def test_a_branch_is_as_long_as_a_chunk_and_the_answer_allow(
    max_tokens: int, count: int | None
) -> None:
    edge = waiting(max_tokens=max_tokens)
    expect(edge, 3, 0)
    task = edge.work(0.1)
    assert (task.count if task else None) == count
    if task is not None:
        assert task.stepwise is (task.count > 1)
        assert (task.keep, task.token_ids) == (3, (0,))
        assert edge.context(task) == (1, 2, 0, 0)


def test_a_branch_is_no_longer_than_a_window_that_was_narrowed() -> None:
    chosen = scheduled(
        "coupled", Schedule(4, 2, bonus=False), **EARLY, control=Control.LATENCY_AWARE
    )
    edge = connected(chosen)
    task = task_of(edge)
    for token in (0, 1):
        edge.drafted(task, drafts_of(token), 3, 0.0, 0.0)
    edge.controller.schedule = Schedule(1, 2)
    expect(edge, 3, 0)
    branch = begun(edge)
    assert (branch.count, branch.stepwise) == (1, False)


def test_nothing_follows_an_end() -> None:
    edge = waiting(ends=frozenset({2}))
    expect(edge, 3, 2, 0.9)
    expect(edge, 3, 0, 0.5)
    assert outcomes(edge) == [(3, 0)]


def test_as_many_branches_as_workers_are_drafted_at_once() -> None:
    edge = waiting()
    for position, token, confidence in ((3, 0, 0.5), (3, 2, 0.4), (2, 2, 0.3)):
        expect(edge, position, token, confidence)
    first = begun(edge)
    begun(edge)
    assert edge.work(0.1) is None
    take(edge, replace(first), 0, 1)
    assert edge.work(0.1) is None, "that was another task"
    assert edge.stats.predrafted == 0
    take(edge, first, 0, 1)
    assert outcome(begun(edge)) == (2, 2), "one has ended"


def test_runners_up_come_as_likely_as_all_before_them_stand() -> None:
    """A third of the first draft's weight is its runner-up's, so of the rest a little more or a
    little less than half comes before it or after."""
    for weight, order in ((0.8, [(2, 2), (3, 2)]), (1.1, [(3, 2), (2, 2)])):
        edge = connected(replace(LIKELY, predraft_workers=2))
        task = task_of(edge)
        drafts = [
            Drafted(0, PROBS, alternatives=((2, 0.5),)),
            Drafted(1, PROBS, alternatives=((2, weight),)),
        ]
        edge.drafted(task, drafts, 3, 0.0, 0.0)
        assert outcomes(edge) == order


def test_a_text_that_went_on_otherwise_keeps_the_branch_that_predicted_it() -> None:
    edge = waiting()
    expect(edge, 2, 1, 0.9)
    expect(edge, 3, 0, 0.5)
    first, second = begun(edge), begun(edge)
    take(edge, first, 2)
    outputs = edge.receive(verdict_of(edge, 0, True, 1), 0.2)
    assert [each.task for each in outputs if isinstance(each, Interrupt)] == [second]
    assert edge.work(0.2) is None, "it is the task under way"
    (frame,) = sent(edge.drafted(first, drafts_of(0), 4, 0.0, 0.3))
    assert (frame.base, frame.token_ids) == (3, (2, 0))
    stats = edge.stats
    assert (stats.predraft_hits, stats.predraft_misses, stats.predraft_begun) == (0, 1, 1)


def test_a_branch_is_a_hit_once_all_its_drafts_are_there() -> None:
    edge = waiting()
    expect(edge, 2, 1, 0.9)
    branch = begun(edge)
    take(edge, branch, 2)
    take(edge, branch, 0)
    (frame,) = sent(edge.receive(verdict_of(edge, 0, True, 1), 0.2))
    assert (frame.base, frame.token_ids) == (3, (2, 0))
    stats = edge.stats
    assert (stats.predraft_hits, stats.predraft_misses, stats.predraft_begun) == (1, 0, 0)


def test_an_outcome_that_only_waits_is_a_miss() -> None:
    edge = waiting()
    for token in (1, 2):
        expect(edge, 2, token)
    expect(edge, 3, 0)
    first, second = begun(edge), begun(edge)
    outputs = edge.receive(verdict_of(edge, 1, True, 0), 0.2)
    assert [each.task for each in outputs if isinstance(each, Interrupt)] == [first, second]
    assert (edge.stats.predraft_hits, edge.stats.predraft_misses) == (0, 1)
    task = task_of(edge, 0.2)
    assert not task.branch, "nothing of the other outcomes is left"


def test_what_was_committed_otherwise_is_forgotten() -> None:
    edge = in_flight(STREAMING)
    draft(edge, 0, 1)
    expect(edge, 2, 1)
    expect(edge, 5, 2)
    past, coming = begun(edge), begun(edge)
    assert edge.receive(verdict_of(edge, 2), 0.2)[-1] == Interrupt(past)
    outputs = edge.receive(verdict_of(edge, 1, True, 2), 0.3)
    assert not any(isinstance(each, Interrupt) for each in outputs)
    take(edge, coming, 0)
    assert drafts_in_flight(edge) == (0,), "its drafts are the answer's now"


@pytest.mark.parametrize(("tokens", "still_open"), [((1,), True), ((1, 1), False), ((2,), False)])
def test_a_branch_closes_with_its_last_token(tokens: tuple[int, ...], still_open: bool) -> None:
    edge = waiting(workers=1, ends=frozenset({2}))
    for token in (0, 1):
        expect(edge, 4, token)
    take(edge, begun(edge), *tokens)
    assert outcomes(edge) == [(4, 1)] * (not still_open)


def test_a_branch_closes_where_its_draft_model_is_unsure() -> None:
    edge = waiting(workers=1)
    for token in (0, 1):
        expect(edge, 4, token)
    edge.drafted(begun(edge), [Drafted(0, PROBS, ends_chunk=True)], 0, 0.0, 0.1)
    assert outcomes(edge) == [(4, 1)]


def order_of(order: PredraftOrder, seed: int = 1) -> list[int]:
    edge = waiting(workers=3, order=order, seed=seed)
    for token, confidence in enumerate((0.1, 0.6, 0.3)):
        expect(edge, 4, token, confidence)
    return [token for _, token in outcomes(edge)]


def test_orders() -> None:
    assert order_of(PredraftOrder.CONFIDENCE) == [1, 2, 0]
    assert order_of(PredraftOrder.FIFO) == [0, 1, 2]
    assert len({tuple(order_of(PredraftOrder.RANDOM, seed)) for seed in range(20)}) > 3
    assert order_of(PredraftOrder.RANDOM, 7) == order_of(PredraftOrder.RANDOM, 7)


def test_the_least_likely_that_wait_give_way() -> None:
    edge = waiting(workers=1, outcomes=2)
    expect(edge, 4, 0, 0.1)
    kept = begun(edge)
    expect(edge, 4, 1, 0.2)
    expect(edge, 3, 2, 0.3)
    take(edge, kept, 0)
    assert edge.work(0.1) is None, "what is being drafted stays"
    take(edge, kept, 0)
    last = begun(edge)
    assert outcome(last) == (3, 2)
    take(edge, last, 0, 0)
    assert edge.work(0.1) is None


def test_a_known_outcome_becomes_more_confident_only() -> None:
    for confidences, order in (((0.2, 0.9, 0.4), [1, 0]), ((0.2, 0.4, 0.2), [0, 1])):
        edge = waiting()
        expect(edge, 4, 0, 0.5)
        for confidence in confidences:
            expect(edge, 4, 1, confidence)
        assert [token for _, token in outcomes(edge)] == order


def test_a_token_of_the_cloud_s_own_may_be_the_outcome() -> None:
    edge = in_flight(scheduled("coupled", Schedule(2, 1), **EARLY, predraft_workers=1))
    draft(edge, 1)
    expect(edge, 2, 2)
    branch = begun(edge)
    take(edge, branch, 1)
    edge.receive(tokens_of(edge, 2), 0.2)
    assert drafts_in_flight(edge) == (1,)
    assert edge.stats.predraft_hits == 1


def test_no_branch_feeds_a_long_text_that_the_caller_predicted() -> None:
    """What the prediction says was fed to no model. A branch would have to feed it; a window of it
    is worth that, and no more."""
    chosen = preset("coupled", 2, **EARLY, predraft_workers=2)
    edge = connected(chosen, predicted=(0, 1, 2, 0, 1))
    task = task_of(edge)
    edge.drafted(task, drafts_of(0, 1, source=DraftSource.PREDICTION), 0, 0.0, 0.0)
    assert edge.kv_length == 0
    expect(edge, 3, 0)
    expect(edge, 2, 1)
    branch = begun(edge)
    assert (outcome(branch), branch.keep, branch.token_ids) == ((2, 1), 0, (1, 2, 1))
    assert outcomes(edge) == []


def test_runners_up_are_named_where_outcomes_are_made_of_them_and_wanted() -> None:
    """Naming them costs a pass over the vocabulary for each draft."""
    for chosen, asked in (
        (LIKELY, 4),
        (preset("coupled", 2, **EARLY), 0),
        (preset("coupled", 2), 0),
    ):
        edge = connected(chosen)
        task = task_of(edge)
        assert task.alternatives == asked
