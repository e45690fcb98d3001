"""Which schedule a session goes on with, by what it measures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tandem.control.acceptance import AcceptanceKnown
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
