"""When an answer is late, and how many rounds may be asked of a second cloud."""

from __future__ import annotations

import pytest

from tandem.routing.hedging import FEWEST, LEAST_S, MOST_SAVED, HedgeBudget, StallWatch


def watch(*waits_s: float) -> StallWatch:
    """After a prompt and answers that took so long each, the last of them at 100."""
    found, now = StallWatch(), 100.0 - sum(waits_s)
    found.waits(now - 9.0)
    found.answered(now, more=True)
    for wait_s in waits_s:
        now += wait_s
        found.answered(now, more=True)
    return found


def stalled_at(found: StallWatch, until: float = 110.0) -> float | None:
    """When, asked every 0.2 s after 100."""
    times = (100.0 + 0.2 * step for step in range(int((until - 100.0) / 0.2) + 1))
    return next((now for now in times if found.stalled(now)), None)


@pytest.mark.parametrize(
    ("usual_s", "late_after_s"), [(0.01, LEAST_S), (0.25, 1.0), (0.6, 2.4), (1.0, 4.0)]
)
def test_an_answer_is_late_after_four_times_what_is_usual(
    usual_s: float, late_after_s: float
) -> None:
    at = stalled_at(watch(*[usual_s] * 9))
    assert at is not None
    assert late_after_s <= round(at - 100.0, 6) < late_after_s + 0.2


def test_usual_is_the_median_and_the_prompt_is_none_of_it() -> None:
    at = stalled_at(watch(0.1, 0.1, 3.0, 0.1, 3.0, 0.1))
    assert at is not None
    assert round(at - 100.0, 6) == 0.4


def test_nothing_is_late_before_anything_is_usual() -> None:
    assert stalled_at(watch(*[0.01] * (FEWEST - 1))) is None


def test_who_awaits_nothing_is_not_stalled() -> None:
    found = watch(*[0.01] * 9)
    found.answered(100.0, more=False)
    assert stalled_at(found) is None
    found.waits(110.0)
    found.waits(119.0)
    assert found.stalled(110.2) is False
    assert found.stalled(110.4) is True


def test_the_first_answer_of_another_stream_waits_for_the_text() -> None:
    found = watch(*[0.01] * 9)
    found.moved()
    found.waits(100.0)
    found.answered(105.0, more=True)
    assert found.stalled(105.4) is True, "five seconds did not become usual"


def test_a_time_in_which_this_process_did_not_run_is_no_silence() -> None:
    found = watch(*[0.01] * 9)
    assert found.stalled(100.0) is False
    assert found.stalled(103.0) is False
    assert found.stalled(103.2) is True


def test_a_share_of_the_rounds_may_be_hedged_and_a_few_are_saved_up() -> None:
    budget = HedgeBudget(0.25)
    assert [budget.take(), budget.take()] == [True, False]
    taken = 0
    for _ in range(400):
        budget.answered()
        taken += budget.take()
    assert taken == 100
    for _ in range(400):
        budget.answered()
    assert sum(budget.take() for _ in range(400)) == MOST_SAVED


def test_with_no_share_none_is() -> None:
    budget = HedgeBudget(0.0)
    for _ in range(1000):
        budget.answered()
    assert not budget.take()
