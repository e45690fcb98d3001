"""Which exits are read, and how many branches drafted: what a round would have spared, and what
follows from it."""

from __future__ import annotations

import pytest

from tandem.control.exit_choice import (
    FIRST_ROUNDS,
    ExitChooser,
    ExitPlan,
    Heard,
    JudgedRound,
    RoundTimes,
    spared_s,
)

RIGHT = (9, 1)
WRONG = (9, 2)
OTHER = (8, 3)
TIMES = RoundTimes(step_s=0.010, branch_s=0.0, chunk=4)


def plan(*exits: int, branches: int = 4) -> ExitPlan:
    return ExitPlan(frozenset(exits), branches)


@pytest.mark.parametrize(
    ("lead_s", "spared"),
    [(0.050, 0.040), (0.040, 0.040), (0.020, 0.020), (0.025, 0.025), (0.004, 0.004), (0.0, 0.0)],
)
def test_an_exit_that_is_right_spares_what_its_lead_allows(lead_s: float, spared: float) -> None:
    judged = JudgedRound((Heard(0, RIGHT, 0.9, lead_s),), RIGHT)
    assert spared_s(judged, plan(0), TIMES) == pytest.approx(spared)
    assert spared_s(judged, plan(1), TIMES) == 0


def test_a_wrong_one_spares_nothing_and_may_be_in_the_way() -> None:
    """The right one arrives while a step for the wrong one is under way, and waits for its end;
    with one branch it waits for all of it."""
    judged = JudgedRound((Heard(0, WRONG, 0.9, 0.060), Heard(1, RIGHT, 0.8, 0.035)), RIGHT)
    assert spared_s(judged, plan(0), TIMES) == 0
    assert spared_s(judged, plan(1), TIMES) == pytest.approx(0.035)
    assert spared_s(judged, plan(0, 1), TIMES) == pytest.approx(0.030)
    assert spared_s(judged, plan(0, 1, branches=1), TIMES) == pytest.approx(0.020)


def test_branches_that_slow_a_step_cost_time() -> None:
    """Three branches at once make a step of 10 ms one of 20."""
    slow = RoundTimes(step_s=0.010, branch_s=0.005, chunk=4)
    heard = tuple(
        Heard(n, outcome, 0.9 - n / 10, 0.040) for n, outcome in enumerate((WRONG, OTHER))
    )
    judged = JudgedRound((*heard, Heard(2, RIGHT, 0.5, 0.040)), RIGHT)
    assert spared_s(judged, plan(2), slow) == pytest.approx(0.040)
    assert spared_s(judged, plan(0, 1, 2), slow) == pytest.approx(0.020)


def test_exits_that_are_left_out_shorten_the_pass_after_those_before_them() -> None:
    """And so the lead that an exit had in a round that all judged."""
    judged = JudgedRound((Heard(0, RIGHT, 0.9, 0.030), Heard(1, OTHER, 0.5, 0.010)), RIGHT)
    dear = RoundTimes(step_s=0.010, branch_s=0.0, chunk=4, exit_s=0.012)
    assert spared_s(judged, plan(0), dear) == pytest.approx(0.018)
    assert spared_s(judged, plan(0, 1), dear) == pytest.approx(0.030)


class Request:
    """Rounds of a request in which each exit is right as told, so many seconds before the
    verdict."""

    def __init__(self, leads_s: dict[int, float], exit_s: float, link_s: float = 0.0) -> None:
        self.chooser = ExitChooser(most_branches=4, chunk=4)
        self.read: list[frozenset[int]] = []
        self._leads_s, self._exit_s, self._link_s = leads_s, exit_s, link_s
        self._now = 0.0

    def go_on(
        self, rounds: int, right: dict[int, bool], sharing: int = 1, queue_s: float = 0.0
    ) -> frozenset[int]:
        """Return the exits that are chosen in the end."""
        chooser = self.chooser
        for _ in range(rounds):
            chooser.drafted(0.040, 4, 1)
            chooser.sent(self._now)
            wanted = self._leads_s if chooser.exits is None else chooser.exits
            self.read.append(frozenset(wanted))
            verify_s = 0.1 + self._exit_s * len(wanted)
            took_s = 0.030 + verify_s + queue_s + self._link_s * len(wanted)
            for index in wanted:
                outcome = RIGHT if right[index] else (9, 100 + index)
                chooser.heard(index, outcome, 0.5, self._now + took_s - self._leads_s[index])
            self._now += took_s
            chooser.judged(verify_s, queue_s, sharing, self._now)
            chooser.resolved(RIGHT)
        return chooser.plan_exits


