"""Which schedule a session goes on with, by what it measures."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from tandem.control.conditions import Conditions, PairTimes
from tandem.control.config import DEFAULT_CONFIG, ControllerConfig
from tandem.control.controller import Controller, Reason
from tandem.control.cost import Plan, expected_tpot_s
from tandem.control.estimates import NO_WARM_START, AcceptanceKnown, Estimates, WarmStart
from tandem.control.schedule import Control, Schedule, cloud_alone
from tandem.specdec.messages import Work
from tandem.specdec.presets import PRESETS

LIMITS = PRESETS["auto"].schedule
ALONE = cloud_alone(LIMITS)


def auto(warm_start: WarmStart = NO_WARM_START, *, max_tokens: int = 200) -> Controller:
    controller = Controller(
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
        controller.sent(self.position, self.now, not controller.schedule.decode_when_idle)
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
        first_busy=aged(pass_s),
        alone=aged(pass_s if alone_s is None else alone_s),
        alone_pass=aged(pass_s if alone_s is None else alone_s),
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
    assert controller.estimates.knows_alone(session.now)
    assert controller.schedule.window > 0
    assert controller.decision is not None
    assert controller.decision.reason is Reason.TRIAL, "nobody knows yet whether drafts are right"
    assert controller.decision.alone_measured


def reading(prompt_row_s: float, *, beside_cloud: bool = False) -> Session:
    """An answer of at most 200 tokens to a prompt of 40, of which the draft model reads each so
    long: nothing else is known of drafts."""
    controller = Controller(
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


@pytest.mark.parametrize(("window", "drafts"), [(1, 1), (2, 2), (32, 2)])
def test_drafts_before_anything_is_known_stay_within_the_window(window: int, drafts: int) -> None:
    """There were two whatever the window was, more than the cloud had been told of."""
    limits = replace(LIMITS, window=window, chunk=min(window, LIMITS.chunk))
    controller = Controller(Control.LEAST_COST, limits)
    controller.connected(0.0)
    controller.ponged(0.05, 0.05)
    assert (controller.schedule.window, controller.schedule.chunk) == (drafts, drafts)


@pytest.mark.parametrize(("row_share", "window"), [(None, 16), (0.375, 4)])
def test_the_first_drafts_are_as_many_as_the_engine_s_rows_are_worth(
    row_share: float | None, window: int
) -> None:
    """Nobody has measured a pass over several rows yet; the cloud says what one costs."""
    controller = auto()
    controller.opened(row_share)
    session = Session(controller, pass_s=0.0147, row_s=0.0055)
    session.ping()
    for _ in range(3):
        controller.drafted(1, 0.002, session.now)
        session.token()
    assert controller.decision is not None
    assert controller.decision.schedule.window == window


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
    assert not controller.decision.alone_measured, "by newer passes over drafts"


def test_an_answer_of_the_cloud_alone_corrects_what_the_next_one_of_auto_goes_by() -> None:
    """`ar` chooses nothing, and tells what the cloud alone takes all the same."""
    plain = PRESETS["ar"]
    other = Controller(plain.control, plain.schedule, warm_start=known(alone_s=0.150))
    other.connected(0.0)
    session = Session(other)
    for _ in range(12):
        session.token()
    assert not other.on
    assert other.decision is None
    kept = other.estimates.snapshot(session.now)
    assert Estimates(kept).alone_s == pytest.approx(0.05)


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


def test_a_schedule_in_use_is_left_for_one_that_is_clearly_better_only() -> None:
    """The hysteresis: by a share of the time."""
    warm = known(rate=0.62, row_share=0.1)
    changes = []
    for gain in (0.0, 0.5):
        config = ControllerConfig(switch_gain=gain)
        controller = Controller(Control.LEAST_COST, LIMITS, warm_start=warm, config=config)
        controller.connected(0.0)
        session = Session(controller, row_s=0.005)
        for number in range(60):
            session.round(accepted=(2, 0, 1, 2, 2)[number % 5])
        changes.append(controller.decisions.total())
    assert changes[1] < changes[0]


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


def test_a_short_answer_bears_no_trial_where_earlier_ones_told_what_drafts_are_worth() -> None:
    """Passes that are linear in their rows, as llama.cpp's are on a few cores."""
    warm = known(0.0147, draft_s=0.004, rate=0.5, rtt_s=0.0006, row_share=0.38)
    session = Session(auto(warm, max_tokens=48), pass_s=0.0147, row_s=0.0055)
    for _ in range(48):
        assert session.controller.schedule == ALONE
        session.token()


