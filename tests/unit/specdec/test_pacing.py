"""What a request measures of its pair and its link, and the schedule it continues with."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from tandem.specdec.choices import Control
from tandem.specdec.messages import Tokens, Work
from tandem.specdec.pacing import Pacing
from tandem.specdec.presets import PRESETS
from tandem.specdec.profile import Earlier, Profile
from tandem.specdec.schedule_choice import Reason
from tandem.specdec.scheduling import schedule_for
from tandem.specdec.seen_times import Kind, Seen
from tests.unit.specdec.measured_sessions import answered, frame, measured, paced, seen, verdict


def test_nothing_is_known_until_every_time_was_seen() -> None:
    profile = Profile()
    assert profile.measured is None
    profile.drafted(2, 0.04)
    assert profile.measured is None
    profile.passed(Work(verify_s=0.0, drafts=2))
    assert profile.measured is None, "no pass took place"
    profile.passed(Work(verify_s=0.05, drafts=2))
    assert profile.measured is None
    profile.sent(frame(5), 1.0)
    profile.answered(7, Work(verify_s=0.05, drafts=2), 1.2)
    assert profile.measured is not None


def test_earlier_requests_give_the_first_schedule_and_this_one_takes_over() -> None:
    preset = PRESETS["stream"]
    slow = Earlier(draft_s=0.02, verify_s=0.05, rtt_s=0.3, acceptance_rate=0.1)
    assert Pacing(preset, replace(slow, rtt_s=None)).schedule == preset.schedule, "not enough known"
    assert Pacing(PRESETS["dssd"], slow).schedule == PRESETS["dssd"].schedule, "fixed stays fixed"
    pacing = Pacing(preset, slow)
    assert pacing.schedule.window == 0
    pacing.connected()
    assert pacing.schedule.window == 0
    profile = Profile(slow)
    assert measured(profile).acceptance_rate == pytest.approx(0.1)
    profile.drafted(2, 0.04)
    profile.sent(frame(5), 1.0)
    profile.answered(7, Work(verify_s=0.04, drafts=2), 1.05)
    for _ in range(40):
        profile.judged(8, 0)
    found = measured(profile)
    assert (found.rtt_s, found.pair.verify_first_s) == pytest.approx((0.01, 0.04))
    assert found.acceptance_rate > 0.9


def test_times_of_one_draft_one_pass_and_one_round_trip() -> None:
    found = measured(seen())
    assert found.pair.draft_s == pytest.approx(0.02)
    assert found.pair.verify_first_s == pytest.approx(0.05)
    assert found.pair.verify_further_s == 0.0, "of one size of passes nothing else is known"
    assert found.rtt_s == pytest.approx(0.03)


def test_waiting_for_the_engine_is_no_round_trip() -> None:
    profile = seen()
    profile.sent(frame(7), 2.0)
    profile.answered(9, Work(verify_s=0.05, drafts=2, queue_s=0.4), 2.46)
    assert measured(profile).rtt_s == pytest.approx(0.01)


def test_the_shortest_of_recent_round_trips_counts_and_none_is_negative() -> None:
    profile = seen()
    profile.sent(frame(7), 2.0)
    profile.answered(9, Work(verify_s=0.05, drafts=2), 2.5)
    assert measured(profile).rtt_s == pytest.approx(0.03)
    profile.sent(frame(9), 3.0)
    profile.answered(11, Work(verify_s=0.05, drafts=2), 3.01)
    assert measured(profile).rtt_s == 0.0


def test_an_answer_is_measured_from_the_last_frame_that_it_judges() -> None:
    profile = seen(rtt_s=0.5)
    for base, now in ((7, 2.0), (9, 2.1), (11, 2.15)):
        profile.sent(frame(base), now)
    profile.answered(11, Work(verify_s=0.05, drafts=4), 2.35)
    assert measured(profile).rtt_s == pytest.approx(0.2)
    profile.answered(12, Work(verify_s=0.05, drafts=1), 2.36)
    assert measured(profile).rtt_s == pytest.approx(0.16), (
        "the third was there: its first is judged"
    )


@pytest.mark.parametrize("forget", [Profile.connected, Profile.discarded])
def test_what_will_not_be_answered_is_no_round_trip(forget: object) -> None:
    profile = seen()
    profile.sent(frame(7), 2.0)
    forget(profile)  # type: ignore[operator]
    profile.answered(9, Work(verify_s=0.05, drafts=2), 2.06)
    assert measured(profile).rtt_s == pytest.approx(0.03)


def test_passes_of_two_sizes_tell_the_cost_of_a_further_draft() -> None:
    profile = seen(verify_s=0.05)
    for _ in range(20):
        profile.passed(Work(verify_s=0.05, drafts=2))
        profile.passed(Work(verify_s=0.08, drafts=8))
    pair = measured(profile).pair
    assert pair.verify_further_s == pytest.approx(0.005, rel=0.02)
    assert pair.verify_first_s == pytest.approx(0.04, rel=0.02)


def test_a_further_draft_never_costs_less_than_nothing() -> None:
    profile = seen(verify_s=0.08)
    for _ in range(20):
        profile.passed(Work(verify_s=0.08, drafts=2))
        profile.passed(Work(verify_s=0.05, drafts=8))
    pair = measured(profile).pair
    assert pair.verify_further_s == 0.0
    assert 0.05 < pair.verify_first_s < 0.08


def test_acceptance_follows_what_was_judged() -> None:
    profile = seen()
    first = measured(profile).acceptance_rate
    profile.judged(4, 0)
    better = measured(profile).acceptance_rate
    profile.judged(0, 1)
    assert first < better
    assert measured(profile).acceptance_rate < better
    for _ in range(200):
        profile.judged(3, 1)
    assert measured(profile).acceptance_rate == pytest.approx(0.75, abs=0.02)


def test_without_drafts_to_judge_the_estimate_goes_back_to_what_is_assumed() -> None:
    fresh, profile = seen(), seen()
    for _ in range(100):
        profile.judged(0, 1)
    low = measured(profile).acceptance_rate
    profile.unjudged(5)
    assert low < measured(profile).acceptance_rate < measured(fresh).acceptance_rate
    profile.unjudged(10_000)
    assert measured(profile).acceptance_rate == pytest.approx(measured(fresh).acceptance_rate)


def test_a_verdict_gives_the_schedule_that_was_measured() -> None:
    pacing = paced()
    assert pacing.schedule == PRESETS["stream"].schedule
    assert pacing.chunk_budget_s == float("inf")
    pacing.take_verdict(verdict(), 1.1)
    found = measured(pacing.profile)
    assert found.rtt_s == pytest.approx(0.03)
    assert pacing.schedule == schedule_for(
        replace(PRESETS["stream"], control=Control.LATENCY_AWARE), found
    )
    assert pacing.schedule != PRESETS["stream"].schedule
    assert 0 < pacing.chunk_budget_s < 10
    pacing.connected()
    assert pacing.schedule == PRESETS["stream"].schedule, "another cloud, measured anew"


def test_a_rejected_token_is_judged_with_the_accepted() -> None:
    whole, cut = paced(), paced()
    whole.take_verdict(verdict(accepted=2), 1.1)
    cut.take_verdict(verdict(accepted=1, rejected=True), 1.1)
    assert measured(cut.profile).acceptance_rate < measured(whole.profile).acceptance_rate
    assert measured(cut.profile).rtt_s == measured(whole.profile).rtt_s, "it ends the same frame"


def test_a_token_of_the_cloud_is_a_draft_that_was_right_or_wrong_or_missing() -> None:
    rates = {}
    for agreed in (True, None, False):
        pacing = paced()
        for _ in range(20):
            pacing.take_verdict(verdict(accepted=3, rejected=True), 1.1)
        for _ in range(5):
            pacing.overtaken(agreed)
        rates[agreed] = measured(pacing.profile).acceptance_rate
    assert rates[False] < rates[None] < rates[True]


def test_a_token_tells_what_its_pass_cost() -> None:
    pacing = paced()
    pacing.take_verdict(verdict(), 1.1)
    before = measured(pacing.profile).pair.verify_first_s
    pacing.take_tokens(Tokens(1, 0, 7, 9, (4,), Work(verify_s=0.7, drafts=0)), 1.2)
    assert measured(pacing.profile).pair.verify_first_s > before


def test_a_cloud_that_waits_for_a_draft_gets_one() -> None:
    """Drafts that take longer than passes are not worth it, unless the cloud was told to wait."""
    for hold, window in ((True, 1), (False, 0)):
        pacing = Pacing(PRESETS["stream"])
        pacing.connected()
        pacing.drafted(1, 5.0)
        pacing.sent([frame(5, hold=hold)], 1.0)
        pacing.take_verdict(verdict(), 1.1)
        assert pacing.schedule.window == window
        assert pacing.schedule.chunk == 1 or not hold


def test_a_fixed_schedule_stays_whatever_is_measured_for_later_requests() -> None:
    pacing = paced(Control.FIXED)
    assert not pacing.on
    pacing.take_verdict(verdict(), 1.1)
    pacing.take_tokens(Tokens(1, 0, 7, 9, (4,), Work(verify_s=0.07)), 1.2)
    pacing.overtaken(False)
    assert pacing.profile.own.verify_s == pytest.approx(0.07)
    assert pacing.schedule == PRESETS["stream"].schedule
    assert not Pacing(PRESETS["ar"]).on


def test_a_fresh_stream_s_cloud_waits_for_nothing() -> None:
    """It was never asked to: drafts that do not pay are not made for it."""
    pacing = Pacing(PRESETS["stream"])
    pacing.drafted(1, 5.0)
    pacing.sent([frame(5, hold=True)], 1.0)
    pacing.connected()
    pacing.profile.sent(frame(5), 2.0)
    pacing.take_verdict(verdict(), 2.1)
    assert pacing.schedule.window == 0


def test_outcomes_are_drafted_for_unless_that_is_to_be_chosen_first() -> None:
    assert Pacing(PRESETS["stream"]).branches
    assert not Pacing(replace(PRESETS["stream"], control=Control.LEAST_COST)).branches


def test_no_cloud_waits_for_a_draft_before_one_was_sent() -> None:
    pacing = Pacing(PRESETS["stream"])
    pacing.drafted(1, 5.0)
    pacing.profile.sent(frame(5), 1.0)
    pacing.take_verdict(verdict(), 1.1)
    assert pacing.schedule.window == 0


def test_later_requests_begin_with_a_pass_over_one_token() -> None:
    """Once with the mean of all passes, drafts and all: then the cloud alone seemed slow."""
    profile = seen(verify_s=0.06)
    for _ in range(20):
        for drafts in (2, 8):
            profile.passed(Work(verify_s=0.04 + 0.01 * drafts, drafts=drafts))
    assert profile.own.verify_s == pytest.approx(0.04, rel=0.05)
    later = Profile(replace(profile.own, queue_s=None))
    assert measured(later).pair.verify_first_s == profile.own.verify_s
    assert measured(later).pair.verify_further_s == pytest.approx(0.01, rel=0.05)


def test_the_prompt_s_pass_tells_nothing_of_the_schedule_in_use() -> None:
    """It was counted as one of the cloud alone, where a request began with that."""
    pacing = Pacing(PRESETS["auto"], Earlier(5.0, 0.05, 0.03, 0.3))
    for number in range(4):
        work = Work(verify_s=0.05 if number else 0.4, target_passes=number + 1)
        pacing.take_tokens(Tokens(1, 0, 7 + number, 9, (4,), work), 2.0 + 0.05 * number)
    ((kind, alone),) = pacing.profile.seen.of_kinds.items()
    assert (kind, alone.passes) == ("cloud_alone", 3)
    assert alone.pass_s == pytest.approx(0.05)


FAIR = Earlier(draft_s=0.02, verify_s=0.05, rtt_s=0.001, acceptance_rate=0.6, further_share=0.1)
"""Drafting pays, but not twice."""


def test_what_drafting_is_to_be_better_than_is_seen_first() -> None:
    """Passes beside drafts take 50 ms, those of the cloud alone 30: nothing else could tell."""
    pacing, clock = Pacing(PRESETS["auto"], FAIR), count()
    assert pacing.decision is not None
    assert (pacing.decision.words, pacing.decision.reason) == ("the cloud alone", Reason.TRIAL)
    assert not pacing.branches
    answered(pacing, 3, clock, every_s=0.03)
    assert pacing.decision.reason is Reason.TRIAL, "the first answer is another schedule's"
    answered(pacing, 1, clock, every_s=0.03)
    assert pacing.decision.reason is not Reason.TRIAL
    assert pacing.decision.alone_tpot_s == pytest.approx(0.03, rel=0.01)
    assert pacing.decisions[Reason.TRIAL] == 1
    again = Pacing(PRESETS["auto"], replace(FAIR, seen=pacing.profile.own.seen))
    assert not again.decisions[Reason.TRIAL], "the next request knows it"


@pytest.mark.parametrize(
    "known",
    [
        replace(FAIR, acceptance_rate=None),
        replace(FAIR, acceptance_rate=0.95, draft_s=0.002, further_share=0.01),
        replace(FAIR, draft_s=5.0),
    ],
)
def test_the_cloud_alone_is_not_tried_where_it_is_chosen_or_too_slow_or_nothing_is_known(
    known: Earlier,
) -> None:
    assert not Pacing(PRESETS["auto"], known).decisions[Reason.TRIAL]


def test_a_trial_ends_where_others_share_the_passes() -> None:
    pacing = Pacing(PRESETS["auto"], FAIR)
    for number in range(8):
        work = Work(verify_s=0.05, batch_size=4)
        pacing.take_tokens(Tokens(1, 0, 7 + number, 9, (4,), work), 2.0 + 0.05 * number)
    assert pacing.decision is not None
    assert pacing.decision.reason is not Reason.TRIAL


def test_where_drafting_slows_passes_no_draft_is_made_beside_them() -> None:
    alone, ahead = Seen(passes=3, pass_s=0.05), Seen(passes=9, pass_s=0.09)
    quiet = replace(FAIR, seen=((Kind.CLOUD_ALONE, alone),))
    slowed = replace(FAIR, seen=((Kind.CLOUD_ALONE, alone), (Kind.ROUNDS_AHEAD, ahead)))
    assert Pacing(PRESETS["auto"], quiet).ahead
    pacing = Pacing(PRESETS["auto"], slowed)
    assert (pacing.ahead, pacing.branches) == (False, False)


def test_acceptance_that_was_low_is_forgotten_slowly() -> None:
    """After sixty tokens without a draft it was believed to be half."""
    profile = Profile(replace(FAIR, acceptance_rate=0.1))
    profile.unjudged(60)
    assert measured(profile).acceptance_rate < 0.3
    for _ in range(2000):
        profile.unjudged(1)
    assert measured(profile).acceptance_rate == pytest.approx(0.7, abs=0.01)


def test_what_a_schedule_took_is_compared_with_what_was_expected_of_it() -> None:
    """Passes of 50 ms, and yet a token comes every 150 ms: messages cost more than passes."""
    known = Earlier(draft_s=5.0, verify_s=0.05, rtt_s=0.03, acceptance_rate=0.3)
    pacing = Pacing(PRESETS["auto"], known)
    assert pacing.decision is not None
    assert pacing.decision.alone_tpot_s == pytest.approx(0.05)
    for number in range(40):
        message = Tokens(1, 0, 7 + number, 9, (4,), Work(verify_s=0.05, drafts=0))
        pacing.take_tokens(message, 2.0 + 0.15 * number)
    ((kind, (tokens, seconds)),) = pacing.profile.seen.totals.items()
    assert kind == "cloud_alone"
    assert seconds / tokens == pytest.approx(0.15)
    assert pacing.decision.alone_tpot_s > 0.1
    assert dict(pacing.profile.own.seen)[kind].factor() > 2
    again = Pacing(PRESETS["auto"], replace(known, seen=pacing.profile.own.seen))
    assert again.decision is not None
    assert again.decision.alone_tpot_s > 0.1, "the next request knows it"


def test_tokens_across_a_lost_stream_tell_nothing() -> None:
    pacing = Pacing(PRESETS["auto"], Earlier(5.0, 0.05, 0.03, 0.3))
    for number in range(4):
        pacing.take_tokens(Tokens(1, 0, 7, 9, (4,), Work(verify_s=0.05)), 2.0 + 0.05 * number)
    pacing.connected()
    for number in range(20):
        pacing.take_tokens(Tokens(1, 0, 7, 9, (4,), Work(verify_s=0.05)), 90.0 + 0.05 * number)
    ((tokens, seconds),) = pacing.profile.seen.totals.values()
    assert seconds / tokens == pytest.approx(0.05)
