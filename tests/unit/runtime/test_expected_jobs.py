"""Jobs that sessions submit once they have drafted."""

from __future__ import annotations

from tandem.runtime.expected_jobs import ExpectedJobs


def test_the_last_that_comes_or_is_given_up_ends_the_wait() -> None:
    seconds = list[float]()
    waits_over = list[str]()
    jobs = ExpectedJobs(seconds.append, lambda: waits_over.append("all"))
    first, second = jobs.expect(), jobs.expect()
    assert len(jobs) == 2
    jobs.arrived(first)
    assert (len(jobs), waits_over) == (1, [])
    jobs.cancelled(second)
    assert (len(jobs), waits_over) == (0, ["all"])
    assert len(seconds) == 1, "of the one that came"
    assert seconds[0] >= 0
    jobs.cancelled(second)
    assert waits_over == ["all"], "known"