def test_all_exits_judge_at_first_but_for_rounds_to_compare_with() -> None:
    request = Request({0: 0.06, 1: 0.03}, exit_s=0.001)
    request.go_on(FIRST_ROUNDS, {0: True, 1: True})
    every = frozenset({0, 1})
    assert request.read == [frozenset(), every, frozenset(), every]


def test_a_request_among_many_does_not_try_exits_at_its_beginning() -> None:
    request = Request({0: 0.06, 1: 0.03}, exit_s=0.010)
    request.go_on(20, {0: True, 1: True}, sharing=8)
    assert request.read == [frozenset()] * 20


def test_the_exit_that_spares_most_is_read_and_those_that_add_nothing_are_not() -> None:
    request = Request({0: 0.08, 1: 0.06, 2: 0.02}, exit_s=0.002)
    assert request.go_on(40, {0: False, 1: True, 2: True}) == {1}
    assert request.read.count(frozenset({1})) > 20


def test_exits_that_cost_more_than_they_spare_are_not_read() -> None:
    """A draft of 40 ms is spared, and the pass is 60 ms longer."""
    cheap, dear = (Request({0: 0.05}, exit_s=cost_s) for cost_s in (0.002, 0.060))
    assert cheap.go_on(40, {0: True}) == {0}
    assert dear.go_on(40, {0: True}) == frozenset()
    assert sum(map(bool, dear.read)) < 20, "they are tried less often the more a trial loses"


def test_a_narrow_link_counts_what_early_verdicts_add_to_it() -> None:
    narrow = Request({0: 0.05}, exit_s=0.001, link_s=0.060)
    assert narrow.go_on(40, {0: True}) == frozenset()


def test_what_an_exit_adds_counts_for_all_who_share_the_pass() -> None:
    alone, shared = (Request({0: 0.05}, exit_s=0.010) for _ in range(2))
    assert alone.go_on(40, {0: True}) == {0}
    assert shared.go_on(60, {0: True}, sharing=8) == frozenset()


def test_the_choice_follows_the_text() -> None:
    """An exit that begins to be right is found again."""
    request = Request({0: 0.05}, exit_s=0.002)
    assert request.go_on(30, {0: False}) == frozenset()
    assert request.go_on(160, {0: True}) == {0}


def test_without_an_early_verdict_none_is_asked_for() -> None:
    """Exits whose verdicts always come too late."""
    chooser = ExitChooser(most_branches=4, chunk=4)
    asked = 0
    for number in range(60):
        chooser.drafted(0.040, 4, 1)
        chooser.sent(float(number))
        asked += chooser.exits is None
        chooser.judged(0.1, 0.0, 1, number + 0.5)
        chooser.resolved(RIGHT)
    assert asked <= 3 * FIRST_ROUNDS


def test_a_round_that_waited_for_something_else_counts_little() -> None:
    """The first, for the prompt, and now and then one for a slow machine."""
    request = Request({0: 0.05}, exit_s=0.002)
    for number in range(12):
        request.go_on(4, {0: True}, queue_s=0.0)
        request._link_s = 0.3 if number % 4 == 0 else 0.0
        request.go_on(1, {0: True})
        request._link_s = 0.0
    assert request.chooser.plan_exits == {0}


def test_a_lost_stream_forgets_the_round() -> None:
    chooser = ExitChooser(most_branches=4, chunk=4)
    chooser.sent(0.0)
    chooser.abandoned()
    chooser.heard(0, RIGHT, 0.5, 0.1)
    chooser.judged(0.1, 0.0, 1, 0.2)
    chooser.resolved(RIGHT)
    assert chooser.plan is None


@pytest.mark.parametrize(
    ("sharing", "queue_s", "tries"),
    [
        *((0, 0.15, True), (1, 0.15, True), (1, 0.199, True), (1, 0.2, False)),
        *((2, 0.099, True), (2, 0.1, False), (3, 0.0, False)),
    ],
)
def test_three_requests_at_a_pass_are_a_crowd_whether_they_share_it_or_wait(
    sharing: int, queue_s: float, tries: bool
) -> None:
    """The first pass takes 0.1 s: who waits twice as long has two others before it."""
    request = Request({0: 0.06, 1: 0.03}, exit_s=0.0)
    request.go_on(2, {0: True, 1: True}, sharing=sharing, queue_s=queue_s)
    assert bool(request.read[1]) is tries


