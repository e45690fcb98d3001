"""What an edge's controller takes a token of a cloud to cost that drafts itself, and when it leaves
drafting to that cloud."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.control.cloud_draft_budget import tokens_per_pass
from tandem.control.conditions import Conditions, PairTimes
from tandem.control.controller import Controller
from tandem.control.cost import Plan, expected_tpot_s
from tandem.control.estimates import NO_WARM_START, AcceptanceKnown, Estimates, WarmStart
from tandem.control.schedule import CLOUD_DRAFTS, Control, Schedule, cloud_alone
from tandem.specdec.messages import Work

LIMITS = Schedule(16, 8, verify_on_arrival=True, decode_when_idle=True, token_by_token=True)
ALONE = cloud_alone(LIMITS)
PASS_S = 0.05
ROW_S = 0.002
STEP_S = 0.005


def auto(warm_start: WarmStart = NO_WARM_START) -> Controller:
    controller = Controller(Control.LEAST_COST, LIMITS, warm_start=warm_start, max_tokens=200)
    controller.connected(0.0)
    controller.opened(ROW_S / PASS_S, drafts_in_cloud=True)
    controller.ponged(0.001, 0.0)
    return controller


def after(accepted: list[int], drafts: int, batch_size: int = 1) -> Controller:
    """A controller of `auto` after the first token and these passes of the cloud by itself, each
    over so many drafts of its own of which so many stood."""
    controller = auto()
    now = 0.1
    controller.took_tokens(1, Work(PASS_S, target_passes=1), now)
    for number, stood in enumerate(accepted):
        verify_s = PASS_S + drafts * ROW_S
        now += verify_s + drafts * STEP_S
        work = Work(
            verify_s,
            batch_size=batch_size,
            target_passes=2 + number,
            drafts=drafts,
            draft_s=drafts * STEP_S,
        )
        controller.overtaken(None)
        controller.took_tokens(stood + 1, work, now, accepted=stood)
    return controller


def decided_alone_s(controller: Controller) -> float:
    assert controller.decision is not None
    return controller.decision.alone_tpot_s


def test_a_token_takes_a_pass_and_the_drafting_by_the_tokens_that_are_expected() -> None:
    """Three of four drafts stand on average before one that does not: 25 of 30 are right."""
    controller = after([4, 4, 0, 4, 3, 4, 2, 4] * 3, drafts=4)
    known = controller.estimates.cloud_acceptance.rate
    tokens = sum(known**count for count in range(5))
    expected_s = (PASS_S + 4 * (ROW_S + STEP_S)) / tokens
    assert decided_alone_s(controller) == pytest.approx(expected_s, rel=0.02)
    assert known == pytest.approx(25 / 28, abs=0.1)
    assert controller.estimates.alone_s == pytest.approx(PASS_S, rel=0.02), "without its drafts"


def test_passes_that_had_drafts_count_beside_those_that_had_none() -> None:
    """What is looked up is found now and then: the mean over passes tells what a token takes."""
    conditions = Conditions(
        PairTimes(0.02, PASS_S, ROW_S),
        0.001,
        0.5,
        alone_s=PASS_S,
        cloud_drafts=2.0,
        cloud_tokens=2.5,
    )
    assert expected_tpot_s(Plan(ALONE), conditions) == pytest.approx((PASS_S + 2 * ROW_S) / 2.5)
    estimates = Estimates()
    for number in range(6):
        drafts = 8 * (number % 2)
        estimates.drafted_in_cloud(drafts, 0, drafts * STEP_S, 0.9, float(number))
    assert estimates.cloud_tokens == pytest.approx((1 + sum(0.9**k for k in range(9))) / 2)


def test_what_a_cloud_says_of_its_drafts_counts_more_than_one_session_s_luck() -> None:
    """Of many sessions some have bad luck with their first drafts. Each that left the cloud's for
    its own slowed down those that stayed."""
    told, own = Estimates(), Estimates()
    for number in range(4):
        told.drafted_in_cloud(4, 0, 0.02, 0.9, float(number))
        own.drafted_in_cloud(4, 0, 0.02, 0.0, float(number))
    assert told.cloud_tokens == pytest.approx(sum(0.9**count for count in range(5)))
    assert own.cloud_tokens < 2.5


def test_what_was_looked_up_counts_by_what_of_it_stood() -> None:
    """It takes no time, and is as good as the place in the text: a few chance repeats once made a
    cloud seem faster than it was, and stopped an edge that drafted well."""
    estimates = Estimates()
    for number, stood in enumerate((0, 6, 0)):
        estimates.drafted_in_cloud(8, stood, 0.0, 0.7, float(number))
    assert estimates.cloud_tokens == pytest.approx((1 + 7 + 1) / 3)


def test_without_drafts_each_pass_is_a_reading() -> None:
    assert after([0, 0, 0], drafts=0).estimates.alone_s == pytest.approx(PASS_S)


def test_what_a_busy_cloud_drafts_is_known_too() -> None:
    controller = after([4, 3, 4] * 3, drafts=4, batch_size=8)
    conditions = controller.estimates.conditions(1.0)
    assert conditions is not None
    assert conditions.shared
    assert conditions.cloud_drafts == 4
    assert conditions.cloud_draft_s == pytest.approx(STEP_S)
    assert conditions.cloud_tokens > 3


def known(cloud_drafts: int, *, draft_s: float = 0.03, sharing: float = 1.0) -> WarmStart:
    """What earlier answers measured: drafts of the edge that are as often right as the cloud's, and
    take longer to make."""

    def aged(value: float) -> tuple[tuple[float, float], ...]:
        return ((1.0, value),) * 6

    return WarmStart(
        draft=aged(draft_s),
        first=aged(PASS_S),
        first_busy=aged(PASS_S),
        alone=aged(PASS_S),
        alone_pass=aged(PASS_S),
        trip=aged(0.02)[:1],
        row_share=ROW_S / PASS_S,
        acceptance=AcceptanceKnown(0.8, 40),
        cloud_drafts=aged(cloud_drafts),
        cloud_draft=aged(STEP_S),
        cloud_tokens=aged(tokens_per_pass(0.8, cloud_drafts)),
        cloud_acceptance=AcceptanceKnown(0.8, 40),
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
    controller = auto(known(4))
    controller.opened(ROW_S / PASS_S)
    controller.took_tokens(1, Work(PASS_S, target_passes=1), 0.1)
    assert controller.schedule.window > 0


def test_an_answer_that_the_cloud_may_not_draft_for_leaves_what_is_known_of_its_drafts() -> None:
    """Between two answers of `auto` the caller asks for one by another preset of the same cloud.
    Once that made the next answer believe that the cloud brings a token a pass."""
    between = Controller(Control.FIXED, ALONE, warm_start=known(4), max_tokens=200)
    between.connected(0.0)
    between.opened(ROW_S / PASS_S)
    for number in range(8):
        between.took_tokens(1, Work(PASS_S, target_passes=1 + number), 0.1 + number * PASS_S)
    assert auto(between.estimates.snapshot(1.0)).schedule == ALONE


def test_drafts_that_are_looked_up_by_a_cloud_with_a_model_say_nothing_of_those_by_it() -> None:
    between = Controller(Control.FIXED, ALONE, warm_start=known(4), max_tokens=200)
    between.connected(0.0)
    between.opened(ROW_S / PASS_S, drafts_in_cloud=True)
    for number in range(8):
        between.took_tokens(1, Work(PASS_S, target_passes=1 + number), 0.1 + number * PASS_S)
    assert auto(between.estimates.snapshot(1.0)).schedule == ALONE


def test_what_the_cloud_drafts_is_measured_first_where_only_it_is_unknown() -> None:
    """After answers of `ar` alone: a token of the cloud alone is known, its drafts are not."""
    unknown = replace(known(4), cloud_drafts=(), cloud_draft=(), cloud_tokens=())
    controller = auto(unknown)
    assert controller.decision is None
    assert controller.schedule == ALONE
    without = Controller(Control.LEAST_COST, LIMITS, warm_start=unknown, max_tokens=200)
    without.connected(0.0)
    without.opened(ROW_S / PASS_S)
    without.ponged(0.001, 0.0)
    assert without.schedule.window > 0


def test_fast_drafts_of_the_edge_are_sent_to_a_cloud_that_drafts_too() -> None:
    assert auto(known(4, draft_s=0.001)).schedule.window > 0


def test_under_load_the_edges_draft_where_the_cloud_s_steps_take_long() -> None:
    """A step over the texts of many sessions delays all of them; an edge's delays nobody."""
    conditions = Conditions(
        PairTimes(0.008, PASS_S, 0.0004),
        0.001,
        0.8,
        sharing=8.0,
        cloud_drafts=4.0,
        cloud_draft_s=0.014,
        cloud_tokens=sum(0.8**count for count in range(5)),
    )
    stream = Plan(replace(LIMITS, window=8))
    assert expected_tpot_s(stream, conditions) < expected_tpot_s(Plan(ALONE), conditions)


def test_what_was_measured_of_the_cloud_s_drafts_is_kept_for_the_next_answer() -> None:
    kept = after([4, 3, 4, 2] * 3, drafts=4).estimates.snapshot(2.0)
    again = Estimates(kept, 3.0).conditions(3.0)
    assert again is not None
    assert again.cloud_drafts == 4
    assert again.cloud_draft_s == pytest.approx(STEP_S)
    assert again.cloud_tokens > 3
