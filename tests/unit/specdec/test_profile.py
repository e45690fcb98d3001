"""How fast a request's measurements follow what happens, and how much of the past they keep."""

from __future__ import annotations

import numpy as np
import pytest

from tandem.specdec.messages import Draft, Work
from tandem.specdec.profile import Earlier, Profile
from tandem.specdec.scheduling import PairTimes
from tandem.specdec.seen_times import Kind
from tests.unit.specdec.measured_sessions import measured

FAST = Work(verify_s=0.05, drafts=2)


def frame(end: int) -> Draft:
    return Draft(1, 0, end - 1, 9, (0,), end_of_chunk=True)


def trip(profile: Profile, end: int, rtt_s: float, work: Work = FAST) -> None:
    profile.sent(frame(end), 10.0)
    profile.answered(end, work, 10.0 + rtt_s + work.verify_s + work.queue_s)


def seen(work: Work = FAST) -> Profile:
    profile = Profile()
    profile.drafted(2, 0.04)
    trip(profile, 1, 0.03, work)
    return profile


def test_a_draft_step_moves_the_estimate_by_a_tenth_of_the_way() -> None:
    profile = seen()
    profile.drafted(1, 0.04)
    assert measured(profile).pair.draft_s == pytest.approx(0.022)


def test_a_draft_step_that_waited_for_other_programs_counts_as_three() -> None:
    """Also a request's first one, where earlier requests say what is usual."""
    profile = seen()
    profile.drafted(1, 5.0)
    assert measured(profile).pair.draft_s == pytest.approx(0.02 + 0.1 * 0.04)
    later = Profile(Earlier(draft_s=0.02, verify_s=0.05, rtt_s=0.03))
    later.drafted(1, 5.0)
    assert measured(later).pair.draft_s == pytest.approx(0.04 + 0.1 * 0.02)


@pytest.mark.parametrize(("later", "shortest"), [(31, 0.01), (32, 0.03)])
def test_the_shortest_round_trip_is_forgotten_after_32_others(later: int, shortest: float) -> None:
    profile = seen()
    trip(profile, 2, 0.01)
    for end in range(3, 3 + later):
        trip(profile, end, 0.03)
    assert measured(profile).rtt_s == pytest.approx(shortest)


@pytest.mark.parametrize(("frames", "shortest"), [(128, 0.01), (129, 0.03)])
def test_of_unanswered_frames_the_last_128_are_remembered(frames: int, shortest: float) -> None:
    profile = seen()
    for end in range(2, 2 + frames):
        profile.sent(frame(end), 10.0)
    profile.answered(2, FAST, 10.0 + 0.01 + FAST.verify_s)
    assert measured(profile).rtt_s == pytest.approx(shortest)


def test_a_frame_that_an_answer_judged_in_part_waits_for_the_next() -> None:
    profile = seen()
    profile.sent(frame(5), 10.0)
    profile.answered(4, FAST, 10.0 + FAST.verify_s)
    assert measured(profile).rtt_s == pytest.approx(0.03)
    profile.answered(5, FAST, 10.0 + 0.02 + FAST.verify_s)
    assert measured(profile).rtt_s == pytest.approx(0.02)


def test_the_first_guess_of_acceptance_weighs_four_tokens_and_fades() -> None:
    profile = seen()
    assert measured(profile).acceptance_rate == pytest.approx(0.7)
    profile.judged(3, 1)
    kept = 0.97**4
    assert measured(profile).acceptance_rate == pytest.approx((kept * 2.8 + 3) / (kept * 4 + 4))


def test_what_was_judged_fades_towards_the_first_guess_without_drafts() -> None:
    profile = seen()
    profile.judged(0, 4)
    kept, aged = 0.97**4, 0.97**10
    accepted, judged = kept * 2.8, kept * 4 + 4
    profile.unjudged(10)
    expected = (aged * accepted + (1 - aged) * 2.8) / (aged * judged + (1 - aged) * 4)
    assert measured(profile).acceptance_rate == pytest.approx(expected)


def test_the_cost_of_a_pass_is_a_line_through_the_recent_ones() -> None:
    profile = seen()
    for first_s, further_s in ((0.03, 0.01), (0.06, 0.02)):
        for _ in range(30):
            for drafts in (2, 4, 3, 8):
                profile.passed(Work(verify_s=first_s + drafts * further_s, drafts=drafts))
        pair = measured(profile).pair
        found = pair.verify_first_s, pair.verify_further_s
        assert found == pytest.approx((first_s, further_s), rel=0.02)


