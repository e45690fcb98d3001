"""Delayed batching: how long the next pass waits for jobs that follow from the last one.

Sessions that missed a pass would miss every one after it: while theirs runs, the others' jobs end
and come back just too late for the next. A wait brings them together again. It lasts no longer than
what that saves: the fixed part of a pass, or less where few jobs would make many wait. Invariant:
pure, one clock's seconds go in; what has not been seen is not waited for."""

from __future__ import annotations

from tandem.core.line_fit import LineFit

LEAST_S = 100e-6
"""Shorter waits bring nobody."""
SLACK = 2.0
"""Reactions may take so many times as long as they usually do."""
_FOLLOW = 0.1
_KEEP = 0.98
_MOST_JOB_TOKENS = 17
"""Tokens of a job that are not a prompt: a window of 16 and the one before it."""


class BatchingDelay:
    """Batching delay of one engine. A reaction is what an event loop does with a pass's results,
    including the jobs that it submits."""

    def __init__(self) -> None:
        self._seconds = LineFit(_KEEP)
        self._follow_rate = self._reaction_s = self._drafts_s = 0.0

    def passed(self, seconds: float, tokens: int, jobs: int) -> None:
        """Record a pass over `tokens` tokens of `jobs` jobs, and its seconds."""
        if tokens <= _MOST_JOB_TOKENS * jobs:
            self._seconds.add(tokens, seconds)

    def reacted(self, seconds: float, ended: int, came: int) -> None:
        """Record how long the event loop took to react to `ended` jobs of a pass, and how many new
        ones it submitted, or will when they have drafts. May be called on another thread than the
        rest."""
        self._follow_rate += _FOLLOW * (min(1.0, came / ended) - self._follow_rate)
        usual_s = self._reaction_s or seconds
        self._reaction_s = usual_s + _FOLLOW * (seconds - usual_s)

    def drafted(self, seconds: float) -> None:
        """Record how long a session took that drafted before it submitted a job. May be called on
        another thread than the rest."""
        usual_s = self._drafts_s or seconds
        self._drafts_s = usual_s + _FOLLOW * (seconds - usual_s)

    def drafts_wait_s(self, waiting: int, drafting: int) -> float:
        """Return for how many seconds after a pass a wait is worth it for sessions that draft,
        where `waiting` jobs could begin; 0 where none is.

        Those that miss a pass take part in every second one. With passes of P seconds and drafts of
        d, n jobs and m sessions that draft make n + m steps in P + d where passes wait, and n + m/2
        in P where they do not: a wait is worth it while d < P m / (2 n + m)."""
        if not self._seconds.weight or not self._drafts_s:
            return 0.0
        pass_s, _ = self._seconds.fit()  # at least
        worth_s = pass_s * drafting / max(1, 2 * waiting + drafting)
        if worth_s < self._drafts_s:
            return 0.0
        return min(SLACK * self._drafts_s, worth_s)

    def wait_s(self, ended: int, waiting: int) -> float:
        """Return for how many seconds a wait is worth it at most, where `ended` jobs ended with the
        last pass and `waiting` others wait for the next; 0 where none is."""
        if not self._seconds.weight or ended + waiting < 2:  # nobody to be together with
            return 0.0
        fixed_s, _ = self._seconds.fit()
        worth_s = fixed_s * min(1.0, self._follow_rate * ended / max(1, waiting))
        if worth_s < self._reaction_s:
            return 0.0
        most_s = min(SLACK * self._reaction_s, worth_s)
        return most_s if most_s >= LEAST_S else 0.0
