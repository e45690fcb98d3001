"""How often a schedule is chosen anew, and what is measured where nothing is drafted."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import count, cycle

import pytest

from tandem.specdec.choices import Schedule
from tandem.specdec.messages import Verdict, Work
from tandem.specdec.objective import Objective
from tandem.specdec.pacing import Pacing
from tandem.specdec.presets import PRESETS
from tandem.specdec.profile import Earlier, Profile
from tandem.specdec.schedule_choice import Decision, Reason
from tandem.specdec.schedule_outlook import Outlooks
from tandem.specdec.scheduling import Measured
from tandem.specdec.seen_times import Kind, Seen, SeenTimes
from tests.unit.specdec.measured_sessions import answered, frame, measured, paced, seen, verdict

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


@pytest.mark.parametrize(
    ("settled", "looks"),
    [
        (True, ((5, 1), (1, 2), (5, 2), (1, 3))),
        (False, ((12, 13), (2, 13), (1, 14), (2, 14), (1, 15))),
    ],
    ids=["settled: after six answers", "else: after each for twelve choices, then each third"],
)
def test_when_a_choice_is_looked_at_again(
    settled: bool, looks: tuple[tuple[int, int], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    choices = Choices(settled=settled)
    monkeypatch.setattr("tandem.specdec.pacing.choose", choices)
    pacing = Pacing(PRESETS["auto"], KNOWN)
    assert len(choices.stays) == 1
    clock = count()
    for answers, chosen in looks:
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


def test_steps_with_branches_beside_them_tell_what_branches_cost_and_no_draft_step() -> None:
    pacing = Pacing(PRESETS["auto"], KNOWN)
    assert pacing.decision is not None
    pacing.branches = True
    pacing.drafted(1, 0.04)
    assert not pacing.profile.seen.of_kinds, "no step was timed by itself"
    assert pacing.profile.own.branching > 1
    pacing.branches = False
    pacing.drafted(1, 0.04)
    (plain,) = pacing.profile.seen.of_kinds.values()
    assert plain.draft_s == pytest.approx(0.04)


@pytest.mark.parametrize(("first", "then"), [(0, 6), (6, 0)])
def test_a_stretch_is_held_against_its_own_drafts(
    first: int, then: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not against all of the session: thirty tokens by bad drafts, then as many by good ones."""
    rates: list[float] = []

    def expected_of(outlooks: Outlooks, schedule: Schedule, found: Measured) -> float | None:
        rates.append(found.acceptance_rate)
        return None

    monkeypatch.setattr("tandem.specdec.pacing.choose", Choices(settled=True))
    monkeypatch.setattr(Outlooks, "expected_of", expected_of)
    pacing, now = Pacing(PRESETS["auto"], KNOWN), 2.0
    for accepted in (first, then):
        for _ in range(30):
            now += 0.05
            pacing.take_verdict(verdict(accepted, rejected=accepted < 6), now)
    assert abs(rates[-1] - (then > 0)) < 0.2
    assert abs(rates[2] - (first > 0)) < 0.2


def test_passes_that_are_longer_by_their_drafts_make_no_other_kind_slower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pass over one token takes 50 ms, and each draft 12.5 more."""
    monkeypatch.setattr("tandem.specdec.pacing.choose", Choices(settled=True))
    alone = Seen(passes=9, pass_s=0.05)
    known = replace(KNOWN, further_share=0.25, seen=((Kind.CLOUD_ALONE, alone),))
    pacing, now = Pacing(PRESETS["auto"], known), 2.0
    for drafts in (*[2] * 10, *[8] * 20):
        work, now = Work(verify_s=0.05 + 0.0125 * drafts, drafts=drafts), now + 0.2
        pacing.take_verdict(Verdict(1, 0, 5, 9, 2, False, None, work), now)
    kinds = pacing.profile.seen.of_kinds
    assert len(kinds) == 2
    assert kinds[Kind.CLOUD_ALONE].pass_s == pytest.approx(0.05, rel=0.1)


@pytest.mark.parametrize(("ahead", "kind"), [(True, Kind.ROUNDS_AHEAD), (False, Kind.ROUNDS)])
def test_rounds_that_are_drafted_ahead_of_are_a_kind_of_their_own(
    ahead: bool, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rounds(limits: Schedule, found: Measured, *given: object) -> Decision:
        told = replace(found, slows=not ahead)
        return Decision(PRESETS["coupled"].schedule, False, 0.03, 0.05, Reason.FIRST, told, {})

    monkeypatch.setattr("tandem.specdec.pacing.choose", rounds)
    pacing, now = Pacing(PRESETS["auto"], replace(KNOWN, acceptance_rate=0.99)), 2.0
    for _ in range(6):
        now += 0.1
        pacing.take_verdict(verdict(accepted=2), now)
    assert pacing.ahead is ahead
    assert list(pacing.profile.seen.of_kinds)[-1] is kind