def test_in_a_crowd_exits_are_tried_once_in_sixteen_rounds_for_each_of_it() -> None:
    """Of four requests that share a pass, each in a round of 64; until it is known that no exit
    speaks, or what it spares."""
    request = Request({0: 0.06}, exit_s=0.0)
    request.go_on(7, {0: True}, sharing=4)
    assert request.read == [frozenset()] * 7
    request = Request({0: 0.06}, exit_s=0.0)
    request.go_on(90, {0: True}, sharing=4)
    first = next(number for number, read in enumerate(request.read, start=1) if read)
    assert 60 < first <= 70


def test_how_long_a_step_is_with_further_branches() -> None:
    times = RoundTimes(step_s=0.010, branch_s=0.002, chunk=4)
    assert [times.step(branches) for branches in (0, 1, 2, 4)] == pytest.approx(
        [0.010, 0.010, 0.012, 0.016]
    )
    assert times.whole_s == pytest.approx(0.040)
    assert times.exit_s == 0.0


def test_before_anything_is_chosen_all_branches_are_drafted_and_no_exit_is_planned() -> None:
    chooser = ExitChooser(most_branches=4, chunk=4)
    assert (chooser.branches, chooser.plan_exits, chooser.exits) == (4, frozenset(), ())


def test_a_round_that_several_frames_begin_is_one() -> None:
    """Its time counts from the last of them; a verdict ends it once."""
    chooser = ExitChooser(most_branches=4, chunk=4)
    for now in (0.0, 0.1):
        chooser.sent(now)
    chooser.judged(0.1, 0.0, 1, 0.3)
    chooser.judged(5.0, 0.0, 9, 9.0)
    chooser.resolved(RIGHT)
    assert chooser.exits is None, "the second round is judged by all: it was no crowd"


def test_of_exits_that_know_the_same_fewer_branches_are_enough() -> None:
    """Four exits that say four things: the one that is right comes first, and each branch beside it
    makes its steps longer."""
    judged = JudgedRound(
        (
            Heard(0, RIGHT, 0.9, 0.080),
            *(Heard(n, (9, 10 + n), 0.1, 0.080) for n in (1, 2, 3)),
        ),
        RIGHT,
    )
    slow = RoundTimes(step_s=0.010, branch_s=0.010, chunk=4)
    assert spared_s(judged, plan(0, 1, 2, 3, branches=4), slow) < spared_s(
        judged, plan(0, 1, 2, 3, branches=1), slow
    )
    assert spared_s(judged, plan(0, branches=4), slow) == pytest.approx(0.040)


def test_an_exit_that_says_nothing_to_draft_for_spares_nothing() -> None:
    judged = JudgedRound((Heard(0, None, 0.9, 0.080), Heard(1, RIGHT, 0.5, 0.020)), RIGHT)
    assert spared_s(judged, plan(0), TIMES) == 0
    assert spared_s(judged, plan(0, 1), TIMES) == pytest.approx(0.020)


def test_a_surer_exit_takes_its_place_before_those_that_wait() -> None:
    """One branch is drafted at a time: the surest first, of equals the first that came."""
    for first, second, spared in ((0.9, 0.5, 0.0), (0.5, 0.9, 0.040), (0.5, 0.5, 0.0)):
        judged = JudgedRound((Heard(0, WRONG, first, 0.040), Heard(1, RIGHT, second, 0.040)), RIGHT)
        assert spared_s(judged, plan(0, 1, branches=1), TIMES) == pytest.approx(spared)


def test_one_branch_is_drafted_where_exits_say_how_sure_they_are() -> None:
    """Two exits are right by turns, and know it. A second branch makes a step of 10 ms one of 14:
    to draft both outcomes spares more than one exit does, and less than the surer one's alone."""
    chooser, now = ExitChooser(most_branches=4, chunk=4), 0.0
    for number in range(40):
        chooser.drafted(0.040, 4, 1)
        chooser.drafted(0.056, 4, 2)
        chooser.sent(now)
        for index in (0, 1) if chooser.exits is None else chooser.exits:
            right = index == number % 2
            outcome, sure = (RIGHT, 0.9) if right else ((9, 100 + index), 0.1)
            chooser.heard(index, outcome, sure, now + 0.06)
        now += 0.1
        chooser.judged(0.06, 0.0, 1, now)
        chooser.resolved(RIGHT)
    assert (chooser.plan_exits, chooser.branches) == (frozenset({0, 1}), 1)
