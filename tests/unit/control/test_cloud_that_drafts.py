"""When an edge's controller leaves drafting to a cloud that drafts itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.control.acceptance import AcceptanceKnown
from tandem.control.conditions import Conditions, PairTimes
from tandem.control.controller import Answer, Controller
from tandem.control.cost import expected_tpot_s
from tandem.control.estimates import NO_WARM_START, Estimates, WarmStart
from tandem.control.least_cost import LeastCost
from tandem.control.schedule import CLOUD_DRAFTS, Schedule, cloud_alone

LIMITS = Schedule(16, 8, verify_on_arrival=True, decode_when_idle=True, token_by_token=True)
ALONE = cloud_alone(LIMITS)
PASS_S = 0.05
ROW_S = 0.002
STEP_S = 0.005


def auto(warm_start: WarmStart = NO_WARM_START, *, may_draft: bool = True) -> LeastCost:
    controller = LeastCost(LIMITS, warm_start, max_tokens=200)
    controller.on_opened(row_share=ROW_S / PASS_S, may_draft=may_draft)
    controller.on_rtt(0.001, 0.0)
    return controller


def after(accepted: list[int], drafts: int, sessions: int = 1) -> LeastCost:
    """A controller of `auto` after the first token and these passes of the cloud by itself, each
    over so many drafts of its own of which so many stood."""
    controller = auto()
    now = 0.1
    controller.on_committed(Answer(1, verify_s=PASS_S, reads_prompt=True), now)
    for stood in accepted:
        verify_s = PASS_S + drafts * ROW_S
        gap_s = verify_s + drafts * STEP_S
        now += gap_s
        answer = Answer(
            stood + 1,
            undrafted=stood + 1,
            gap_s=gap_s,
            verify_s=verify_s,
            sessions=sessions,
            rows=drafts,
        )
        controller.on_committed(answer, now)
    return controller


def test_a_token_takes_a_pass_and_the_drafting_by_the_tokens_that_came() -> None:
    controller = after([4, 4, 0, 4, 3, 4, 2, 4] * 6, drafts=4)
    expected_s = (PASS_S + 4 * (ROW_S + STEP_S)) / (1 + 25 / 8)
    assert controller.estimates.alone_s == pytest.approx(expected_s, rel=0.1)


def test_without_drafts_two_passes_tell_what_the_cloud_alone_takes() -> None:
    controller = after([0, 0], drafts=0)
    assert controller.estimates.alone_s == pytest.approx(PASS_S)
    assert controller.estimates.knows_alone


def test_a_cloud_that_drafts_is_left_to_it_until_some_passes_told_what_they_bring() -> None:
    """The first of them bring few tokens, as little is known of its drafts."""
    assert not after([4, 0, 2], drafts=4).estimates.knows_alone
    assert after([4, 0, 2] * 3, drafts=4).estimates.knows_alone


def test_what_a_busy_cloud_drafts_is_known_too() -> None:
    conditions = after([4, 3, 4] * 3, drafts=4, sessions=8).estimates.conditions()
    assert conditions is not None
    assert conditions.shared
    assert conditions.cloud_drafts == 4
    assert conditions.alone_s is not None
    assert conditions.alone_s < PASS_S / 2


def known(cloud_drafts: int, *, draft_s: float = 0.03) -> WarmStart:
    """What earlier answers measured: drafts of the edge that are as often right as the cloud's, and
    take longer to make."""

    def aged(value: float) -> tuple[tuple[float, float], ...]:
        return ((1.0, value),) * 9

    return WarmStart(
        draft=aged(draft_s),
        first=aged(PASS_S),
        alone=aged(1 + cloud_drafts * (STEP_S + ROW_S) / PASS_S),
        alone_tokens=sum(0.8**count for count in range(cloud_drafts + 1)),
        cloud_drafts=aged(cloud_drafts),
        trip=aged(0.02)[:1],
        row_share=ROW_S / PASS_S,
        acceptance=AcceptanceKnown(0.8, 40),
    )


def test_it_leaves_drafting_to_a_cloud_that_does_it_faster_and_says_so() -> None:
    alone, drafting = auto(known(0)), auto(known(4))
    assert alone.schedule.window > 0
    assert drafting.schedule == ALONE
    assert drafting.decision is not None
    assert drafting.decision.words == CLOUD_DRAFTS
    assert alone.decision is not None
    assert alone.decision.words == alone.schedule.words


def test_a_cloud_that_drafts_nothing_is_taken_for_none_that_did_before() -> None:
    """Another verifier, or an older one."""
    controller = auto(known(4), may_draft=False)
    now = 0.0
    for number in range(4):
        now += PASS_S
        gap_s = PASS_S if number else None
        first = number == 0
        answer = Answer(1, gap_s=gap_s, verify_s=PASS_S, reads_prompt=first)
        controller.on_committed(answer, now)
    assert controller.schedule.window > 0


def test_an_answer_of_another_preset_leaves_what_is_known_of_the_cloud_s_drafts() -> None:
    """Once that made the next answer believe that the cloud brings a token a pass."""
    between = Controller(ALONE, known(4))
    for number in range(8):
        between.on_committed(Answer(1, gap_s=PASS_S, verify_s=PASS_S), 0.1 + number * PASS_S)
    kept = between.measured(1.0)
    assert kept.alone[0] == (2.0, known(4).alone[0][1])
    assert auto(replace(kept, acceptance=AcceptanceKnown(0.8, 40))).schedule == ALONE


def test_drafts_of_the_edge_have_to_be_clearly_better_than_those_of_the_cloud() -> None:
    """While other load comes and goes, what one schedule took a second ago says little of what
    another takes now."""
    sure = AcceptanceKnown(0.97, 40)
    fast = known(4, draft_s=0.001)
    assert auto(replace(fast, acceptance=sure)).schedule.window > 0
    assert auto(fast).schedule == ALONE, "they would gain a quarter"


def test_under_load_the_edges_draft_where_the_cloud_s_steps_take_long() -> None:
    """A step over the texts of many sessions delays all of them; an edge's delays nobody."""
    tokens = sum(0.8**count for count in range(5))
    conditions = Conditions(
        PairTimes(0.008, PASS_S, 0.0004),
        0.001,
        0.8,
        sharing=8.0,
        alone_s=(PASS_S + 4 * 0.014) / tokens,
        cloud_drafts=4.0,
    )
    stream = replace(LIMITS, window=8)
    assert expected_tpot_s(stream, conditions) < expected_tpot_s(ALONE, conditions)


def test_what_was_measured_of_the_cloud_s_drafts_is_kept_for_the_next_answer() -> None:
    before = after([4, 3, 4, 2] * 3, drafts=4).estimates
    again = Estimates(before.snapshot(2.0), 3.0).conditions()
    assert again is not None
    assert again.cloud_drafts == 4
    assert again.alone_s == pytest.approx(before.alone_s)
