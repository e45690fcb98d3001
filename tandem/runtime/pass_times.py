"""What a pass of an engine takes over one token and over several, measured before anybody asks.

On some engines a further token of a pass costs next to nothing, on others nearly half of the first:
drafts are worth less there. An edge that learned it from its own drafts alone would pay for that.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from tandem.backends.interface import Engine, ForwardRequest

ROWS = 5
"""Tokens of the longer pass: four drafts and the token before them."""
_REPEATS = 3
_ENOUGH_S = 1.0
"""Seconds after which no pass is repeated: a large model's passes vary less."""


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Seconds of a pass over one token, and what each further token adds."""

    first_s: float
    further_s: float

    @property
    def row_share(self) -> float:
        """What a further token adds, as a share of a pass over one token; 1 at most."""
        return self.further_s / self.first_s


def measure_pass_times(
    engine: Engine, clock: Callable[[], float] = time.perf_counter
) -> PassTimes | None:
    """Time passes of an engine that nobody uses yet, in turn over one token and over `ROWS`. The
    shortest of each counts, as other programs only make passes longer. Returns None where the
    context is shorter than that, or the clock too coarse."""
    if engine.context_length < ROWS:
        return None
    shortest_s = {1: inf, ROWS: inf}
    began_s = clock()
    session = engine.open(ROWS)
    try:
        for _ in range(_REPEATS):
            for rows in shortest_s:
                started_s = clock()
                engine.forward([ForwardRequest(session, (0,) * rows, rows)])
                shortest_s[rows] = min(shortest_s[rows], clock() - started_s)
                session.rollback(0)
            if clock() - began_s > _ENOUGH_S:
                break
    finally:
        session.close()
    first_s = shortest_s[1]
    if first_s <= 0:
        return None
    further_s = (shortest_s[ROWS] - first_s) / (ROWS - 1)
    return PassTimes(first_s, min(max(0.0, further_s), first_s))
