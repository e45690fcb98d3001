"""How much is trained, and when what was learned is evaluated. Pure.

Each text may be trained on a few times, and no more: without new texts there is nothing more to
learn, and a device must come to rest. An evaluation reads all validation texts, so it has to wait
until enough was trained. What gains nothing several times in a row is given up until there are new
texts."""

from __future__ import annotations

from dataclasses import dataclass

EPOCHS = 8
"""So often each token is trained on, at most, when it is new."""
TOKENS_PER_EVALUATION = 2000
MAX_FAILURES = 4
MAX_BACKLOG = 50_000
"""Tokens: what a device that is never idle for long leaves out."""


@dataclass(slots=True)
class TrainingSchedule:
    """`backlog` counts the tokens that are still to be trained on, each as often as it will be."""

    backlog: int = 0
    unevaluated: int = 0
    """Tokens that were trained on since the last evaluation."""
    failures: int = 0
    """Evaluations in a row that found no gain at all."""

    def recorded(self, tokens: int) -> None:
        """Record a new text of which `tokens` can be trained on."""
        self.backlog = min(MAX_BACKLOG, self.backlog + EPOCHS * tokens)

    def trained(self, tokens: int) -> None:
        """Record a training step over `tokens`."""
        self.backlog = max(0, self.backlog - tokens)
        self.unevaluated += tokens

    @property
    def evaluates(self) -> bool:
        """True if what was learned is to be evaluated next."""
        return self.unevaluated >= TOKENS_PER_EVALUATION

    def evaluated(self, gained: bool) -> bool:
        """Note an evaluation, and whether acceptance was higher at all, by chance or not; returns
        whether what is being trained is to be given up."""
        self.unevaluated = 0
        self.failures = 0 if gained else self.failures + 1
        if self.failures < MAX_FAILURES:
            return False
        self.failures = 0
        self.backlog = 0
        return True
