"""Where sessions go, over traces of round trips in virtual time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest

from tandem.routing.router import (
    STAY_S,
    CloudReport,
    MoveReason,
    Placement,
    Router,
)

RoundTrips = Callable[[float], tuple[float, ...]]
"""Of each cloud at a time, in seconds."""


def routing(*reports: CloudReport) -> Router:
    found = Router(len(reports))
    for cloud, report in enumerate(reports):
        found.reported(cloud, report, 0.0)
    return found


def moves_over(trace: RoundTrips, seconds: float, spread: int = 5) -> list[tuple[float, int]]:
    """When one session moves, and where to: as a drafter asks, ticks and moves."""
    clouds = Router(len(trace(0.0)))
    place, moves, step = Placement(0, 0.0), [], 0
    while (now := step * 0.1) < seconds:
        if step % 5 == 0:
            for cloud, round_trip_s in enumerate(trace(now)):
                clouds.reported(cloud, CloudReport(round_trip_s), now)
        if clouds.why_leave(place, spread, now):
            found = clouds.choose(spread, leaving=place.cloud)
            place = Placement(found, now, place.moves + 1)
            moves.append((now, found))
        step += 1
    return moves


@pytest.mark.parametrize("spread", range(8))
def test_a_far_cloud_is_left_within_five_seconds(spread: int) -> None:
    moves = moves_over(lambda now: (0.02 if now < 60 else 0.22, 0.02), 120, spread)
    assert [cloud for _, cloud in moves] == [1]
    assert moves[0][0] < 65


@pytest.mark.parametrize("seed", range(12))
def test_jitter_alone_moves_nobody(seed: int) -> None:
    """Ten minutes; one answer in ten is late by up to a quarter of a second."""
    source = random.Random(seed)

    def trace(now: float) -> tuple[float, ...]:
        late_s = [source.uniform(0, 0.25) * (source.random() < 0.1) for _ in range(2)]
        return tuple(0.04 + source.uniform(0, 0.03) + each for each in late_s)

    assert moves_over(trace, 600, seed) == []


@pytest.mark.parametrize("seed", range(6))
def test_over_ten_jittering_minutes_a_region_that_becomes_far_is_left_once(seed: int) -> None:
    """200 ms are added in the middle, for good: the session goes, and neither it nor those that
    are near already move again."""
    source = random.Random(seed)

    def trace(now: float) -> tuple[float, ...]:
        far_s = 0.2 if now >= 300 else 0.0
        return tuple(0.02 + more + source.uniform(0, 0.03) for more in (far_s, 0.0))

    moves = moves_over(trace, 600, seed)
    assert [cloud for _, cloud in moves] == [1]
    assert 300 < moves[0][0] < 305


@pytest.mark.parametrize("period_s", [2.0, 5.0, 10.0, 30.0])
def test_no_trace_makes_a_session_go_to_and_fro(period_s: float) -> None:
    """Clouds that take turns in being the far one: each stay is twice as long as the one before."""

    def trace(now: float) -> tuple[float, ...]:
        first = int(now / period_s) % 2 == 0
        return (0.02, 0.3) if first else (0.3, 0.02)

    moves = moves_over(trace, 600)
    assert len(moves) <= 8
    for (before_s, _), (after_s, _), number in zip(moves, moves[1:], range(8), strict=False):
        assert after_s - before_s >= STAY_S * 2 ** (number + 1)


class ThoroughRouting(Router):
    """Compares every cloud again, whatever is new."""

    def _compare(self, cloud: int, now: float) -> None:
        self._compare_all(now)


@pytest.mark.parametrize("seed", range(8))
def test_to_compare_what_is_new_alone_finds_the_same(seed: int) -> None:
    source, clouds = random.Random(seed), 9
    quick, thorough = both = Router(clouds), ThoroughRouting(clouds)
    for step in range(600):
        now, cloud = step * 0.1, source.randrange(clouds)
        report = CloudReport(
            source.choice((0.01, 0.05, 0.2)),
            serving=source.random() < 0.95,
            model="a" if source.random() < 0.97 else "b",
            pass_s=source.choice((0.0, 0.03)),
            price=1.0 if source.random() < 0.98 else 2.0,
        )
        what, forgotten = source.random(), quick.clouds[cloud].forgotten
        for each in both:
            if forgotten:
                each.know(cloud)
            elif what < 0.02:
                each.forget(cloud, now)
            elif what < 0.1:
                each.unanswered(cloud, now)
            elif what < 0.13:
                each.lost(cloud, now)
            else:
                each.reported(cloud, report, now)
        worse = [[state.worse_since_s for state in each.clouds] for each in both]
        assert worse[0] == worse[1]
        assert quick.warm() == thorough.warm() == tuple(quick.ranked()[:2])
        assert quick.choose(step) == thorough.choose(step)


def test_a_saving_too_small_moves_nobody() -> None:
    assert moves_over(lambda now: (0.1, 0.07), 600) == []
    assert moves_over(lambda now: (0.02, 0.001), 600) == []


def test_a_busy_cloud_is_left_for_an_idle_one() -> None:
    busy = CloudReport(0.01, queue_s=0.2, pass_s=0.1)
    clouds = routing(busy, CloudReport(0.05, pass_s=0.1))
    place = Placement(0, 0.0)
    assert clouds.why_leave(place, 1, 1.0) is None
    assert clouds.why_leave(place, 1, STAY_S + 2.0) is MoveReason.BETTER


def test_sessions_of_a_cloud_that_stops_stay_until_it_asks_them() -> None:
    """All at once they would wait for each other's texts to be computed where they go."""
    stopping = CloudReport(0.01, serving=False, draining=True)
    clouds = routing(stopping, CloudReport(0.02))
    place = Placement(0, 0.0)
    assert clouds.why_leave(place, 1, STAY_S + 2.0) is None
    assert clouds.choose(1) == 1
    clouds.reported(0, CloudReport(0.01, serving=False), 2.0)
    assert clouds.why_leave(place, 1, 2.0) is MoveReason.NOT_SERVING


