"""How many sessions one simulated verifier holds within a limit of TPOT."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from lab.simulation.shared_verifier import VerifierFigures, VerifierPlan, simulate_verifier

MOST = 2048
"""Sessions beyond which nobody looks."""
NEAR = 0.02
"""A number is found to within this share of it, or to 1."""
FEW = 8
"""Up to so many are tried one by one: two sessions can be slower than three, which share passes."""
SESSION_S = 2000.0
LEAST_S = 60.0
WARM_S = 20.0
"""All sessions together are simulated for so many seconds, each for so long at least; before that
they desynchronise."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The most sessions whose 95th percentile of TPOT keeps to a limit: 0 where not even one
    session's does. `figures`: those of so many, or of one."""

    sessions: int
    figures: VerifierFigures


def sessions_held(plan: VerifierPlan, tpot_s: float, first: int = 16) -> Capacity:
    """Return how many sessions one verifier holds; the plan's own number of them does not count.

    Args:
        plan: step times, link and preset.
        tpot_s: 95 % of the answers have to have at most this TPOT, in seconds.
        first: the number to try first, a guess."""
    figures: dict[int, VerifierFigures] = {}

    def holds(sessions: int) -> bool:
        figures[sessions] = together(plan, sessions)
        return figures[sessions].keeps(tpot_s)

    sessions = largest(holds, MOST, first)
    least = figures.get(max(1, sessions))
    return Capacity(sessions, least or together(plan, max(1, sessions)))


def together(plan: VerifierPlan, sessions: int) -> VerifierFigures:
    """Return the figures of `sessions` sessions that decode all the time on one verifier."""
    lasts_s = max(LEAST_S, SESSION_S / sessions)
    return simulate_verifier(replace(plan, sessions=sessions, lasts_s=lasts_s, warm_s=WARM_S))


def largest(holds: Callable[[int], bool], most: int, first: int = 1) -> int:
    """Return the largest number that `holds`, to within NEAR of it; 0 if 1 does not, at most
    `most`. Looked for by doubling from `first` and halving: where a number holds, smaller ones are
    taken to hold too, but for FEW, which are tried from the largest down."""
    number = max(1, min(first, most))
    held = 0
    fails = most + 1
    while number < fails:
        if not holds(number):
            fails = number
        else:
            held = number
            number = min(2 * number, most)
            if held == most:
                return most
    while fails - held > max(1, NEAR * held):
        middle = fails - 1 if fails <= FEW else (held + fails) // 2
        if holds(middle):
            held = middle
        else:
            fails = middle
    return held