def test_short_answers_share_a_trial() -> None:
    """Once bad luck with the first drafts decided for as long as all answers were short."""
    start = known(0.0147, draft_s=0.004, rate=0.5, rtt_s=0.0006, row_share=0.38)
    tried = []
    for _ in range(4):
        session = Session(auto(start, max_tokens=40), pass_s=0.0147, row_s=0.0055)
        for _ in range(40):
            session.token()
            if session.controller.schedule.window:
                break
        tried.append(bool(session.controller.schedule.window))
        start = replace(start, untried_tokens=session.controller.measured(0.0).untried_tokens)
    assert not tried[0]
    assert any(tried)


def test_no_answer_tries_for_longer_than_a_first_look_because_many_were_short() -> None:
    session = Session(auto(replace(known(rate=0.3), untried_tokens=10_000)))
    session.token()
    assert session.controller.measured(0.0).untried_tokens <= 4 / DEFAULT_CONFIG.trial_share


def test_a_longer_answer_tries_drafts_once_it_is_no_longer_short() -> None:
    """And leaves bad ones: what a trial lost counts against the next."""
    warm = known(0.0147, draft_s=0.004, rate=0.5, rtt_s=0.0006, row_share=0.38)
    session = Session(auto(warm, max_tokens=400), pass_s=0.0147, row_s=0.0055)
    controller = session.controller
    for _ in range(50):
        assert controller.schedule == ALONE
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


@pytest.mark.parametrize(("readings", "tried"), [(1, range(58, 61)), (4, range(0))])
def test_a_cloud_alone_that_is_hardly_known_is_tried_once_the_answer_can_bear_it(
    readings: int, tried: range
) -> None:
    """Until four more answers came: the first is to the draft for which the cloud waits. Drafts had
    seemed better."""
    alone = ((1.0, 0.05),) * readings
    warm = replace(known(draft_s=0.012, rate=0.6, row_share=0.1), alone=alone, alone_pass=alone)
    config = ControllerConfig(doubt=0.9)
    controller = Controller(
        Control.LEAST_COST, LIMITS, warm_start=warm, max_tokens=400, config=config
    )
    controller.connected(0.0)
    session = Session(controller, row_s=0.005)
    by_the_cloud = []
    for _ in range(60):
        if controller.schedule.window:
            session.round(accepted=1, draft_s=0.012)
            continue
        if controller.decision is not None:
            by_the_cloud.append(session.position - 10)
        session.token()
    assert by_the_cloud == [*tried]
    assert controller.decisions[Reason.TRIAL] == bool(tried)


@pytest.mark.parametrize(("trip_s", "window"), [(None, 0), (0.0019, 0), (0.002, 2), (0.03, 2)])
def test_two_drafts_travel_while_a_cloud_behind_a_link_computes_the_prompt(
    trip_s: float | None, window: int
) -> None:
    """They slow nothing there, and tell how good they are."""
    controller = auto()
    controller.ponged(trip_s, 0.0)
    assert (controller.schedule.window, controller.schedule.chunk) == (window, window)
    Session(controller).token()
    assert controller.schedule == ALONE


class Distracted(Session):
    """Its edge does something else before each round."""

    def round(self, accepted: int, drafts: int = 2, draft_s: float = 0.005) -> None:
        self.now += 0.02
        super().round(accepted, drafts, draft_s)


@pytest.mark.parametrize("kind", [Session, Distracted])
def test_the_time_of_a_stretch_is_compared_with_what_its_drafts_explain(
    kind: type[Session],
) -> None:
    """Of sixteen tokens: by the acceptance and the round trip that were seen meanwhile."""
    controller = auto(known(0.05, draft_s=0.02, rate=0.85, rtt_s=0.0005))
    session = kind(controller)
    assert controller.decision is not None
    plan = Plan(controller.decision.schedule, controller.ahead)
    for _ in range(4):
        session.round(accepted=3, drafts=4, draft_s=0.02)
        assert controller.estimates.factors[0].value is None, "too few tokens so far"
    session.round(accepted=3, drafts=4, draft_s=0.02)
    known_now = controller.estimates.conditions(session.now)
    assert known_now is not None
    seen = replace(
        known_now,
        rtt_s=0.001,
        acceptance_rate=(4 * 0.85 + 15) / (4 + 20),
        later_acceptance_rate=None,
    )
    token_s = session.now / 5 / 4
    assert controller.estimates.factors[0].value == pytest.approx(
        token_s / expected_tpot_s(plan, seen), rel=0.01
    )
    assert controller.estimates.factors[1].value is None, "of streams nothing was seen"


