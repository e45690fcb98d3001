"""The jobs that an engine can expect soon: sessions that draft in the cloud submit theirs once they
have drafts. Invariant: used on one event loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class ExpectedJob:
    """A session's next job, for which something is drafted now."""

    since_s: float


class ExpectedJobs:
    """Count them: a pass that begins without one makes its session wait for that pass's end."""

    def __init__(self, on_drafted: Callable[[float], None], on_all: Callable[[], None]) -> None:
        """Begin with none.

        Args:
            on_drafted: called with the seconds that a session took to draft.
            on_all: called when the last of them was submitted, or does not come any more."""
        self._on_drafted = on_drafted
        self._on_all = on_all
        self._expected = set[ExpectedJob]()

    def __len__(self) -> int:
        return len(self._expected)

    def expect(self) -> ExpectedJob:
        """Note that a session drafts, in order to submit a job then."""
        job = ExpectedJob(time.perf_counter())
        self._expected.add(job)
        return job

    def arrived(self, job: ExpectedJob) -> None:
        """Note that its session has drafted, and submitted it."""
        self._on_drafted(time.perf_counter() - job.since_s)
        self.cancelled(job)

    def cancelled(self, job: ExpectedJob) -> None:
        """Record that nobody waits for the job. Nothing happens where that is known."""
        if job in self._expected:
            self._expected.remove(job)
            if not self._expected:
                self._on_all()
