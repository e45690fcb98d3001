"""PicoSpec's own model of a round (§3.2 and §3.4), in seconds.

`wait_s` is what a round waits for after its last draft: the paper's T_rtt + T_verify. Its equations
are lost in the text at hand and are taken from the sentences around them: the bubble of equation 3
is what waiting takes beyond drafting the next round, and the lead time of Fast Verification, by
which the target's pass begins earlier, is taken off the wait."""

from lab.analysis.cost_models import check_acceptance
from tandem.control.conditions import check_duration


def synchronous_s(draft_s: float, wait_s: float) -> float:
    """Return the time of a round in stop-and-wait (eqs. 1 and 6). `draft_s`: of all its drafts."""
    _check(draft_s, wait_s, 0.0)
    return draft_s + wait_s


def overlapped_s(draft_s: float, wait_s: float, lead_s: float = 0.0) -> float:
    """Return the time of a round whose successor is drafted meanwhile and stays valid (eq. 2), with
    Fast Verification's lead time."""
    return draft_s + bubble_s(draft_s, wait_s, lead_s)


def bubble_s(draft_s: float, wait_s: float, lead_s: float = 0.0) -> float:
    """Return for how long the edge has nothing to draft in a round (eq. 3): what is left of the
    wait after drafting the next round and after the lead time."""
    _check(draft_s, wait_s, lead_s)
    return max(0.0, wait_s - lead_s - draft_s)


def expected_round_s(
    acceptance_rate: float,
    draft_length: int,
    *,
    draft_s: float,
    wait_s: float,
    lead_s: float = 0.0,
) -> float:
    """Return the expected time of a round (eqs. 8 and 9): overlapped where all its drafts are
    accepted, which has the probability a^n, and else in sequence. The lead time shortens the wait
    in both."""
    check_acceptance(acceptance_rate)
    hit = acceptance_rate**draft_length
    missed_s = synchronous_s(draft_s, max(0.0, wait_s - lead_s))
    return hit * overlapped_s(draft_s, wait_s, lead_s) + (1 - hit) * missed_s


def lead_s(wait_without_s: float, wait_with_s: float) -> float:
    """Return the lead time that two measured waits imply, without Fast Verification and with it."""
    return wait_without_s - wait_with_s


def _check(draft_s: float, wait_s: float, lead_s: float) -> None:
    durations = {"draft_s": draft_s, "wait_s": wait_s, "lead_s": lead_s}
    for field, duration in durations.items():
        check_duration(field, duration)
