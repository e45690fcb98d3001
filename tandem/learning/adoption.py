"""Whether a new adapter is used, by the acceptance of texts that it was not trained on. Pure.

Invariants: an adapter is used only if acceptance rises, by more than chance makes it, over the one
in use and over the draft model without any; one in use that has fallen behind the draft model
without any is given up, and one that harms what is asked now is set aside. A store of nonsense
teaches nothing that raises acceptance, so what is learned from it is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import sqrt

from tandem.backends.adaptation import Overlap

LEAST_TEXTS = 4
LEAST_TOKENS = 128
LEAST_GAIN = 0.005
"""In acceptance: less would not pay for the adapter's own time in each draft step."""
SURENESS = 1.64
"""Standard errors by which the mean gain must differ from zero."""
LEAST_RECENT_TEXTS = 3
LEAST_RECENT_TOKENS = 256
"""So few of the newest texts, and so few tokens of them, say whether an adapter serves what is
asked now: more would weigh the last kind of question in long after another one came."""
LEAST_SHARE = 0.98
"""Of the acceptance without an adapter, on the newest texts."""


class Outcome(StrEnum):
    """What follows from a comparison."""

    ADOPTED = "adopted"
    REJECTED = "rejected"
    ROLLED_BACK = "rolled_back"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The outcome, and the acceptance without an adapter, with the one in use, and with the new
    one."""

    outcome: Outcome
    frozen: float
    before: float
    after: float


def enough_to_judge(texts: int, tokens: int) -> bool:
    """Return whether this many held-back texts, with this many tokens together, are enough to
    judge."""
    return texts >= LEAST_TEXTS and tokens >= LEAST_TOKENS


def judge(frozen: Sequence[Overlap], used: Sequence[Overlap], new: Sequence[Overlap]) -> Judgement:
    """Compare three adapters over the same texts, in the same order; `frozen` is none, and `used`
    the same as that where none is in use."""
    means = [acceptance(overlaps) for overlaps in (frozen, used, new)]
    outcome = Outcome.REJECTED
    if enough_to_judge(len(new), sum(overlap.tokens for overlap in new)):
        if rises(used, new) and rises(frozen, new):
            outcome = Outcome.ADOPTED
        elif rises(used, frozen):
            outcome = Outcome.ROLLED_BACK
    return Judgement(outcome, *means)


def falls_behind(frozen: Sequence[Overlap], used: Sequence[Overlap]) -> bool:
    """Return whether the adapter in use harms what is asked now: on the newest texts, before they
    were learned from, it is behind the draft model without any.

    Args:
        frozen: of the newest texts without an adapter, oldest first.
        used: of the same texts with the adapter in use."""
    texts = tokens = 0
    while texts < len(used) and (texts < LEAST_RECENT_TEXTS or tokens < LEAST_RECENT_TOKENS):
        texts += 1
        tokens += used[-texts].tokens
    if texts < LEAST_RECENT_TEXTS:
        return False
    return acceptance(used[-texts:]) < LEAST_SHARE * acceptance(frozen[-texts:])


def acceptance(overlaps: Sequence[Overlap]) -> float:
    """Return the mean over all tokens; 0 of none."""
    tokens = sum(overlap.tokens for overlap in overlaps)
    return sum(overlap.accepted for overlap in overlaps) / tokens if tokens else 0.0


def rises(before: Sequence[Overlap], after: Sequence[Overlap]) -> bool:
    """Return whether acceptance rises by more than chance makes it: over the texts, which are
    independent of each other, as tokens of one text are not."""
    tokens = sum(overlap.tokens for overlap in before)
    texts = len(before)
    if not tokens or texts < 2:
        return False
    gain = acceptance(after) - acceptance(before)
    # The error of a ratio of sums: each text's share of the total, minus its expectation.
    errors = [
        (new.accepted - old.accepted) - gain * old.tokens
        for old, new in zip(before, after, strict=True)
    ]
    error = sqrt(sum(each * each for each in errors) * texts / (texts - 1)) / tokens
    return gain >= max(LEAST_GAIN, SURENESS * error)