def test_new_sessions_spread_by_load() -> None:
    """With the power of two choices no cloud gets more than its share by much."""
    clouds = routing(*[CloudReport(0.02, max_sessions=64)] * 4)
    chosen = Counter[int]()
    for session in range(400):
        cloud = clouds.choose(session)
        clouds.opened(cloud)
        chosen[cloud] += 1
    assert max(chosen.values()) - min(chosen.values()) <= 8


def test_new_sessions_avoid_a_full_cloud_and_a_far_one() -> None:
    reports = [CloudReport(0.02, sessions=60, max_sessions=64), CloudReport(0.02, max_sessions=8)]
    clouds = routing(*reports, CloudReport(0.2))
    assert {clouds.choose(session) for session in range(50)} == {1}


def test_what_is_kept_goes_before_load_but_not_before_distance() -> None:
    clouds = routing(CloudReport(0.02, sessions=60), CloudReport(0.02), CloudReport(0.3))
    assert clouds.choose(1, kept=0) == 0
    assert clouds.choose(1, kept=2) != 2
    clouds.lost(0, 1.0)
    assert clouds.choose(1, kept=0) == 1


def test_a_lost_cloud_is_used_again_after_two_answers() -> None:
    clouds = routing(CloudReport(0.01), CloudReport(0.2))
    clouds.lost(0, 1.0)
    assert clouds.choose(1, leaving=0) == 1
    clouds.reported(0, CloudReport(0.01), 2.0)
    assert clouds.choose(2) == 1
    clouds.reported(0, CloudReport(0.01), 2.5)
    assert clouds.choose(2) == 0


def test_one_unanswered_question_is_no_loss() -> None:
    clouds = routing(CloudReport(0.01), CloudReport(0.2))
    clouds.unanswered(0, 1.0)
    assert clouds.choose(1) == 0
    clouds.unanswered(0, 1.5)
    assert clouds.choose(1) == 1
    assert clouds.warm() == (1, 0)


def test_a_cloud_that_does_not_serve_is_left_at_once_if_another_does() -> None:
    clouds = routing(CloudReport(0.01), CloudReport(0.3))
    clouds.reported(0, CloudReport(0.01, serving=False), 1.0)
    place = Placement(0, 0.9)
    assert clouds.why_leave(place, 1, 1.0) is MoveReason.NOT_SERVING
    assert clouds.choose(1, leaving=0) == 1
    clouds.reported(1, CloudReport(0.3, serving=False), 1.1)
    assert clouds.why_leave(place, 1, 1.2) is None


def test_with_no_other_a_lost_cloud_is_tried_again_before_a_dead_one() -> None:
    clouds = Router(2)
    clouds.reported(0, CloudReport(0.01), 0.0)
    for now in (0.0, 1.0, 2.0):
        clouds.unanswered(1, now)
    clouds.lost(0, 3.0)
    assert clouds.choose(1, leaving=0) == 0
    clouds.unanswered(0, 4.0)
    clouds.unanswered(0, 5.0)
    assert clouds.choose(1, leaving=0) == 1, "both are dead: in turn"