def test_the_first_answer_tells_of_passes_too_but_for_the_one_over_the_prompt() -> None:
    preset = PRESETS["ar"]
    controller = Controller(preset.control, preset.schedule)
    controller.connected(0.0)
    controller.took_tokens(1, Work(0.4, 0.0, 1, target_passes=1), 1.0)
    assert controller.estimates.first.quiet.value is None
    resumed = Controller(preset.control, preset.schedule)
    resumed.connected(0.0)
    resumed.took_tokens(1, Work(0.05, 0.0, 1, target_passes=3), 1.0)
    assert resumed.estimates.first.quiet.value == 0.05


def test_tokens_before_anything_was_measured_change_no_window() -> None:
    preset = PRESETS["stream"]
    controller = Controller(preset.control, preset.schedule)
    controller.connected(0.0)
    session = Session(controller)
    for _ in range(3):
        session.token()
    assert controller.estimates.conditions(session.now) is None
    assert controller.schedule == preset.schedule


def test_others_that_share_the_passes_are_not_waited_for() -> None:
    controller = auto()
    session = Session(controller)
    session.sharing = 4
    session.ping(0.03)
    session.token()
    assert controller.schedule.window > 0, "nothing can be measured alone"
    for _ in range(6):
        session.round(accepted=2)
    assert controller.schedule.decode_when_idle


def test_a_cloud_that_waits_for_a_draft_gets_one_before_it_goes_on_alone() -> None:
    controller = auto(known(rate=0.05))
    assert controller.schedule == ALONE
    controller.sent(5, 0.1, hold=True)
    assert (controller.schedule.window, controller.schedule.chunk) == (1, 1)
    assert controller.schedule.decode_when_idle
    controller.sent(6, 0.2, hold=False)
    assert controller.schedule == ALONE


def test_a_cloud_that_goes_on_is_held_by_one_draft_before_a_long_round() -> None:
    """Else it would overtake each of them while it is drafted."""
    controller = auto(known(0.05, draft_s=0.02, rate=0.85, rtt_s=0.0005))
    assert controller.decision is not None
    assert controller.decision.schedule.stop_and_wait
    assert (controller.schedule.window, controller.schedule.chunk) == (1, 1)
    assert not controller.schedule.decode_when_idle
    controller.sent(10, 0.1, hold=True)
    assert controller.schedule == controller.decision.schedule
    controller.connected(1.0)
    assert controller.schedule.window == 1, "a fresh stream's cloud waits for nothing"


def test_where_passes_are_slowed_beside_drafting_nothing_is_drafted_beside_them() -> None:
    shared = Conditions(PairTimes(0.006, 0.044, 0.002), 0.0006, 0.75, pass_slowdown=1.8)
    warm = known(0.044, draft_s=0.006, rate=0.75, rtt_s=0.0006, row_share=0.045)
    warm = replace(warm, first_busy=((1.0, 0.044 * shared.pass_slowdown),) * 6)
    controller = auto(warm)
    assert controller.decision is not None
    assert controller.decision.schedule.stop_and_wait
    assert not controller.ahead


def test_steps_that_branches_slow_tell_what_branches_cost() -> None:
    """Not what a step takes; and without branches they do."""
    controller = auto(known(draft_s=0.02, rate=0.8, rtt_s=0.01))
    assert controller.branches
    controller.drafted(2, 0.08, 0.5)
    assert controller.estimates.branching.value == 2.0
    assert controller.estimates.draft.seconds() == (0.02, 0.02)
    preset = PRESETS["stream"]
    plain = Controller(preset.control, preset.schedule)
    plain.connected(0.0)
    plain.drafted(2, 0.02, 0.5)
    plain.drafted(2, 5.0, 0.6, usual=False)
    assert plain.estimates.branching.value is None
    assert [value for _, value in plain.estimates.draft.busy.aged(0.6)] == [0.01]


@pytest.mark.parametrize(("draft_s", "branching"), [(0.02, 1.2), (0.05 / 8, 1.0), (0.005, 1.0)])
def test_what_branches_cost_counts_where_they_pay(draft_s: float, branching: float) -> None:
    """A correction waits for drafts where a chunk takes longer than a pass."""
    warm = known(draft_s=draft_s, rate=0.8, rtt_s=0.01)
    controller = auto(replace(warm, branching=((1.0, 1.2),) * 6))
    assert controller.decision is not None
    assert controller.branches is (branching > 1)
    assert controller.decision.conditions.branching == branching


