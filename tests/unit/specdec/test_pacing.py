"""What a request measures of its pair and its link, and the schedule it continues with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import count, cycle

import pytest

from tandem.specdec.choices import Control, Schedule
from tandem.specdec.messages import Draft, Tokens, Verdict, Work
from tandem.specdec.objective import Objective
from tandem.specdec.pacing import Pacing
from tandem.specdec.presets import PRESETS
from tandem.specdec.profile import Earlier, Profile
from tandem.specdec.schedule_choice import Decision, Reason
from tandem.specdec.schedule_outlook import Outlooks
from tandem.specdec.scheduling import Measured, schedule_for
from tandem.specdec.seen_times import Kind, Seen, SeenTimes


def frame(base: int, count: int = 2, hold: bool = False) -> Draft:
    return Draft(1, 0, base, 9, tuple(range(count)), end_of_chunk=True, hold=hold)


def measured(profile: Profile) -> Measured:
    found = profile.measured
    assert found is not None
    return found


def seen(draft_s: float = 0.02, verify_s: float = 0.05, rtt_s: float = 0.03) -> Profile:
    """A profile in which everything was seen once."""
    profile = Profile()
    profile.drafted(2, 2 * draft_s)
    profile.sent(frame(5), 1.0)
    profile.answered(7, Work(verify_s=verify_s, drafts=2), 1.0 + rtt_s + verify_s)
    return profile


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


def paced(control: Control = Control.LATENCY_AWARE) -> Pacing:
    """Something was drafted and sent; an answer to it is missing."""
    pacing = Pacing(replace(PRESETS["stream"], control=control))
    pacing.connected()
    pacing.drafted(2, 0.04)
    pacing.sent([frame(5)], 1.0)
    return pacing


def verdict(accepted: int = 2, rejected: bool = False, base: int = 5) -> Verdict:
    work = Work(verify_s=0.07, drafts=2)
    return Verdict(1, 0, base, 9, accepted, rejected, 3 if rejected else None, work)


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


KNOWN = Earlier(draft_s=0.02, verify_s=0.05, rtt_s=0.03, acceptance_rate=0.6)


class Choices:
    """In the place of `choose`: gives windows in turn, and remembers how dear a change was."""

    def __init__(self, settled: bool, windows: Sequence[int] = (4,)) -> None:
        self.stays: list[float] = []
        self._settled, self._windows = settled, cycle(windows)

    def __call__(
        self,
        limits: Schedule,
        found: Measured,
        weight: float,
        before: Decision | None,
        outlooks: Outlooks,
        seen: SeenTimes,
        stays: float,
        objective: Objective,
    ) -> Decision:
        outlooks.settled = self._settled
        self.stays.append(stays)
        window = next(self._windows)
        schedule = replace(limits, window=window, chunk=window)
        return Decision(schedule, False, 0.03, 0.05, Reason.FIRST, found, {})


def answered(pacing: Pacing, count: int, clock: Iterator[int], every_s: float = 0.05) -> None:
    for _, number in zip(range(count), clock, strict=False):
        message = Tokens(1, 0, 7 + number, 9, (4,), Work(verify_s=every_s))
        pacing.take_tokens(message, 2.0 + every_s * number)


def test_a_settled_choice_is_looked_at_again_after_six_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    choices = Choices(settled=True)
    monkeypatch.setattr("tandem.specdec.pacing.choose", choices)
    pacing = Pacing(PRESETS["auto"], KNOWN)
    assert len(choices.stays) == 1
    clock = count()
    for answers, chosen in ((5, 1), (1, 2), (5, 2), (1, 3)):
        answered(pacing, answers, clock)
        assert len(choices.stays) == chosen


def test_what_is_not_followed_yet_is_followed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each answer for twelve choices, then after each third."""
    choices = Choices(settled=False)
    monkeypatch.setattr("tandem.specdec.pacing.choose", choices)
    pacing = Pacing(PRESETS["auto"], KNOWN)
    clock = count()
    for answers, chosen in ((12, 13), (2, 13), (1, 14), (2, 14), (1, 15)):
        answered(pacing, answers, clock)
        assert len(choices.stays) == chosen