def test_before_any_answer_clouds_are_tried_in_turn() -> None:
    clouds = Router(3)
    assert clouds.choose(1) == 0
    clouds.lost(0, 1.0)
    assert clouds.choose(1, leaving=0) == 1
    assert clouds.choose(1, refused={1}, leaving=0) == 2


def test_a_cloud_of_another_model_gets_no_sessions() -> None:
    clouds = routing(CloudReport(0.2, model="a"), CloudReport(0.01, model="b"))
    assert {clouds.choose(session) for session in range(20)} == {0}
    assert clouds.why_leave(Placement(0, 0.0), 1, 60.0, "a") is None
    clouds.lost(0, 60.0)
    assert clouds.choose(1, "a", leaving=0) == 0


def test_a_cloud_that_does_not_answer_is_left_even_while_its_stream_is_open() -> None:
    clouds = routing(CloudReport(0.01), CloudReport(0.3))
    place = Placement(0, 0.0)
    for now in (3.0, 4.0):
        clouds.unanswered(0, now)
        assert clouds.why_leave(place, 1, now) is None
    assert clouds.why_leave(place, 1, 6.0) is MoveReason.LOST


def test_a_cloud_that_asks_its_sessions_to_go_gets_no_new_ones() -> None:
    clouds = routing(CloudReport(0.01), CloudReport(0.2))
    clouds.leaves(0, 1.0)
    assert {clouds.choose(session) for session in range(20)} == {1}


def test_a_session_that_leaves_a_cloud_does_not_come_back_at_once() -> None:
    """Though that is the nearest, and works for others."""
    clouds = routing(CloudReport(0.01), CloudReport(0.2))
    assert clouds.choose(1) == 0
    assert clouds.choose(1, leaving=0) == 1


def test_nobody_moves_for_the_sake_of_a_cloud_of_another_model() -> None:
    """The session's own cloud has come back with another model, and those that are near serve that
    one; the only other cloud of the session's model is as far away."""
    clouds = routing(
        CloudReport(0.3, model="b"), CloudReport(0.01, model="b"), CloudReport(0.29, model="a")
    )
    place = Placement(0, 0.0)
    assert clouds.why_leave(place, 1, 60.0, "a") is None
    assert clouds.why_leave(place, 1, 60.0, "b") is MoveReason.BETTER


def test_channels_are_kept_to_two_clouds_the_lost_ones_last_the_oldest_loss_first() -> None:
    clouds = routing(*[CloudReport(0.01)] * 3, CloudReport(0.2))
    for cloud, now in ((1, 3.0), (0, 5.0)):
        clouds.lost(cloud, now)
    assert clouds.ranked() == [2, 3, 1, 0]
    assert clouds.warm() == (2, 3)


def test_a_saving_of_just_the_margin_is_enough() -> None:
    for other_s, reason in ((0.025, MoveReason.BETTER), (0.026, None)):
        clouds = routing(CloudReport(0.05), CloudReport(other_s))
        assert clouds.why_leave(Placement(0, 0.0), 1, 60.0) is reason


@pytest.mark.parametrize("refusals", [1, 2])
def test_an_answer_that_it_does_not_serve_makes_no_lost_cloud_usable(refusals: int) -> None:
    clouds = routing(CloudReport(0.01), CloudReport(0.2))
    clouds.lost(0, 1.0)
    for _ in range(refusals):
        clouds.reported(0, CloudReport(0.01, serving=False), 2.0)
    clouds.reported(0, CloudReport(0.01), 3.0)
    assert clouds.choose(1) == 1, "one good answer"
    clouds.reported(0, CloudReport(0.01), 4.0)
    assert clouds.choose(1) == 0


def test_a_session_stays_two_seconds_and_after_each_move_twice_as_long() -> None:
    clouds = routing(CloudReport(0.2), CloudReport(0.02))
    for moves, stays_s in ((0, 2.0), (1, 4.0), (3, 16.0)):
        place = Placement(0, 0.0, moves)
        assert clouds.why_leave(place, 1, stays_s - 0.01) is None
        assert clouds.why_leave(place, 1, stays_s) is MoveReason.BETTER