def test_a_factor_that_was_seen_corrects_what_a_family_is_expected_to_take() -> None:
    """A message costs as much as a pass, for example: no recursion knows that."""
    warm = known(0.05, draft_s=0.005, rate=0.8, rtt_s=0.04)
    assert auto(warm).schedule.window > 0
    slow = ((1.0, 3.0),) * 6
    assert auto(replace(warm, stream_factor=slow, rounds_factor=slow)).schedule == ALONE


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
    controller = Controller(Control.WINDOW, LIMITS)
    controller.connected(0.0)
    for base, now in ((7, 2.0), (9, 2.1), (11, 2.15)):
        controller.sent(base, now)
    work = Work(verify_s=0.05, queue_s=0.02, target_passes=2, drafts=4)
    controller.judged(end=11, accepted=4, rejected=0, tokens=4, work=work, now=2.35)
    assert list(controller.estimates.trips_s) == pytest.approx([0.18])
    controller.discarded()
    controller.judged(end=12, accepted=0, rejected=1, tokens=1, work=work, now=2.5)
    assert len(controller.estimates.trips_s) == 1


def test_a_fixed_schedule_stays_whatever_is_measured_for_later_requests() -> None:
    preset = PRESETS["coupled"]
    controller = Controller(preset.control, preset.schedule, drafts_ahead=False)
    controller.connected(0.0)
    session = Session(controller)
    for _ in range(10):
        session.round(accepted=0, drafts=4)
    assert controller.schedule == preset.schedule
    assert controller.decision is None
    kept = controller.estimates.snapshot(session.now)
    assert kept.first
    assert not kept.first_busy
    assert kept.acceptance == AcceptanceKnown(0.0, 10)


def test_a_preset_that_fits_a_window_begins_with_what_earlier_answers_measured() -> None:
    preset = PRESETS["stream"]
    for warm, window in ((NO_WARM_START, preset.schedule.window), (known(rate=0.1, rtt_s=0.3), 0)):
        controller = Controller(preset.control, preset.schedule, warm_start=warm)
        controller.connected(0.0)
        assert controller.schedule.window == window


def test_a_window_that_was_closed_is_opened_again_in_the_end() -> None:
    preset = PRESETS["stream"]
    warm = known(0.05, draft_s=0.06, rate=0.8, rtt_s=0.01)
    controller = Controller(preset.control, preset.schedule, warm_start=warm)
    controller.connected(0.0)
    session = Session(controller)
    tokens = 0
    while not controller.schedule.window and tokens < 400:
        session.token()
        tokens += 1
    assert 10 < tokens < 400


def test_a_window_that_bad_drafts_closed_stays_so_while_nothing_speaks_for_them() -> None:
    preset = PRESETS["stream"]
    warm = known(rate=0.1, rtt_s=0.3)
    controller = Controller(preset.control, preset.schedule, warm_start=warm)
    controller.connected(0.0)
    session = Session(controller, rtt_s=0.3)
    for _ in range(100):
        assert controller.schedule.window == 0
        session.token()


def test_a_window_is_fitted_by_the_numbers_that_were_given() -> None:
    preset = PRESETS["stream"]
    windows = []
    for config in (ControllerConfig(), ControllerConfig(negligible=0.3)):
        warm = known(rate=0.3, rtt_s=0.03, draft_s=0.04)
        controller = Controller(preset.control, preset.schedule, warm_start=warm, config=config)
        controller.connected(0.0)
        controller.took_tokens(1, Work(0.05, 0.0, 1, target_passes=1), 0.1)
        windows.append(controller.schedule.window)
    assert windows == [3, 0], "what is drafted so late hardly ever leads"


def test_the_cloud_alone_is_measured_only_where_nobody_shares_it() -> None:
    """By three tokens after the first."""
    warm = replace(known(), alone=(), alone_pass=())
    for sharing, tokens in ((1, 3), (4, 1)):
        session = Session(auto(warm))
        session.sharing = sharing
        for _ in range(tokens):
            assert session.controller.decision is None
            session.token()
        assert session.controller.decision is not None


def test_a_chunk_may_take_as_long_as_its_answer_in_the_papers_control() -> None:
    preset = PRESETS["picospec"]
    controller = Controller(preset.control, preset.schedule)
    controller.connected(0.0)
    session = Session(controller)
    for _ in range(4):
        session.round(accepted=2)
    assert controller.chunk_budget_s == pytest.approx(0.05, rel=0.1)


