"""Deadlines of one request's cloud, over all its streams."""

import pytest

from tandem.specdec.liveness import (
    ANOTHER_CLOUD_S,
    ANSWER_S,
    FIRST_ANSWER_ROW_S,
    FIRST_ANSWER_S,
    TICK_S,
    Liveness,
    LivenessTimes,
    LostCloud,
)

TIMES = LivenessTimes(ping_after_s=1.0, dead_after_s=3.0, give_up_after_s=10.0)


def liveness(policy: LostCloud = LostCloud.FAIL, now: float = 100.0) -> Liveness:
    return Liveness(policy, TIMES, now)


def test_a_ping_once_per_silence() -> None:
    alive = liveness()
    alive.connected(100.0)
    assert alive.ping_due(100.99) is None
    assert alive.ping_due(101.0) == 1
    assert alive.ping_due(102.0) is None
    alive.received(102.5)
    assert alive.ping_due(103.4) is None
    assert alive.ping_due(103.5) == 2


def test_a_fresh_stream_gets_its_own_time() -> None:
    alive = liveness()
    alive.connected(100.0)
    assert not alive.is_dead(102.99)
    assert alive.is_dead(103.0)
    assert alive.lost(103.0) == 3.0
    alive.connected(104.0)
    assert not alive.is_dead(106.0)
    assert alive.ping_due(105.0) is not None


@pytest.mark.parametrize("policy", [LostCloud.FAIL, LostCloud.EDGE])
def test_an_outage_goes_on_over_silent_streams(policy: LostCloud) -> None:
    alive = liveness(policy)
    alive.connected(100.0)
    alive.received(101.0)
    alive.lost(104.0)
    alive.connected(105.0)
    assert not alive.is_given_up(110.9)
    assert alive.is_given_up(111.0)
    alive.received(111.5)
    assert not alive.is_given_up(112.0), "a sign of life ends it"


def test_an_outage_begins_when_a_stuck_cloud_last_worked_whatever_it_answered() -> None:
    alive = liveness()
    alive.connected(100.0)
    alive.received(107.0)  # a pong
    assert alive.lost(108.0, stuck_s=7.5) == 7.5
    alive.connected(108.1)
    assert not alive.is_given_up(110.4)
    assert alive.is_given_up(110.5)


@pytest.mark.parametrize("policy", list(LostCloud))
def test_a_text_that_was_stuck_twice_without_an_answer_is_not_begun_a_third_time(
    policy: LostCloud,
) -> None:
    alive = liveness(policy)
    for stream in range(2):
        alive.connected(100.0 + stream)
        alive.received(100.5 + stream)  # it is admitted
        assert not alive.is_given_up(100.5 + stream)
        alive.lost(100.6 + stream, stuck_s=0.1)
    assert alive.is_given_up(101.6)


def test_a_cloud_that_answers_may_be_stuck_again_and_one_that_refuses_may_be_asked_again() -> None:
    alive = liveness(LostCloud.WAIT)
    for stream in range(5):
        alive.connected(100.0 + stream)
        alive.received(100.5 + stream)
        alive.answered(100.5 + stream)
        alive.lost(100.6 + stream, stuck_s=0.1)
        for refused_s in (0.7, 0.8, 0.9):  # while it is stuck
            alive.connected(100.0 + stream + refused_s)
            alive.lost(100.0 + stream + refused_s, stuck_s=refused_s)
        assert not alive.is_given_up(100.9 + stream)


def test_a_moment_is_left_to_find_another_cloud_than_one_that_was_stuck_for_long() -> None:
    alive = liveness()
    alive.lost(100.5, stuck_s=1000.0)
    alive.connected(100.5)
    assert not alive.is_given_up(100.5 + ANOTHER_CLOUD_S - 0.01)
    alive.lost(100.6, stuck_s=1000.1)
    assert alive.is_given_up(100.5 + ANOTHER_CLOUD_S)
    alive.received(100.9)
    assert not alive.is_given_up(101.0), "another one"


def test_who_waits_never_gives_up() -> None:
    assert not liveness(LostCloud.WAIT).is_given_up(1e9)


def test_silence_behind_a_large_upload_means_nothing_for_a_while() -> None:
    alive = liveness()
    alive.connected(100.0)
    alive.uploading(256 * 1024 + 500_000, 100.0)
    alive.received(100.1)
    assert alive.ping_due(102.9) is None
    assert not alive.is_dead(104.9)
    assert alive.is_dead(105.0), "two seconds of upload, three of silence"
    alive.uploading(10**9, 105.0)
    assert alive.is_dead(113.0), "patience has an end"
    assert not alive.is_dead(112.9)


def test_nobody_is_given_up_behind_a_large_upload() -> None:
    alive = Liveness(LostCloud.FAIL, LivenessTimes(1.0, 3.0, 3.5), 100.0)
    alive.connected(100.0)
    alive.uploading(256 * 1024 + 500_000, 100.0)
    assert not alive.is_given_up(105.4)
    assert alive.is_given_up(105.5), "two seconds of upload, three and a half of silence"
    alive.lost(105.0)
    assert alive.is_given_up(105.0), "what was being uploaded is gone with its stream"


