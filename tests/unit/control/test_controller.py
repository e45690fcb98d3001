"""Which schedule a session goes on with, by what it measures."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from tandem.control.config import ControllerConfig
from tandem.control.controller import Controller, Reason, controller_for
from tandem.control.estimates import NO_WARM_START, AcceptanceKnown, WarmStart
from tandem.control.schedule import Control, Schedule, cloud_alone
from tandem.specdec.messages import Work
from tandem.specdec.presets import PRESETS

LIMITS = PRESETS["auto"].schedule
ALONE = cloud_alone(LIMITS)


def auto(warm_start: WarmStart = NO_WARM_START, *, max_tokens: int = 200) -> Controller:
    controller = controller_for(
        Control.LEAST_COST, LIMITS, warm_start=warm_start, max_tokens=max_tokens
    )
    controller.connected(0.0)
    return controller


class Session:
    """A cloud and an edge by hand: answers every so often, with passes of declared length."""

    def __init__(
        self,
        controller: Controller,
        pass_s: float = 0.05,
        row_s: float = 0.001,
        rtt_s: float = 0.001,
    ) -> None:
        self.controller, self.pass_s, self.row_s, self.rtt_s = controller, pass_s, row_s, rtt_s
        self.now, self.position, self.sharing = 0.0, 10, 1
        self.passes = count(1)

    def work(self, drafts: int) -> Work:
        took_s = self.pass_s + drafts * self.row_s
        return Work(took_s, 0.0, self.sharing, next(self.passes), drafts)

    def token(self) -> None:
        """The cloud decodes one by itself, with no draft in flight."""
        work = self.work(0)
        self.now += work.verify_s
        self.position += 1
        self.controller.overtaken(None)
        self.controller.took_tokens(1, work, self.now)

    def round(self, accepted: int, drafts: int = 2, draft_s: float = 0.005) -> None:
        """Drafts that are sent and judged; all after `accepted` are wrong."""
        controller, work = self.controller, self.work(drafts)
        controller.drafted(drafts, drafts * draft_s, self.now)
        self.now += drafts * draft_s
        controller.sent(self.position, self.now)
        self.now += work.verify_s + self.rtt_s
        rejected = int(accepted < drafts)
        controller.judged(
            end=self.position + accepted + rejected,
            accepted=accepted,
            rejected=rejected,
            tokens=accepted + 1,
            work=work,
            now=self.now,
        )
        self.position += accepted + 1

    def ping(self, trip_s: float = 0.001) -> None:
        self.controller.ponged(trip_s, self.now)


def known(
    pass_s: float = 0.05,
    *,
    draft_s: float = 0.005,
    rate: float = 0.8,
    rtt_s: float = 0.001,
    alone_s: float | None = None,
    age_s: float = 1.0,
    row_share: float = 0.02,
) -> WarmStart:
    """What an earlier answer measured, `age_s` before."""
    readings = 6

    def aged(value: float) -> tuple[tuple[float, float], ...]:
        return ((age_s, value),) * readings

    return WarmStart(
        draft=aged(draft_s),
        first=aged(pass_s),
        alone=aged(1.0 if alone_s is None else alone_s / pass_s),
        alone_tokens=1.0,
        trip=aged(rtt_s)[:1],
        row_share=row_share,
        acceptance=AcceptanceKnown(rate, 40),
    )


def test_it_begins_with_the_cloud_alone_and_measures_it() -> None:
    session = Session(auto())
    assert session.controller.schedule == ALONE
    assert session.controller.may_draft, "the draft model had better compute the prompt"
    session.ping()
    for _ in range(3):
        session.token()
    controller = session.controller
    assert controller.estimates.knows_alone
    assert controller.schedule.window > 0
    assert controller.decision is not None
    assert controller.decision.reason is Reason.TRIAL, "nobody knows yet whether drafts are right"
    assert controller.decision.alone_measured


def reading(prompt_row_s: float, *, beside_cloud: bool = False) -> Session:
    """An answer of at most 200 tokens to a prompt of 40, of which the draft model reads each so
    long: nothing else is known of drafts."""
    controller = controller_for(
        Control.LEAST_COST,
        LIMITS,
        warm_start=WarmStart(
            draft=((0.0, 0.005),), prompt_row_s=prompt_row_s, beside_cloud=beside_cloud
        ),
        max_tokens=200,
        prompt_tokens=40,
    )
    controller.connected(0.0)
    return Session(controller)


@pytest.mark.parametrize(
    ("prompt_row_s", "rtt_s", "beside_cloud", "reads"),
    [
        (0.0005, 0.001, False, True),
        (0.01, 0.001, False, False),
        (0.01, 0.04, False, True),
        (0.01, 0.04, True, False),
    ],
)
def test_no_trial_where_reading_the_prompt_holds_up_the_answer_on_the_same_processors(
    prompt_row_s: float, rtt_s: float, beside_cloud: bool, reads: bool
) -> None:
    session = reading(prompt_row_s, beside_cloud=beside_cloud)
    session.ping(rtt_s)
    for _ in range(60):
        session.token()
    assert (session.controller.decisions[Reason.TRIAL] > 0) is reads


def test_the_draft_model_does_not_begin_with_a_prompt_that_it_would_read_for_long() -> None:
    assert reading(0.0005).controller.may_draft
    assert not reading(0.01).controller.may_draft


def test_what_earlier_answers_measured_is_gone_by_from_the_first_token() -> None:
    assert auto(known(rate=0.9)).schedule.window > 0
    assert auto(known(rate=0.05)).schedule == ALONE


def test_a_reading_that_is_hours_old_decides_nothing() -> None:
    """The cloud alone is measured anew before anything is drafted."""
    assert auto(known(rate=0.9, age_s=7200.0)).schedule == ALONE


def test_a_first_reading_three_times_too_long_is_corrected_within_an_answer() -> None:
    """A suite was first used while its machine was busy: it took the cloud alone for three times as
    slow as it was, and drafted at a loss for as long as it ran."""
    controller = auto(known(0.150, draft_s=0.02, rate=0.5, rtt_s=0.04))
    session = Session(controller)
    assert controller.schedule.window > 0, "so it seemed to pay"
    assert controller.decision is not None
    assert controller.decision.alone_tpot_s == pytest.approx(0.150)
    for _ in range(9):
        session.round(accepted=0, draft_s=0.02)
    assert controller.decision.alone_tpot_s == pytest.approx(0.05, rel=0.05)


def test_bad_drafts_are_left_after_a_few_of_them() -> None:
    session = Session(auto())
    session.ping()
    for _ in range(3):
        session.token()
    rounds = 0
    while session.controller.schedule.window and rounds < 20:
        session.round(accepted=0, draft_s=0.03)
        rounds += 1
    assert rounds <= 8
    assert session.controller.schedule == ALONE


def test_good_drafts_are_kept() -> None:
    session = Session(auto())
    session.ping()
    for _ in range(3):
        session.token()
    for _ in range(10):
        session.round(accepted=2)
    controller = session.controller
    assert controller.schedule.window > 2
    assert controller.decision is not None
    assert controller.decision.tpot_s < 0.7 * controller.decision.alone_tpot_s


@pytest.mark.parametrize(("gain", "taken"), [(0.05, True), (0.6, False)])
def test_a_stream_is_taken_only_if_it_is_clearly_better(gain: float, taken: bool) -> None:
    """Here it takes half of the time."""
    config = ControllerConfig(switch_gain=gain)
    controller = controller_for(
        Control.LEAST_COST, LIMITS, warm_start=known(rate=0.8), config=config
    )
    controller.connected(0.0)
    assert (controller.schedule.window > 0) is taken


def test_trials_lose_no_more_than_their_share_of_the_answer() -> None:
    """Drafts are mostly wrong; now and then that is looked at again."""
    warm = replace(known(rate=0.3, rtt_s=0.03), acceptance=None)
    session = Session(auto(warm, max_tokens=400), row_s=0.01)
    lost_s, tokens = 0.0, 0
    while tokens < 400:
        began_s, before = session.now, session.position
        if session.controller.schedule.window:
            session.round(accepted=0)
        else:
            session.token()
        made = session.position - before
        lost_s += session.now - began_s - made * session.pass_s
        tokens += made
    assert 0 < lost_s < 0.03 * tokens * session.pass_s


def test_drafts_that_may_be_better_than_they_seemed_are_tried_once() -> None:
    """And leaves bad ones: what a trial lost counts against the next."""
    warm = known(0.0147, draft_s=0.004, rate=0.5, rtt_s=0.0006, row_share=0.38)
    session = Session(auto(warm, max_tokens=400), pass_s=0.0147, row_s=0.0055)
    controller = session.controller
    for _ in range(50):
        if controller.schedule.window:
            break
        session.token()
    assert controller.schedule.window > 0
    assert controller.decisions == {Reason.FIRST: 1, Reason.TRIAL: 1}
    rounds = 0
    while controller.schedule.window:
        session.round(accepted=0, draft_s=0.004)
        rounds += 1
    assert rounds <= 4, "as many drafts as tell something"
    for _ in range(200):
        session.token()
        assert controller.schedule == ALONE
    assert controller.decisions[Reason.TRIAL] == 1


def test_where_drafts_pay_in_no_case_none_are_made() -> None:
    """Be it that earlier answers found them good, or that nobody knows."""
    for warm in (known(rate=0.95), NO_WARM_START):
        session = Session(auto(warm, max_tokens=400))
        session.controller.opened(1.0)
        assert not session.controller.may_draft
        session.ping()
        for _ in range(200):
            session.token()
            assert session.controller.schedule == ALONE
        assert Reason.TRIAL not in session.controller.decisions


def test_pings_tell_the_round_trip_once_a_second() -> None:
    controller = auto()
    assert controller.trip_wanted(0.0)
    controller.pinged(0.0)
    assert not controller.trip_wanted(0.9)
    assert controller.trip_wanted(1.0)
    controller.ponged(0.03, 0.03)
    controller.ponged(None, 0.04)
    assert list(controller.estimates.trips_s) == [0.03]


def test_an_answer_is_measured_from_the_last_frame_that_it_judges_without_its_pass() -> None:
    controller = controller_for(Control.FIXED, LIMITS)
    controller.connected(0.0)
    for base, now in ((7, 2.0), (9, 2.1), (11, 2.15)):
        controller.sent(base, now)
    work = Work(verify_s=0.05, queue_s=0.02, target_passes=2, drafts=4)
    controller.judged(end=11, accepted=4, rejected=0, tokens=4, work=work, now=2.35)
    assert list(controller.estimates.trips_s) == pytest.approx([0.18])
    controller.discarded()
    controller.judged(end=12, accepted=0, rejected=1, tokens=1, work=work, now=2.5)
    assert len(controller.estimates.trips_s) == 1


def test_a_chunk_may_take_as_long_as_its_answer_in_the_papers_control() -> None:
    preset = PRESETS["picospec"]
    controller = controller_for(preset.control, preset.schedule)
    controller.connected(0.0)
    session = Session(controller)
    for _ in range(4):
        session.round(accepted=2)
    assert controller.chunk_budget_s == pytest.approx(0.05, rel=0.1)


def test_what_each_kind_of_schedule_took_is_told() -> None:
    session = Session(auto(known(rate=0.05)))
    for _ in range(10):
        session.token()
    tokens, seconds = session.controller.spent["cloud_alone"]
    assert seconds / tokens == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("changed", "draft_s", "reason"),
    [
        ({"rtt_s": 0.4}, 0.005, Reason.ROUND_TRIP),
        ({"pass_s": 0.006}, 0.005, Reason.STEP_TIMES),
        ({}, 0.08, Reason.STEP_TIMES),
    ],
    ids=["a longer link", "shorter passes", "slower drafts"],
)
def test_a_new_schedule_is_told_with_what_had_changed(
    changed: dict[str, float], draft_s: float, reason: Reason
) -> None:
    session = Session(auto(known(rate=0.6, rtt_s=0.01)), rtt_s=0.01)
    controller = session.controller
    assert controller.decision is not None
    assert (controller.decision.reason, controller.schedule.window) == (Reason.FIRST, 16)
    for name, value in changed.items():
        setattr(session, name, value)
    for number in range(60):
        if not controller.schedule.window:
            break
        session.round(accepted=1 + number % 2, draft_s=draft_s)
    assert controller.decision.reason is reason
    assert controller.decision.schedule == ALONE


def test_the_text_of_a_reason_says_what_had_changed_most() -> None:
    session = Session(auto(known(rate=0.9)))
    for _ in range(100):
        session.round(accepted=0)
    assert session.controller.decision is not None
    assert session.controller.decisions[Reason.ACCEPTANCE] >= 1
    assert session.controller.decisions[Reason.FIRST] == 1


def test_where_nothing_may_be_drafted_nothing_is_chosen() -> None:
    alone = controller_for(Control.LEAST_COST, PRESETS["ar"].schedule)
    alone.connected(0.0)
    assert (alone.on, alone.may_draft, alone.decision) == (False, False, None)
    fixed = controller_for(Control.FIXED, LIMITS)
    assert (fixed.on, fixed.may_draft, fixed.schedule) == (False, True, LIMITS)


def test_picospec_s_chunks_have_the_time_that_the_bytes_of_their_verdicts_take() -> None:
    """A rejection that brings a whole distribution keeps the link busy: the next chunk may take as
    long. One that came at once, since little was rejected, does not count as the round trip."""
    limits = Schedule(8, 4, verify_on_arrival=True, bonus=False, token_by_token=True)
    budgets = []
    for long_s in (0.0, 0.5):
        controller = controller_for(Control.LATENCY_AWARE, limits)
        now = 0.0
        controller.connected(now)
        for number in range(12):
            controller.drafted(1, 0.020, now)
            controller.sent(number, now)
            now += 0.030 + (long_s if number % 3 else 0.0) + 0.070
            work = Work(verify_s=0.070, target_passes=number + 1, drafts=1, batch_size=1)
            controller.judged(number + 1, 1, 0, 1, work, now)
        budgets.append(controller.chunk_budget_s)
    assert budgets[0] == pytest.approx(0.030 + 0.070, rel=0.05)
    assert budgets[1] == pytest.approx(0.530 + 0.070, rel=0.05)
