"""Many sessions on one verifier: what can be worked by hand, and what chance moves."""

from dataclasses import astuple
from functools import cache
from statistics import median

import pytest

from lab.analysis.epoch_timeline import Expected, StepTimes, expected
from lab.analysis.shared_passes import expected_together
from tandem.control.conditions import Conditions
from tandem.specdec.choices import Schedule
from tests.long_runs import with_long_cases

TIMES = StepTimes(draft_s=2, pass_s=10, further_s=1, up_s=3, down_s=4, correction_s=1)
ALONE = Schedule(0, 1, decode_when_idle=True)
STOP_AND_WAIT = Schedule(2, 2)
NO_BONUS = Schedule(2, 2, bonus=False)
STREAM = Schedule(4, 2, decode_when_idle=True)


def test_a_budget_feeds_fewer_drafts_where_many_share_a_pass() -> None:
    """At acceptance 0.3 a second draft is not worth its tenth of a pass to sixteen sessions."""
    stream = Schedule(4, 4, verify_on_arrival=True, token_by_token=True, decode_when_idle=True)
    greedy, _ = expected_together(stream, TIMES, 0.3, sessions=16)
    fair, _ = expected_together(stream, TIMES, 0.3, sessions=16, in_parts=True)
    assert fair.fed < 0.7 * greedy.fed
    assert fair.tpot_s < 0.8 * greedy.tpot_s


def test_a_controller_follows_what_its_session_measures() -> None:
    """Passes that others make long leave time for more drafts."""
    seen = list[Conditions]()

    def control(measured: Conditions) -> Schedule:
        seen.append(measured)
        return STREAM if measured.sharing > 2 else ALONE

    found, _ = expected_together(STREAM, TIMES, 0.7, sessions=8, control=control)
    assert found.frames > 0.2
    assert max(measured.sharing for measured in seen) > 4
    assert expected_together(STREAM, TIMES, 0.7, sessions=1, control=control)[0].frames < 0.1


@pytest.mark.parametrize(("schedule", "longer"), [(STOP_AND_WAIT, 0), (STREAM, 5)])
def test_a_controller_sees_trips_as_long_as_an_edge_measures_them(
    schedule: Schedule, longer: float
) -> None:
    """In rounds a draft waits for no pass of its own session but the prompt's. Where the cloud goes
    on meanwhile drafts mostly do, and their verdicts do not tell for how long. A few trips are
    believed to become shorter with each token that comes without one."""
    seen = list[float]()

    def control(measured: Conditions) -> Schedule:
        seen.append(measured.rtt_s)
        return schedule

    expected_together(schedule, TIMES, 0.5, sessions=8, control=control)
    trip_s = TIMES.up_s + TIMES.down_s
    assert min(seen) >= 0.9 * trip_s
    assert median(seen[80:240]) == pytest.approx(trip_s + longer, abs=0.5 * longer + 1e-9)


@cache
def together(
    schedule: Schedule, rate: float, sessions: int, *, hit_rate: float = 0.0, head_s: float = 0.0
) -> tuple[Expected, float]:
    return expected_together(
        schedule, TIMES, rate, sessions=sessions, hit_rate=hit_rate, head_s=head_s
    )


@pytest.mark.parametrize("sessions", [1, 4, 16])
def test_alone_every_pass_feeds_a_token_of_each(sessions: int) -> None:
    found, pass_s = together(ALONE, 0.5, sessions)
    assert found.tpot_s == pytest.approx(10 + (sessions - 1), rel=1e-2)
    assert pass_s == pytest.approx(10 + (sessions - 1), rel=1e-2)
    assert (found.passes, found.fed) == pytest.approx((1, 1), rel=1e-2)
    assert (found.frames, found.corrections) == (0, 0)


@pytest.mark.parametrize("schedule", [STOP_AND_WAIT, NO_BONUS, STREAM])
@pytest.mark.parametrize("rate", with_long_cases([0.0, 0.3, 0.7, 1.0], [0.3, 1.0]))
def test_one_session_of_many_is_a_session(schedule: Schedule, rate: float) -> None:
    found, _ = together(schedule, rate, 1)
    closed = expected(schedule, TIMES, rate)
    assert astuple(found)[:3] == pytest.approx(astuple(closed)[:3], rel=0.04)


def test_two_sessions_that_always_fail_by_hand() -> None:
    # A round alone: 5 s until heard, 4 s of drafts, 3 s of way, a pass over three tokens of 12 s:
    # 24 s a token. With two sessions a pass is at most over six.
    found, pass_s = together(STOP_AND_WAIT, 0.0, 2)
    assert 11.9 <= pass_s <= 15  # the prompts' passes are shorter
    assert together(STOP_AND_WAIT, 0.0, 1)[1] == pytest.approx(12, rel=0.01)
    assert 24 <= found.tpot_s <= 24 + 15
    assert astuple(found)[1:] == pytest.approx((1, 3, 1, 2, 1), rel=0.02)


def test_every_hit_saves_what_was_drafted_before() -> None:
    # With both drafts ready the edge sends at 5 s: 20 s a round. Every third hit saves a third of 4
    # s.
    missed, _ = together(STOP_AND_WAIT, 0.0, 1)
    always, _ = together(STOP_AND_WAIT, 0.0, 1, hit_rate=1.0, head_s=4.0)
    some, _ = together(STOP_AND_WAIT, 0.0, 1, hit_rate=1 / 3, head_s=4.0)
    assert (missed.tpot_s, always.tpot_s) == pytest.approx((24, 20))
    assert some.tpot_s == pytest.approx(24 - 4 / 3, rel=0.01)


def test_a_first_draft_that_fails_is_corrected_before_its_pass() -> None:
    """Where a distribution is kept, at the second round, a rejection costs no pass."""
    kept, _ = together(NO_BONUS, 0.5, 1)
    bonus, _ = together(STOP_AND_WAIT, 0.5, 1)
    # Epochs end at the first draft of a later round with no pass: fewer passes than rounds.
    assert kept.passes < kept.frames - 0.05
    assert bonus.passes == pytest.approx(bonus.frames, rel=0.01)
    assert kept.corrections == pytest.approx(0.5, rel=0.03)


def test_the_same_arguments_give_the_same_figures() -> None:
    again = expected_together(STREAM, TIMES, 0.6, sessions=8, hit_rate=0.0, head_s=0.0)
    assert again == together(STREAM, 0.6, 8)


def test_more_sessions_wait_longer_and_share_passes() -> None:
    tpot_s = [together(STREAM, 0.6, sessions)[0].tpot_s for sessions in (1, 4, 16)]
    pass_s = [together(STREAM, 0.6, sessions)[1] for sessions in (1, 4, 16)]
    assert tpot_s == sorted(tpot_s)
    assert pass_s == sorted(pass_s)
    assert tpot_s[2] < 16 * tpot_s[0], "passes are shared"


def test_nothing_is_foreseen_unless_it_is_said() -> None:
    silent = expected_together(STOP_AND_WAIT, TIMES, 0.0, sessions=1, head_s=4.0)
    assert silent == together(STOP_AND_WAIT, 0.0, 1)