def test_while_load_comes_and_goes_drafts_of_the_edge_must_be_clearly_better_than_the_cloud_s() -> (
    None
):
    """What one schedule took a second ago says little of what another takes now."""
    warm = replace(
        known(rate=0.75),
        cloud_drafts=((1.0, 2.0),) * 6,
        cloud_draft=((1.0, 0.005),) * 6,
        cloud_tokens=((1.0, 2.4),) * 6,
    )
    restless = replace(warm, jumps=((2.0, 1), (1.0, -1)))
    calm = auto(warm)
    assert calm.decision is not None
    assert 0.75 < calm.decision.tpot_s / calm.decision.alone_tpot_s < 0.95
    assert auto(restless).schedule == ALONE
    assert auto(replace(restless, jumps=((2.0, 1), (1.0, 1)))).schedule == calm.schedule != ALONE
    slower_in_the_cloud = replace(restless, cloud_draft=((1.0, 0.05),) * 6)
    assert auto(slower_in_the_cloud).schedule.window
    none_of_the_cloud = replace(restless, cloud_drafts=(), cloud_draft=(), cloud_tokens=())
    assert auto(none_of_the_cloud).schedule.window


def test_what_each_kind_of_schedule_took_is_told() -> None:
    session = Session(auto(known(rate=0.05)))
    for _ in range(10):
        session.token()
    tokens, seconds = session.controller.spent["cloud_alone"]
    assert seconds / tokens == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("warm", "changed", "draft_s", "path"),
    [
        (
            known(rate=0.8, rtt_s=0.01),
            {"rtt_s": 0.4},
            0.005,
            ["first: stream, window 16", "round_trip: the cloud alone"],
        ),
        (
            known(rate=0.6, rtt_s=0.01),
            {"rtt_s": 0.01, "pass_s": 0.012},
            0.005,
            ["first: stream, window 8", "step_times: the cloud alone"],
        ),
        (
            known(rate=0.8, rtt_s=0.01),
            {"rtt_s": 0.01},
            0.08,
            [
                "first: stream, window 16",
                "acceptance: rounds of 8",
                "step_times: the cloud alone",
            ],
        ),
        (
            known(rate=0.7, rtt_s=0.001, draft_s=0.01),
            {"sharing": 6},
            0.01,
            [
                "first: stream that waits, window 8",
                "acceptance: rounds of 4",
                "load: stream, window 16",
            ],
        ),
    ],
    ids=["a longer link", "shorter passes", "slower drafts", "more sessions"],
)
def test_a_new_schedule_is_told_with_what_had_changed(
    warm: WarmStart, changed: dict[str, float], draft_s: float, path: list[str]
) -> None:
    session = Session(auto(warm))
    taken: list[str] = []
    for number in range(60):
        if number == (6 if "sharing" in changed else 0):
            for name, value in changed.items():
                setattr(session, name, value)
        decision = session.controller.decision
        assert decision is not None
        found = f"{decision.reason}: {decision.schedule.words}"
        if not taken or taken[-1] != found:
            taken.append(found)
        if session.controller.schedule.window:
            session.round(accepted=1 if changed.get("pass_s") else 2, draft_s=draft_s)
        else:
            session.token()
    assert taken == path


def test_the_text_of_a_reason_says_what_had_changed_most() -> None:
    session = Session(auto(known(rate=0.9)))
    for _ in range(40):
        session.round(accepted=0)
    assert session.controller.decision is not None
    assert session.controller.decisions[Reason.ACCEPTANCE] >= 1
    assert session.controller.decisions[Reason.FIRST] == 1


def test_where_nothing_may_be_drafted_nothing_is_chosen() -> None:
    alone = Controller(Control.LEAST_COST, PRESETS["ar"].schedule)
    alone.connected(0.0)
    assert (alone.on, alone.may_draft, alone.decision) == (False, False, None)
    fixed = Controller(Control.FIXED, LIMITS)
    assert (fixed.on, fixed.may_draft, fixed.schedule) == (False, True, LIMITS)


def test_picospec_s_chunks_have_the_time_that_the_bytes_of_their_verdicts_take() -> None:
    """A rejection that brings a whole distribution keeps the link busy: the next chunk may take as
    long. One that came at once, since little was rejected, does not count as the round trip."""
    limits = Schedule(8, 4, verify_on_arrival=True, bonus=False, token_by_token=True)
    budgets = []
    for long_s in (0.0, 0.5):
        controller = Controller(Control.LATENCY_AWARE, limits)
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