def test_new_sessions_go_to_clouds_that_cost_a_quarter_more_and_no_further() -> None:
    clouds = routing(CloudReport(0.2), CloudReport(0.245), CloudReport(0.255))
    assert {clouds.choose(session) for session in range(50)} == {0, 1}
    clouds = routing(CloudReport(0.002), CloudReport(0.016), CloudReport(0.018))
    assert {clouds.choose(session) for session in range(50)} == {0, 1}, "15 ms are near anyhow"


def test_sessions_of_a_cloud_that_became_far_do_not_all_move_at_once() -> None:
    """The other one would get all their prompts in the same moment."""
    clouds = routing(CloudReport(0.2), CloudReport(0.02))
    place = Placement(0, -60.0)
    moved = [
        sum(clouds.why_leave(place, spread, now) is not None for spread in range(200))
        for now in (0.6, 0.8, 1.0, 1.2, 1.4)
    ]
    assert moved[0] == 0
    assert moved[-1] == 200
    for before, after in pairwise(moved):
        assert 10 <= after - before <= 100


def test_five_round_trips_tell_where_a_cloud_is() -> None:
    """Three short ones of the last five; of the last six as many were long."""
    clouds = routing(CloudReport(0.3), CloudReport(0.1))
    for round_trip_s in (0.3, 0.3, 0.01, 0.01, 0.01):
        clouds.reported(0, CloudReport(round_trip_s), 1.0)
    assert clouds.choose(1) == 0


def test_a_cloud_twice_as_dear_must_be_twice_as_fast() -> None:
    """With a weight of 1; with less, less. Who says no price counts as the cheapest."""
    dear, cheap = CloudReport(0.16, price=2.0), CloudReport(0.3, price=1.0)
    for weight, better in ((1.0, 1), (0.5, 0), (0.0, 0)):
        clouds = Router(2, weight)
        for cloud, report in enumerate((dear, cheap)):
            clouds.reported(cloud, report, 0.0)
        assert clouds.ranked()[0] == better
    assert routing(dear, CloudReport(0.3)).ranked()[0] == 0
    assert routing(CloudReport(0.14, price=2.0), cheap).ranked()[0] == 0


def test_who_says_its_price_no_more_is_no_longer_dear() -> None:
    dear, cheap = CloudReport(0.16, price=9.0), CloudReport(0.3, price=1.0)
    clouds = routing(dear, cheap)
    assert clouds.ranked()[0] == 1
    clouds.reported(0, CloudReport(0.16), 1.0)
    assert clouds.ranked()[0] == 0


def test_sessions_leave_for_the_cheaper_of_two_near_clouds() -> None:
    """A round counts as 100 ms at least, or a millisecond would be worth twice the money."""
    clouds = routing(CloudReport(0.004, price=3.0), CloudReport(0.005, price=1.0))
    assert {clouds.choose(session) for session in range(20)} == {1}
    assert clouds.why_leave(Placement(0, 0.0), 1, 60.0) is MoveReason.BETTER
    clouds = routing(CloudReport(0.004, price=1.1), CloudReport(0.005, price=1.0))
    assert {clouds.choose(session) for session in range(20)} == {0, 1}, "a tenth more is near"


def test_a_forgotten_cloud_is_left_and_its_number_may_be_another_s() -> None:
    clouds = routing(CloudReport(0.01, model="a"), CloudReport(0.3, model="a"))
    place = Placement(0, 60.0)
    clouds.forget(0, 60.0)
    assert clouds.ranked() == [1]
    assert clouds.warm() == (1,)
    assert clouds.why_leave(place, 1, 60.0, "a") is MoveReason.NOT_SERVING
    assert clouds.choose(1, "a", leaving=0) == 1
    clouds.lost(1, 61.0)
    assert clouds.choose(1, "a", leaving=1) == 1, "the only one that is known"
    assert clouds.why_leave(place, 1, 61.0, "a") is None
    clouds.know(0)
    clouds.know(2)
    assert sorted(clouds.ranked()) == [0, 1, 2]
    clouds.reported(0, CloudReport(0.01, model="a"), 62.0)
    assert clouds.choose(1, "a", leaving=1) == 0


def test_a_cloud_is_far_by_its_way_alone() -> None:
    busy, idle = CloudReport(0.02, queue_s=0.3, pass_s=0.2), CloudReport(0.02, pass_s=0.07)
    assert not routing(busy, idle).is_far(0)
    assert routing(CloudReport(0.22, pass_s=0.07), idle).is_far(0)
    assert not routing(CloudReport(0.22, pass_s=0.07)).is_far(0)
    assert not routing(CloudReport(0.22), CloudReport(0.02, serving=False)).is_far(0)
