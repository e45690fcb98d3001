"""Whether a new adapter is used, by the acceptance of texts that it was not trained on. Pure.

Invariants: an adapter is used only if acceptance rises, by more than chance makes it, over the one
in use and over the draft model without any; one in use that has fallen behind the draft model
without any is given up, and one that harms what is asked now is set aside. A buffer of nonsense
teaches nothing that raises acceptance, so what is learned from it is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import sqrt

MIN_TEXTS = 4
MIN_TOKENS = 128
MIN_GAIN = 0.005
"""In acceptance: less would not pay for the adapter's own time in each draft step."""
STANDARD_ERRORS = 1.64
"""By which the mean gain must differ from zero."""
MIN_RECENT_TEXTS = 3
MIN_RECENT_TOKENS = 256
"""So few of the newest texts, and so few tokens of them, say whether an adapter serves what is
asked now: more would weigh the last kind of question in long after another one came."""
MIN_SHARE = 0.98
"""Of the acceptance without an adapter, on the newest texts."""


@dataclass(frozen=True, slots=True)
class Score:
    """Expected acceptance of drafts for one text: `accepted` of `tokens` tokens."""

    accepted: float
    tokens: int


class Outcome(StrEnum):
    """What follows from an evaluation."""

    ADOPTED = "adopted"
    REJECTED = "rejected"
    ROLLED_BACK = "rolled_back"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The outcome, and the acceptance of the draft model alone, with the adapter in use, and with
    the new one."""

    outcome: Outcome
    base: float
    before: float
    after: float


def enough_to_evaluate(texts: int, tokens: int) -> bool:
    """Return whether this many validation texts, with this many tokens together, are enough."""
    return texts >= MIN_TEXTS and tokens >= MIN_TOKENS


def evaluate(base: Sequence[Score], before: Sequence[Score], new: Sequence[Score]) -> Evaluation:
    """Compare three adapters over the same texts, in the same order; `base` is none, and `before`
    the same as that where none is in use."""
    outcome = Outcome.REJECTED
    if enough_to_evaluate(len(new), sum(score.tokens for score in new)):
        if rises(before, new) and rises(base, new):
            outcome = Outcome.ADOPTED
        elif rises(before, base):
            outcome = Outcome.ROLLED_BACK
    return Evaluation(outcome, acceptance(base), acceptance(before), acceptance(new))


def falls_behind(base: Sequence[Score], used: Sequence[Score]) -> bool:
    """Return whether the adapter in use harms what is asked now: on the newest texts, before they
    were learned from, it is behind the draft model without any.

    Args:
        base: of the newest texts without an adapter, oldest first.
        used: of the same texts with the adapter in use."""
    texts = tokens = 0
    while texts < len(used) and (texts < MIN_RECENT_TEXTS or tokens < MIN_RECENT_TOKENS):
        texts += 1
        tokens += used[-texts].tokens
    if texts < MIN_RECENT_TEXTS:
        return False
    return acceptance(used[-texts:]) < MIN_SHARE * acceptance(base[-texts:])


def acceptance(scores: Sequence[Score]) -> float:
    """Return the mean over all tokens; 0 of none."""
    tokens = sum(score.tokens for score in scores)
    return sum(score.accepted for score in scores) / tokens if tokens else 0.0


def rises(before: Sequence[Score], after: Sequence[Score]) -> bool:
    """Return whether acceptance rises by more than chance makes it: over the texts, which are
    independent of each other, as tokens of one text are not."""
    tokens = sum(score.tokens for score in before)
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
    return gain >= max(MIN_GAIN, STANDARD_ERRORS * error)
