"""What a pass of an engine takes over one token and over several, measured before anybody asks.

On some engines a further token of a pass costs next to nothing, on others nearly half of the first:
drafts are worth less there. An edge that learned it from its own drafts alone would pay for that.
A few more tokens say little about a prompt's: those hide behind the reading of the weights.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from statistics import median

from tandem.backends.interface import DefersPasses, Engine, ForwardRequest

DRAFT_ROWS = (2, 5)
"""Tokens of the longer passes: one draft, or four, and the token before them. An engine that
computes one row by other code than several charges most for the first further one."""
PROMPT_ROWS = (16, 64, 256)
"""Tokens of the passes that are measured for what a prompt takes, until one is long enough."""
_LONG_ENOUGH_S = 0.1
"""What the further tokens of a pass have to take, to say what more of them would."""
_REPEATS = 3
_FOLLOWING = 8
"""Passes over one token after another, of which the mean counts."""
_ENOUGH_S = 0.3
"""Seconds after which no pass is repeated: a large model's passes vary less."""


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Seconds of a pass over one token, and what each further token adds: one of a few, and one of
    a prompt. `longest_rows`, `longest_s`: the longest pass that was measured."""

    first_s: float
    further_s: float
    longest_rows: int
    longest_s: float
    drafts_never_pay: bool = False
    """Of an engine elsewhere, whether a pass over four drafts, of which three stand, is no faster
    than these tokens one by one, which are read from one answer and from another one after it."""

    @property
    def row_share(self) -> float:
        """What a further token adds, as a share of a pass over one token."""
        return self.further_s / self.first_s

    @property
    def prompt_row_s(self) -> float:
        """What each token of a prompt adds to a pass."""
        return max(0.0, self.longest_s - self.first_s) / (self.longest_rows - 1)


def measure_pass_times(
    engine: Engine, clock: Callable[[], float] = time.perf_counter
) -> PassTimes | None:
    """Time passes of an engine that nobody uses yet, in turn over one token and over `DRAFT_ROWS`,
    then over a prompt's. The shortest of each counts, as other programs only make passes longer; of
    the further rows the dearest do. Returns None where the context is shorter than that, or the
    clock too coarse."""
    if engine.context_length < max(*DRAFT_ROWS, 1 + _FOLLOWING):
        return None
    shortest_s = dict.fromkeys((1, *DRAFT_ROWS), inf)
    following_s = list[float]()
    began_s = clock()
    for _ in range(_REPEATS):
        for rows, known_s in shortest_s.items():
            shortest_s[rows] = min(known_s, _pass_s(engine, rows, rows, clock))
        if isinstance(engine, DefersPasses):
            following_s.append(_following_s(engine, clock))
        if clock() - began_s > _ENOUGH_S:
            break
    # An answer that is ahead of its reader takes no time.
    first_s = median(following_s) if following_s else shortest_s[1]
    if first_s <= 0:
        return None
    further_s = max((shortest_s[rows] - first_s) / (rows - 1) for rows in DRAFT_ROWS)
    longest_rows = max(DRAFT_ROWS)
    longest_s = shortest_s[longest_rows]
    for rows in PROMPT_ROWS:
        if longest_s - first_s >= _LONG_ENOUGH_S or rows > engine.context_length:
            break
        longest_rows, longest_s = rows, _pass_s(engine, rows, 1, clock)
    most = max(DRAFT_ROWS)
    round_s = shortest_s[most] + max(0.0, shortest_s[1] - first_s)
    return PassTimes(
        first_s,
        min(max(0.0, further_s), first_s),
        longest_rows,
        longest_s,
        drafts_never_pay=bool(following_s) and round_s >= (most - 1) * first_s,
    )


def _pass_s(engine: Engine, rows: int, logits_to_keep: int, clock: Callable[[], float]) -> float:
    # No token twice, where there are enough: an engine may know what follows a repeated text.
    token_ids = tuple(token % engine.vocabulary_size for token in range(rows))
    session = engine.open(rows)
    try:
        started_s = clock()
        engine.forward([ForwardRequest(session, token_ids, logits_to_keep)])
        return clock() - started_s
    finally:
        session.close()


def _following_s(engine: Engine, clock: Callable[[], float]) -> float:
    """Return the seconds of a pass over one token that follows such a pass: an engine elsewhere may
    read these from one answer, of which the first has all of the way there."""
    session = engine.open(1 + _FOLLOWING)
    try:
        ((row,),) = engine.forward([ForwardRequest(session, (0,), 1)])
        started_s = clock()
        for _ in range(_FOLLOWING):
            ((row,),) = engine.forward([ForwardRequest(session, (int(row.argmax()),), 1)])
        return (clock() - started_s) / _FOLLOWING
    finally:
        session.close()