def test_time_in_which_nobody_looked_is_no_silence() -> None:
    alive = liveness()
    alive.connected(100.0)
    alive.received(100.1)
    for now in (100.2, 100.4, 105.4, 105.6):  # five seconds without a tick
        alive.tick(now)
    assert not alive.is_dead(105.6)
    assert alive.is_dead(100.1 + 3.0 + (5.0 - TICK_S))
    assert not alive.is_given_up(110.1)
    assert alive.is_given_up(100.1 + 10.0 + (5.0 - TICK_S))


def test_punctual_looks_excuse_nothing() -> None:
    alive = liveness()
    alive.connected(100.0)
    for tick in range(1, 16):
        alive.tick(100.0 + 0.2 * tick)
    assert alive.is_dead(103.0)


def test_by_default_a_lost_cloud_costs_less_than_three_seconds() -> None:
    alive = Liveness(LostCloud.FAIL, LivenessTimes(), 0.0)
    alive.connected(0.0)
    assert alive.ping_due(0.79) is None
    assert alive.ping_due(0.8) == 1
    assert (alive.is_dead(2.39), alive.is_dead(2.4)) == (False, True)
    assert (alive.is_given_up(2.59), alive.is_given_up(2.6)) == (False, True)


def test_a_ping_that_is_wanted_tells_the_round_trip() -> None:
    alive = liveness()
    alive.connected(100.0)
    first = alive.ping_due(100.1, wanted=True)
    assert (first, alive.ping_due(100.2, wanted=True)) == (1, None), "it is under way"
    alive.received(100.3)
    assert alive.ping_due(101.3) == 2, "a silent cloud is asked all the same"
    assert alive.ponged(1, 101.4) == pytest.approx(1.3)
    assert alive.ponged(1, 101.4) is None
    assert alive.ponged(2, 101.5) == pytest.approx(0.2)
    assert alive.ping_due(101.6, wanted=True) == 3
    alive.connected(102.0)
    assert alive.ponged(3, 102.1) is None, "of another stream"


def waited(alive: Liveness, since_s: float, until_s: float, text_tokens: int = 0) -> bool:
    """Whether the answer that a cloud owes, which has answered pings meanwhile, is lost."""
    for second in range(int(since_s), int(until_s) + 1):
        for tick in range(5):
            alive.tick(second + tick / 5)
        alive.awaits(True, text_tokens, float(second))
        alive.received(float(second))
    return alive.is_dead(until_s)


@pytest.mark.parametrize("text_tokens", [10, 10_000])
def test_the_first_answer_may_take_as_long_as_its_text_does(text_tokens: int) -> None:
    limit_s = FIRST_ANSWER_S + FIRST_ANSWER_ROW_S * text_tokens
    alive = liveness()
    alive.connected(100.0)
    assert not waited(alive, 100.0, 99.0 + limit_s, text_tokens)
    assert waited(alive, 100.0 + limit_s, 101.0 + limit_s, text_tokens)


def test_a_later_answer_is_lost_after_ten_times_the_longest() -> None:
    quick, slow = liveness(), liveness()
    for alive, pass_s in ((quick, 0.1), (slow, 60.0)):
        alive.connected(100.0)
        now = 100.0
        for _ in range(3):
            alive.awaits(True, 10, now)
            now += pass_s
            alive.answered(now)
        alive.tick(now)
        assert not waited(alive, now, now + max(ANSWER_S, 10 * pass_s) - 2)
        assert waited(alive, now, now + max(ANSWER_S, 10 * pass_s) + 1)


def test_a_cloud_that_owes_nothing_may_take_any_time() -> None:
    alive = liveness()
    alive.connected(100.0)
    alive.answered(100.0)
    for second in range(100, 2000):
        alive.tick(float(second))
        alive.received(float(second))
        alive.awaits(False, 10, float(second))
    assert not alive.is_dead(1999.5)


def test_a_process_that_did_not_run_lost_no_answer() -> None:
    alive = liveness()
    alive.connected(100.0)
    alive.answered(100.0)
    alive.tick(100.0)
    alive.awaits(True, 10, 100.0)
    alive.tick(1000.0)
    alive.received(1000.0)
    assert not alive.is_dead(1000.0)


@pytest.mark.parametrize("policy", LostCloud)
def test_two_rounds_in_a_row_that_are_lost_give_a_cloud_up(policy: LostCloud) -> None:
    alive = liveness(policy)
    now = 100.0
    for stream in range(4):
        alive.connected(now)
        assert alive.is_given_up(now) is (policy is not LostCloud.WAIT and stream >= 2)
        began_s = now
        while not alive.is_dead(now):
            now += 0.2
            alive.tick(now)
            alive.received(now)
            alive.awaits(True, 0, now)
        doubled = 2 ** max(0, stream - 1)
        assert now - began_s == pytest.approx(doubled * FIRST_ANSWER_S, abs=1.0)
        alive.lost(now)
    alive.connected(now)
    alive.answered(now)
    alive.tick(now)
    alive.received(now)
    assert not alive.is_given_up(now)