def test_few_passes_do_not_outweigh_what_many_told_of_a_further_draft() -> None:
    """Ten passes of two sizes of which one took long: by themselves they say 13 ms a draft."""
    known = Earlier(draft_s=0.02, verify_s=0.05, rtt_s=0.03, further_share=0.04)
    profile = Profile(known)
    for number in range(10):
        took_s = 0.125 if number == 9 else 0.05
        profile.passed(Work(verify_s=took_s, drafts=5 if number % 3 == 0 else 4))
    pair = measured(profile).pair
    assert pair.verify_further_s < 0.008
    assert profile.own.further_share < 0.1


def test_passes_of_one_size_have_the_share_that_earlier_ones_told() -> None:
    profile = Profile(Earlier(draft_s=0.02, verify_s=0.05, rtt_s=0.03, further_share=0.25))
    assert measured(profile).pair == PairTimes(0.02, 0.05, 0.0125)
    for _ in range(40):
        profile.passed(Work(verify_s=0.08, drafts=4))
    assert measured(profile).pair.verify_first_s == pytest.approx(0.04)
    assert profile.own.further_share == pytest.approx(0.25)


def test_passes_of_nearly_one_size_tell_nothing_of_a_further_draft() -> None:
    """One pass of another size among many is no line."""
    profile = seen(Work(verify_s=0.08, drafts=3))
    for _ in range(20):
        profile.passed(Work(verify_s=0.05, drafts=2))
    weights = 0.9 ** np.arange(21)
    mean = np.average([0.05] * 20 + [0.08], weights=weights)
    pair = measured(profile).pair
    assert (pair.verify_further_s, pair.verify_first_s) == pytest.approx((0.0, mean))


def test_a_pass_over_no_drafts_costs_at_least_as_much_as_a_further_draft() -> None:
    profile = seen(Work(verify_s=0.01, drafts=2))
    for _ in range(40):
        for drafts, verify_s in ((2, 0.01), (8, 0.16)):
            profile.passed(Work(verify_s=verify_s, drafts=drafts))
    pair = measured(profile).pair
    assert 0.01 < pair.verify_further_s <= pair.verify_first_s


def test_a_pass_takes_a_microsecond_at_least() -> None:
    assert measured(seen(Work(verify_s=1e-9, drafts=2))).pair.verify_first_s == 1e-6


def test_a_correction_that_had_been_drafted_for_moves_the_hit_rate_by_a_tenth() -> None:
    profile = seen()
    assert measured(profile).hit_rate == 0.0
    profile.resolved(hit=True)
    assert measured(profile).hit_rate == pytest.approx(0.1)
    profile.resolved(hit=False)
    assert measured(profile).hit_rate == pytest.approx(0.09)


def test_later_requests_begin_with_the_share_of_drafts_that_stood() -> None:
    """Of what was judged, and without the guess that this request began with."""
    profile = seen()
    assert profile.own.acceptance_rate is None
    profile.judged(3, 1)
    profile.judged(4, 0)
    assert profile.own.acceptance_rate == pytest.approx(7 / 8)


def test_branches_beside_a_step_tell_how_much_longer_it_takes_and_not_how_long() -> None:
    profile = seen()
    for _ in range(60):
        profile.drafted(1, 0.06, branches=True)
    found = measured(profile)
    assert found.pair.draft_s == pytest.approx(0.02)
    assert found.branching == pytest.approx(3.0, rel=0.02)
    assert profile.own.branching == found.branching


def test_a_pass_that_waited_for_other_programs_counts_as_three() -> None:
    profile = seen()
    for _ in range(9):
        profile.passed(FAST)
    profile.passed(Work(verify_s=5.0, drafts=2))
    assert measured(profile).pair.verify_first_s < 0.05 + 0.1 * 0.16


def test_few_round_trips_do_not_outweigh_what_earlier_requests_measured() -> None:
    profile = Profile(Earlier(rtt_s=0.01))
    profile.drafted(2, 0.04)
    for end in range(1, 13):
        assert end == 1 or measured(profile).rtt_s == pytest.approx(0.01)
        trip(profile, end, 0.03)
    assert measured(profile).rtt_s == pytest.approx(0.03)


def test_a_draft_step_that_was_slow_is_believed_to_be_faster_while_none_is_made() -> None:
    """The first one of a process takes long; nobody would try another."""
    profile = seen()
    profile.unjudged(100)
    assert measured(profile).pair.draft_s == pytest.approx(0.02 * 0.995**100)
    assert profile.own.undrafted == 100
    again = Profile(profile.own)
    assert measured(again).pair.draft_s == pytest.approx(0.02 * 0.995**100)
    again.drafted(1, 0.02)
    assert measured(again).pair.draft_s == pytest.approx(0.02)


def test_the_first_steps_and_passes_of_a_process_are_forgotten() -> None:
    profile = Profile()
    profile.drafted(1, 0.5)
    profile.passed(Work(verify_s=0.6, drafts=2))
    trip(profile, 1, 0.03)
    assert measured(profile).pair == PairTimes(0.5, 0.05, 0.0)
    profile.drafted(2, 0.04)
    assert measured(profile).pair.draft_s == pytest.approx(0.02)
    assert profile.own.further_share == 0.0


