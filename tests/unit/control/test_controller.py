"""Which schedule a session goes on with, by what it measures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tandem.control.acceptance import AcceptanceKnown
from tandem.control.config import ControllerConfig
from tandem.control.controller import Answer, Controller, Reason
from tandem.control.estimates import NO_WARM_START, WarmStart
from tandem.control.latency_aware import LatencyAware
from tandem.control.least_cost import LeastCost
from tandem.control.schedule import Schedule, cloud_alone
from tandem.specdec.presets import PRESETS

LIMITS = PRESETS["auto"].schedule
ALONE = cloud_alone(LIMITS)


def auto(warm_start: WarmStart = NO_WARM_START, *, max_tokens: int = 200) -> LeastCost:
    return LeastCost(LIMITS, warm_start, max_tokens=max_tokens)


class Session:
    """A cloud and an edge by hand: answers every so often, with passes of declared length."""

    def __init__(
        self,
        controller: LeastCost,
        pass_s: float = 0.05,
        row_s: float = 0.001,
        rtt_s: float = 0.001,
    ) -> None:
        self.controller, self.pass_s, self.row_s, self.rtt_s = controller, pass_s, row_s, rtt_s
        self.now, self.position, self.sharing = 0.0, 10, 1
        self.heard_s: float | None = None

    def answer(self, waited_s: float, tokens: int, rows: int = 0, **counts: Any) -> None:
        """A pass over so many drafts, which brings tokens so long after something else."""
        verify_s = self.pass_s + rows * self.row_s
        self.now += waited_s + verify_s
        self.position += tokens
        gap_s = None if self.heard_s is None else self.now - self.heard_s
        first, self.heard_s = self.heard_s is None, self.now
        answer = Answer(
            tokens=tokens,
            gap_s=gap_s,
            verify_s=verify_s,
            sessions=self.sharing,
            rows=rows,
            reads_prompt=first,
            **counts,
        )
        self.controller.on_committed(answer, self.now)

    def token(self) -> None:
        """The cloud decodes one by itself, with no draft in flight."""
        self.answer(0.0, 1, undrafted=1)

    def round(self, accepted: int, drafts: int = 2, draft_s: float = 0.005) -> None:
        """Drafts that are sent and judged; all after `accepted` are wrong."""
        self.controller.on_drafted(drafts, drafts * draft_s, self.now)
        self.controller.on_rtt(self.rtt_s, self.now)
        rejected = int(accepted < drafts)
        self.answer(
            drafts * draft_s + self.rtt_s,
            accepted + 1,
            drafts,
            accepted=accepted,
            rejected=rejected,
        )

    def ping(self, trip_s: float = 0.001) -> None:
        self.controller.on_rtt(trip_s, self.now)


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
    controller = LeastCost(
        LIMITS,
        WarmStart(draft=((0.0, 0.005),), prompt_row_s=prompt_row_s, beside_cloud=beside_cloud),
        max_tokens=200,
        prompt_tokens=40,
    )
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
        if controller.schedule.window:
            session.round(accepted=0, draft_s=0.02)
        else:
            session.token()
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
    controller = LeastCost(LIMITS, known(rate=0.8), config)
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


def test_an_edge_that_was_busy_for_a_moment_drafts_again() -> None:
    session = Session(auto(known(), max_tokens=20_000), rtt_s=0.001)
    session.ping()
    while session.now < 30.0:
        session.round(accepted=2)
    assert session.controller.schedule.window > 0
    while session.controller.schedule.window:
        session.round(accepted=2, draft_s=0.2)  # something else has its processors
    assert session.controller.schedule == ALONE
    alone_since = session.now
    while not session.controller.schedule.window and session.now < alone_since + 120:
        session.ping()
        session.token()
    assert session.controller.decision is not None
    assert session.controller.decision.reason is Reason.TRIAL
    for _ in range(100):
        session.round(accepted=2)
    assert session.controller.schedule.window > 0
    assert session.controller.estimates.draft.value == pytest.approx(0.005)


def test_where_drafts_never_pay_none_are_made() -> None:
    """Be it that earlier answers found them good, or that nobody knows."""
    for warm in (known(rate=0.95), NO_WARM_START):
        session = Session(auto(warm, max_tokens=400))
        session.controller.on_opened(row_share=0.05, may_draft=False, drafts_never_pay=True)
        assert not session.controller.may_draft
        session.ping()
        for _ in range(200):
            session.token()
            assert session.controller.schedule == ALONE
        assert Reason.TRIAL not in session.controller.decisions


def test_a_chunk_may_take_as_long_as_its_answer_in_the_papers_control() -> None:
    controller = LatencyAware(PRESETS["picospec"].schedule)
    for number in range(4):
        controller.on_drafted(2, 0.01, float(number))
        controller.on_rtt(0.001, float(number))
        answer = Answer(3, accepted=2, verify_s=0.05, rows=2, reads_prompt=number == 0)
        controller.on_committed(answer, float(number))
    assert controller.chunk_budget_s == pytest.approx(0.05, rel=0.1)


def test_decisions_are_made_on_a_timer() -> None:
    """Not for each answer, of which some engines give hundreds a second."""
    controller = auto(known(0.004, draft_s=0.001))
    session = Session(controller, pass_s=0.004)
    decided = list[object]()
    while session.now < 1.0:
        session.round(accepted=2, draft_s=0.001)
        if not decided or decided[-1] is not controller.decision:
            decided.append(controller.decision)
    assert 10 <= len(decided) <= 1.0 / 0.06 + 1


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


def test_a_fixed_schedule_stays_and_learns_nothing_but_how_often_drafts_are_right() -> None:
    fixed = Controller(LIMITS, known(rate=0.2))
    fixed.on_committed(Answer(3, accepted=2, rejected=1, verify_s=9.0), 1.0)
    assert (fixed.on, fixed.may_draft, fixed.schedule) == (False, True, LIMITS)
    assert fixed.decision is None
    after = replace(known(rate=0.2).later(2.0), acceptance=AcceptanceKnown(2 / 3, 3))
    assert fixed.measured(2.0) == after


def test_picospec_s_chunks_have_the_time_that_the_bytes_of_their_verdicts_take() -> None:
    """A rejection that brings a whole distribution keeps the link busy: the next chunk may take as
    long. One that came at once, since little was rejected, does not count as the round trip."""
    limits = Schedule(8, 4, verify_on_arrival=True, bonus=False, token_by_token=True)
    budgets = []
    for long_s in (0.0, 0.5):
        controller, now = LatencyAware(limits), 0.0
        for number in range(12):
            trip_s = 0.030 + (long_s if number % 3 else 0.0)
            now += trip_s + 0.070
            controller.on_drafted(1, 0.020, now)
            controller.on_rtt(trip_s, now)
            answer = Answer(1, accepted=1, verify_s=0.070, rows=1, reads_prompt=number == 0)
            controller.on_committed(answer, now)
        budgets.append(controller.chunk_budget_s)
    assert budgets[0] == pytest.approx(0.030 + 0.070, rel=0.05)
    assert budgets[1] == pytest.approx(0.530 + 0.070, rel=0.05)