def test_answers_that_come_fast_are_not_each_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A choice takes a part of a millisecond: one in 30 ms is enough."""
    choices = Choices(settled=False)
    monkeypatch.setattr("tandem.specdec.pacing.choose", choices)
    pacing = Pacing(PRESETS["auto"], KNOWN)
    answered(pacing, 300, count(), every_s=0.001)
    assert 2 + 8 <= len(choices.stays) <= 2 + 300 / 30


def test_each_change_makes_the_next_one_dearer_and_that_fades(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    choices = Choices(settled=False, windows=[4, 8, 4, 8, 8, 8, 8])
    monkeypatch.setattr("tandem.specdec.pacing.choose", choices)
    pacing = Pacing(PRESETS["auto"], KNOWN)
    answered(pacing, 6, count())
    dearer = [0.95 - stays for stays in choices.stays]
    assert dearer == pytest.approx([0, 0, 0.04, 0.0772, 0.111796, 0.10397, 0.096692], abs=1e-5)
    restless = Choices(settled=False, windows=[4, 8])
    monkeypatch.setattr("tandem.specdec.pacing.choose", restless)
    answered(pacing, 12, count())
    assert min(restless.stays) == 0.75, "but never impossible"


def test_a_token_without_a_draft_is_one_that_was_not_judged() -> None:
    pacing = paced()
    for _ in range(20):
        pacing.take_verdict(verdict(accepted=0, rejected=True), 1.1)
    twin = deepcopy(pacing.profile)
    pacing.overtaken(None)
    twin.unjudged(1)
    assert measured(pacing.profile).acceptance_rate == measured(twin).acceptance_rate


def test_a_process_s_first_request_chooses_after_two_round_trips() -> None:
    pacing = Pacing(PRESETS["auto"])
    pacing.drafted(4, 0.008)
    for number in range(2):
        assert pacing.decision is None
        assert pacing.schedule == PRESETS["auto"].schedule
        pacing.sent([frame(7 + 3 * number, 2)], 2.0 + number)
        work = Work(verify_s=0.004, drafts=2)
        outcome = Verdict(1, 0, 7 + 3 * number, 9, 2, False, 5, work)
        pacing.take_verdict(outcome, 2.006 + number)
    assert pacing.decision is not None
    assert pacing.decision.schedule.stop_and_wait
    assert not pacing.decisions[Reason.TRIAL], "too few drafts were judged"


def test_pings_tell_the_round_trip_until_it_is_known() -> None:
    """A process's first drafts wait for the prompt's pass: their trips tell little."""
    pacing = Pacing(PRESETS["auto"])
    assert pacing.trip_wanted(1.0)
    assert pacing.trip_wanted(1.0), "to ask changes nothing"
    pacing.pinged(1.0)
    assert not pacing.trip_wanted(1.1), "one at a time"
    pacing.ponged(0.030)
    assert pacing.trip_wanted(1.2)
    pacing.pinged(1.2)
    pacing.ponged(None)
    assert not pacing.trip_wanted(1.3), "of another ping"
    pacing.ponged(0.010)
    assert pacing.profile.own.rtt_s == 0.010
    assert pacing.trip_wanted(9.0)
    for base in (5, 7):
        pacing.sent([frame(base)], 1.0)
        pacing.take_verdict(verdict(base=base), 1.1)
    assert not pacing.profile.begins_cold
    assert pacing.decision is None, "no draft step was timed"
    pacing.ponged(0.020)
    assert not pacing.trip_wanted(10.0), "drafts tell it from now on"
    assert not Pacing(PRESETS["auto"], replace(KNOWN, acceptance_rate=0.9)).trip_wanted(1.0)
    assert not Pacing(PRESETS["stream"]).trip_wanted(1.0), "its window is not chosen by cost"


def test_a_link_that_was_slow_once_is_drafted_over_when_it_is_fast() -> None:
    """While the cloud alone is chosen, no draft tells of the link."""
    slow = Earlier(draft_s=0.01, verify_s=0.05, rtt_s=2.0, acceptance_rate=0.6, trips=100)
    pacing, clock = Pacing(PRESETS["auto"], slow), count()
    assert pacing.schedule.window == 0
    answered(pacing, 12, clock)
    assert pacing.schedule.window == 0
    asked = []
    for second in range(12):
        if pacing.trip_wanted(0.5 * second):
            asked.append(second)
            pacing.pinged(0.5 * second)
    assert asked == [0, 2, 4, 6, 8, 10]
    pacing.ponged(0.010)
    answered(pacing, 6, clock)
    assert pacing.schedule.window > 0
    assert not pacing.trip_wanted(60.0)


def test_the_first_trips_of_a_process_may_all_have_waited() -> None:
    """Where they made it choose the cloud alone, ping follows ping until one did not."""
    pacing, clock = Pacing(PRESETS["auto"]), count(40)
    pacing.drafted(1, 0.01)
    for base in (5, 7):
        pacing.sent([frame(base)], 1.0)
        pacing.take_verdict(verdict(base=base), 3.07)
    assert pacing.decision is not None
    assert pacing.schedule.window == 0
    for trip_s in (1.0, 0.01):
        assert pacing.trip_wanted(4.0)
        pacing.ponged(trip_s)
    answered(pacing, 4, clock)
    assert pacing.schedule.window > 0


def test_where_drafts_come_too_late_to_be_answered_pings_are_enough() -> None:
    pacing, clock = Pacing(PRESETS["auto"]), count()
    pacing.drafted(1, 0.01)
    for _ in range(2):
        assert pacing.trip_wanted(1.0)
        pacing.ponged(2.0)
    for _ in range(8):
        answered(pacing, 1, clock)
        assert pacing.decision is None
        pacing.overtaken(None)
    answered(pacing, 1, clock)
    assert pacing.decision is not None
    assert pacing.schedule.window == 0


def test_a_step_that_a_prompt_was_fed_with_tells_nothing() -> None:
    pacing = Pacing(PRESETS["auto"])
    pacing.drafted(1, 0.9, usual=False)
    assert pacing.profile.own.draft_s is None
    pacing.drafted(1, 0.01)
    assert pacing.profile.own.draft_s == 0.01


def test_a_step_after_a_pause_tells_as_much_as_all_before_it() -> None:
    """A device that was busy once is tried again, and believed."""
    busy = Profile(Earlier(draft_s=0.1))
    for _ in range(10):
        busy.drafted(1, 0.1)
    soon, later = deepcopy(busy), deepcopy(busy)
    soon.drafted(1, 0.01)
    assert soon.own.draft_s == pytest.approx(0.091)
    later.unjudged(16)
    later.drafted(1, 0.01)
    assert later.own.draft_s == pytest.approx(0.01)
    slow = deepcopy(busy)
    slow.unjudged(16)
    slow.drafted(1, 0.2)
    assert slow.own.draft_s == pytest.approx(0.155)


def test_a_wait_that_is_not_measured_any_more_fades() -> None:
    profile = seen()
    for _ in range(60):
        profile.passed(Work(verify_s=0.05, drafts=2, queue_s=0.4))
    assert measured(profile).wait_s == pytest.approx(0.4, rel=0.01)
    profile.unjudged(100)
    assert measured(profile).wait_s == pytest.approx(0.4 * 0.99**100, rel=0.01)