def test_one_round_trip_of_a_process_is_no_measurement_yet() -> None:
    assert seen().begins_cold
    twice = seen()
    trip(twice, 2, 0.03)
    assert not twice.begins_cold
    assert not Profile(Earlier(rtt_s=0.03)).begins_cold


def test_a_round_trip_of_which_few_were_measured_may_have_become_shorter() -> None:
    """A process's first ones take long, and who never drafts measures no more."""
    profile = seen()
    profile.unjudged(50)
    assert measured(profile).rtt_s == pytest.approx(0.03 * 0.97**50)
    again = Profile(profile.own)
    assert measured(again).rtt_s == pytest.approx(0.03 * 0.97**50)
    for end in range(2, 14):
        trip(profile, end, 0.03)
    assert measured(profile).rtt_s == pytest.approx(0.03)


def test_the_pass_that_takes_the_prompt_tells_nothing_of_a_further_token() -> None:
    """It took a prompt of 40 tokens and no draft: fitted with the others, drafts cost nothing."""
    profile = seen(Work(verify_s=0.1, target_passes=1))
    assert profile.measured is None
    for number in range(24):
        drafts = 1 + number % 4
        work = Work(verify_s=0.024 + 0.0018 * drafts, target_passes=2 + number, drafts=drafts)
        trip(profile, 2 + number, 0.03, work)
    pair = measured(profile).pair
    assert pair.verify_first_s == pytest.approx(0.024, rel=0.1)
    assert pair.verify_further_s == pytest.approx(0.0018, rel=0.4)


def test_acceptance_is_a_guess_until_most_of_a_few_drafts_are_right_or_many_are_judged() -> None:
    assert measured(seen()).guesses_acceptance
    right = seen()
    right.judged(1, 0)
    assert not measured(right).guesses_acceptance
    right.judged(0, 1)
    assert measured(right).guesses_acceptance, "one of two"
    right.judged(1, 0)
    assert not measured(right).guesses_acceptance, "two of three"
    wrong = seen()
    wrong.judged(0, 15)
    assert measured(wrong).guesses_acceptance
    wrong.judged(0, 1)
    assert not measured(wrong).guesses_acceptance
    assert not measured(Profile(Earlier(0.02, 0.05, 0.03, 0.4))).guesses_acceptance


def test_a_link_that_became_slow_is_believed_so_after_two_seconds() -> None:
    """The shortest of 32 round trips was believed until the last one of a fast link was forgotten,
    and a slow link has few."""
    profile = Profile()
    profile.drafted(1, 0.02)
    for number in range(20):
        profile.sent(frame(number + 1), 0.1 * number)
        profile.answered(number + 1, FAST, 0.1 * number + 0.06)
    for number, base in enumerate(range(21, 29)):
        sent_s = 2.0 + 0.5 * number
        profile.sent(frame(base), sent_s)
        profile.answered(base, FAST, sent_s + 0.35)
        assert measured(profile).rtt_s == pytest.approx(0.3 if number > 3 else 0.01)
    later_s = 600.0
    profile.sent(frame(30), later_s)
    profile.answered(30, FAST, later_s + 9.05)
    assert measured(profile).rtt_s == pytest.approx(0.3), "the last few tell in any case"


def test_passes_that_run_beside_drafts_say_nothing_of_a_further_draft() -> None:
    """Over two drafts they take 60 ms, and alone 30: the drafts are 5 ms of that."""
    profile = Profile(Earlier(draft_s=0.02, verify_s=0.03, rtt_s=0.03, further_share=0.15))
    for _ in range(20):
        profile.passed(Work(verify_s=0.03))
    profile.regrouped()
    for _ in range(20):
        profile.passed(Work(verify_s=0.065, drafts=2))
    assert profile.further_share == pytest.approx(0.15, abs=0.01)


def test_a_pass_that_a_kind_of_schedule_slows_is_slowed_with_each_of_its_tokens() -> None:
    profile = Profile(Earlier(draft_s=0.02, verify_s=0.05, rtt_s=0.03, further_share=0.2))
    profile.seen.passed(Kind.ROUNDS, 0.05)
    for _ in range(6):
        profile.seen.passed(Kind.STREAM, 0.1)
    found = measured(profile)
    slowed, usual = found.pairs[Kind.STREAM], found.pair
    assert slowed.verify_first_s == pytest.approx(0.1)
    assert usual.verify_further_s == pytest.approx(0.2 * usual.verify_first_s)
    assert slowed.verify_further_s == pytest.approx(0.2 * slowed.verify_first_s)
