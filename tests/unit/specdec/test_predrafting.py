"""Which outcomes are drafted for before the verdict, how many tokens, and where that ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.core.tokens import PrefixedTokens
from tandem.specdec.choices import Predraft, PredraftOrder, Schedule
from tandem.specdec.drafting import Drafting
from tandem.specdec.events import Drafted, DraftTask
from tandem.specdec.predrafting import Branch, LikelyOutcome, Predrafting, Predrafts
from tandem.specdec.presets import PRESETS, Preset
from tests.virtual_time.cases import preset
from tests.virtual_time.edge_frames import MODELS, PROBS, drafts_of
from tests.virtual_time.lockstep import request_for

AHEAD = preset("predraft", 2, predraft_workers=2)


def predrafting(
    chosen: Preset = AHEAD, max_tokens: int = 12, ends: frozenset[int] = frozenset()
) -> tuple[Predrafting, Drafting, PrefixedTokens]:
    """With the drafts 0 and 1 in flight, at positions 2 and 3."""
    request = request_for(chosen, MODELS, max_tokens=max_tokens, ends=ends)
    committed = PrefixedTokens(request.prompt_ids)
    drafting = Drafting(request, committed)
    work = drafting.begin(2, ends)
    drafting.take(work, drafts_of(0, 1), 3)
    drafting.send_due(0)
    return Predrafting(request, committed, drafting), drafting, committed


@pytest.mark.parametrize(
    ("position", "token", "wanted"),
    [
        *[(1, 0, False), (2, 0, False), (2, 1, True), (3, 1, False), (3, 0, True)],
        *[(4, 0, True), (4, 1, True), (5, 0, False)],
    ],
)
def test_what_the_drafts_in_flight_say_already_is_no_outcome(
    position: int, token: int, wanted: bool
) -> None:
    found, _, _ = predrafting()
    found.expect([LikelyOutcome(position, token, 0.5)])
    work = found.task()
    assert (work is not None) is wanted
    if work is not None:
        assert (work.position, work.token_ids[-1], work.branch) == (position + 1, token, True)


def test_nor_is_the_token_that_was_drafted_ahead() -> None:
    found, drafting, _ = predrafting()
    ahead = drafting.begin_ahead()
    assert ahead is not None
    drafting.take(ahead, drafts_of(2), 4)
    found.expect([LikelyOutcome(4, 2, 0.5)])
    assert found.task() is None
    found.expect([LikelyOutcome(4, 1, 0.5)])
    assert found.task() is not None


@pytest.mark.parametrize(("max_tokens", "count"), [(12, 2), (4, 2), (3, 1), (2, None)])
def test_a_branch_is_as_long_as_a_chunk_and_the_answer_allow(
    max_tokens: int, count: int | None
) -> None:
    found, _, _ = predrafting(max_tokens=max_tokens)
    found.expect([LikelyOutcome(3, 0, 0.5)])
    work = found.task()
    assert (work.count if work else None) == count
    if work is not None:
        assert work.stepwise is (work.count > 1)
        assert (work.keep, work.token_ids) == (3, (0,))
        assert found.context(work) == (1, 2, 0, 0)


def test_nothing_follows_an_end() -> None:
    found, _, _ = predrafting(ends=frozenset({2}))
    found.expect([LikelyOutcome(3, 2, 0.9), LikelyOutcome(3, 0, 0.5)])
    work = found.task()
    assert work is not None
    assert work.token_ids[-1] == 0


def test_as_many_branches_as_workers_are_drafted_at_once() -> None:
    found, _, _ = predrafting()
    found.expect([LikelyOutcome(3, 0, 0.5), LikelyOutcome(3, 2, 0.4), LikelyOutcome(2, 2, 0.3)])
    works = [found.task(), found.task()]
    assert None not in works
    assert found.task() is None
    assert works[0] is not None
    found.take(works[0], drafts_of(0, 1))
    assert found.task() is not None, "one has ended"
    assert not found.take(replace(works[0]), drafts_of(0)), "another work"


def test_without_predrafting_nothing_is_expected() -> None:
    chosen = replace(AHEAD, predraft=Predraft.OFF)
    found, _, _ = predrafting(chosen)
    found.expect([LikelyOutcome(3, 0, 0.5)])
    assert found.task() is None
    found.expect_likely()
    assert found.task() is None


def test_runners_up_come_as_likely_as_all_before_them_stand() -> None:
    found, drafting, _ = predrafting()
    drafting.take_all()
    drafting.adopt(
        [
            Drafted(0, PROBS, alternatives=((1, 0.5), (2, 0.5))),
            Drafted(1, PROBS, alternatives=((2, 0.25),)),
        ]
    )
    likely = {(one.position, one.token_id): one.confidence for one in found._likely()}
    assert likely == {
        (2, 1): pytest.approx(0.25),
        (2, 2): pytest.approx(0.25),
        (3, 2): pytest.approx(0.5 * 0.2),
    }


def test_a_text_that_went_on_otherwise_keeps_the_branch_that_predicted_it() -> None:
    found, _, committed = predrafting()
    found.expect([LikelyOutcome(2, 1, 0.9), LikelyOutcome(3, 0, 0.5)])
    first, second = found.task(), found.task()
    assert first is not None
    branch, void = found.resolve(1)
    assert branch is not None
    assert branch.task is first
    assert void == [second]
    found.expect([LikelyOutcome(2, 1, 0.9)])
    found.task()
    committed.append(0)
    assert found.forget_committed() == [first]
    assert found.clear() == []


def test_a_branch_is_not_drafted_before_its_work_is_begun() -> None:
    assert not Branch(LikelyOutcome(2, 1, 0.5), 1).open


def test_predrafting_takes_room_beside_the_text() -> None:
    assert PRESETS["coupled"].branch_tokens == 0
    chosen = AHEAD.schedule
    assert AHEAD.branch_tokens == 2 * (chosen.window + chosen.chunk + 1)
    assert AHEAD.spare_tokens(99) == AHEAD.branch_tokens


def test_a_branch_is_no_longer_than_a_window_that_was_narrowed() -> None:
    found, drafting, _ = predrafting()
    drafting.follow(Schedule(1, 2), drafts_ahead=True)
    found.expect([LikelyOutcome(3, 0, 0.5)])
    work = found.task()
    assert work is not None
    assert (work.count, work.stepwise) == (1, False)


def test_past_the_drafts_only_the_place_of_the_cloud_s_token_has_outcomes() -> None:
    """What would follow that token is drafted already, and may not come at all."""
    found, drafting, _ = predrafting()
    drafting.ahead = [
        Drafted(2, PROBS, alternatives=((1, 0.5),)),
        Drafted(1, PROBS, alternatives=((0, 0.5),)),
    ]
    assert [(one.position, one.token_id) for one in found._likely()] == [(4, 1)]


def task_at(position: int, count: int = 2, ends: frozenset[int] = frozenset()) -> DraftTask:
    return DraftTask(0, (1,), position, count, ends, stepwise=True, branch=True)


def started(predrafts: Predrafts, count: int = 2) -> Branch:
    branch = predrafts.next_waiting()
    assert branch is not None
    predrafts.start(branch, task_at(branch.outcome.position + 1, count))
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
    predrafts.start(branch, task_at(6, 2, ends=frozenset({3})))
    branch.take([Drafted(token, PROBS) for token in tokens])
    assert branch.open is still_open
    assert predrafts.open_count == int(still_open)


def test_a_divergence_keeps_nothing_but_what_foresaw_it() -> None:
    predrafts = Predrafts(PredraftOrder.FIFO, 8, 1)
    predrafts.expect(LikelyOutcome(5, token, 0.5) for token in range(4))
    first, second = started(predrafts), started(predrafts)
    hit, void = predrafts.resolve(5, second.outcome.token_id)
    assert hit is second
    assert [id(task) for task in void] == [id(first.task)]
    assert len(predrafts) == 0
    predrafts.expect([LikelyOutcome(5, 3, 0.5)])
    assert predrafts.resolve(5, 3) == (None, []), "a branch that only waits is a miss"


def test_what_was_committed_otherwise_is_forgotten() -> None:
    predrafts = Predrafts(PredraftOrder.FIFO, 8, 1)
    predrafts.expect([LikelyOutcome(5, 1, 0.5), LikelyOutcome(6, 1, 0.5)])
    past, coming = started(predrafts), started(predrafts)
    assert [id(task) for task in predrafts.forget_before(6)] == [id(past.task)]
    assert coming.task is not None
    assert predrafts.of(coming.task) is coming


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
