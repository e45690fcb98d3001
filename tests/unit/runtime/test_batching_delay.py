"""How long a pass waits for the jobs that follow from the last one."""

import pytest

from tandem.runtime.batching_delay import BatchingDelay

PASSES = 200


def seen(
    passes: list[tuple[float, int]], reaction_s: float, came: int, ended: int = 4
) -> BatchingDelay:
    """After many passes of these seconds and tokens, whose reactions took so long and brought so
    many jobs."""
    delay = BatchingDelay()
    for number in range(PASSES):
        seconds, tokens = passes[number % len(passes)]
        delay.passed(seconds, tokens, jobs=4)
        delay.reacted(reaction_s, ended, came)
    return delay


def test_jobs_that_come_back_are_waited_for_twice_as_long_as_they_take() -> None:
    delay = seen([(0.030, 4)], reaction_s=0.003, came=4)
    assert delay.wait_s(ended=4, waiting=4) == pytest.approx(0.006)


def test_jobs_that_do_not_come_back_are_not_waited_for() -> None:
    delay = seen([(0.030, 4)], reaction_s=0.003, came=0)
    assert delay.wait_s(ended=4, waiting=1) == 0.0


def test_a_wait_is_at_most_what_it_saves() -> None:
    """Sessions in one pass, not in two, save its fixed part, 20 ms; few of them less for the many
    who would wait."""
    delay = seen([(0.030, 4), (0.040, 8)], reaction_s=0.008, came=4)
    assert delay.wait_s(ended=1, waiting=1) == pytest.approx(0.016)
    assert delay.wait_s(ended=1, waiting=2) == pytest.approx(0.010)
    assert delay.wait_s(ended=1, waiting=3) == 0.0
    assert delay.wait_s(ended=3, waiting=3) == pytest.approx(0.016)
    slow = seen([(0.030, 4), (0.040, 8)], reaction_s=0.021, came=4)
    assert slow.wait_s(ended=4, waiting=1) == 0.0


def test_sessions_that_draft_are_waited_for_where_that_makes_more_steps() -> None:
    """With n jobs and m that draft, n + m steps in P + d seconds against n + m/2 in P."""
    delay = seen([(0.030, 4)], reaction_s=0.001, came=4)
    delay.drafted(0.006)
    assert delay.drafts_wait_s(waiting=0, drafting=4) == pytest.approx(0.012)
    assert delay.drafts_wait_s(waiting=4, drafting=4) == pytest.approx(0.010), "a third of a pass"
    assert delay.drafts_wait_s(waiting=8, drafting=4) == pytest.approx(0.006), "a fifth"
    assert delay.drafts_wait_s(waiting=9, drafting=4) == 0.0


def test_drafts_that_take_longer_than_a_pass_or_were_never_seen_are_not_waited_for() -> None:
    delay = BatchingDelay()
    assert delay.drafts_wait_s(waiting=0, drafting=4) == 0.0
    delay.drafted(0.006)
    assert delay.drafts_wait_s(waiting=0, drafting=4) == 0.0, "no pass was seen"
    slow = seen([(0.030, 4)], reaction_s=0.001, came=4)
    assert slow.drafts_wait_s(waiting=0, drafting=4) == 0.0, "no draft was seen"
    slow.drafted(0.031)
    assert slow.drafts_wait_s(waiting=0, drafting=4) == 0.0
