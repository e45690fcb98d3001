"""How much is trained, and when what was learned is judged. Pure.

Each text may be trained on a few times, and no more: without new texts there is nothing more to
learn, and a device must come to rest. A judgement reads all held-back texts, so it has to wait
until enough was trained. What gains nothing several times in a row is given up until there are new
texts."""

from __future__ import annotations

from dataclasses import dataclass

PASSES = 8
"""So often each token is trained on, at most, when it is new."""
TOKENS_BEFORE_JUDGING = 2000
MOST_FAILURES = 4
MOST_BACKLOG = 50_000
"""Tokens: what a device that is never idle for long leaves out."""


@dataclass(slots=True)
class TrainingSchedule:
    """`backlog` counts the tokens that are still to be trained on, each as often as it will be."""

    backlog: int = 0
    unjudged: int = 0
    """Tokens that were trained on since the last judgement."""
    failures: int = 0
    """Judgements in a row that found no gain at all."""

    def recorded(self, tokens: int) -> None:
        """Record a new text of which `tokens` can be trained on."""
        self.backlog = min(MOST_BACKLOG, self.backlog + PASSES * tokens)

    def trained(self, tokens: int) -> None:
        """Record a training step over `tokens`."""
        self.backlog = max(0, self.backlog - tokens)
        self.unjudged += tokens

    @property
    def judges(self) -> bool:
        """True if what was learned is to be judged next."""
        return self.unjudged >= TOKENS_BEFORE_JUDGING

    def judged(self, gained: bool) -> bool:
        """Note a judgement, and whether acceptance was higher at all, by chance or not; returns
        whether what is being trained is to be given up."""
        self.unjudged = 0
        self.failures = 0 if gained else self.failures + 1
        if self.failures < MOST_FAILURES:
            return False
        self.failures = 0
        self.backlog = 0
        return True
