"""What is learned from: texts of the target, and the parts of them that are trained on or validate.
Pure; `chance` is a random number above 0, at most 1.

Invariant: texts with the same prompt are on the same side: an answer to a question that was asked
before must not validate what was learned from the first answer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

VALIDATION_OF = 5
"""One of this many prompts validates."""
MIN_CONTEXT = 32
"""Tokens at the start of a window that has lost its beginning: nothing is predicted there."""
RECENCY = 0.5
"""Exponent: at 1 every text is as likely as any other, below that the newer ones are likelier."""


@dataclass(frozen=True, slots=True, eq=False)
class TargetProbs:
    """What is known of the target distribution at a token: `probs` [n] of the tokens `ids` [n].
    Where a draft was rejected there, `draft_probs` [n] is what it was drawn from; otherwise 0."""

    ids: NDArray[np.int32]
    probs: NDArray[np.float32]
    draft_probs: NDArray[np.float32]

    @property
    def residual(self) -> NDArray[np.float32]:
        """The distribution that the token in the place of the draft was drawn from, as far as it is
        known: norm(max(0, target - draft))."""
        residual = np.maximum(self.probs - self.draft_probs, 0)
        mass = residual.sum()
        return residual / mass if mass > 0 else self.probs


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """A text whose tokens from index `first` on, at least 1, are the target's.

    `temperature` is the one they were sampled at. `seed`: of the Gumbel noise that they were drawn
    with, and a draft would be; None where they were drawn otherwise. `position`: where its first
    token stood in the whole text. `target_probs`: by the index of a token, what is known of the
    target distribution there."""

    token_ids: NDArray[np.int32]
    first: int
    temperature: float
    seed: int | None = None
    position: int = 0
    target_probs: Mapping[int, TargetProbs] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def has_all_probs(self) -> bool:
        """Whether the target told its distribution at each of its tokens, not only where it
        rejected a draft."""
        known = self.target_probs.values()
        complete = len(known) == self.target_tokens > 0
        return complete and not any(each.draft_probs.any() for each in known)

    @property
    def target_tokens(self) -> int:
        """How many of its tokens are the target's."""
        return len(self.token_ids) - self.first

    @property
    def validates(self) -> bool:
        """True if it is never trained on."""
        prompt = self.token_ids[: self.first].astype("<u4").tobytes()
        return hashlib.sha256(prompt).digest()[0] % VALIDATION_OF == 0

    def part(self, start: int, end: int, context: int = 1) -> Example:
        """Return tokens `start`…`end` - 1, of which the first `context` are not predicted."""
        first = max(self.first - start, context)
        probs = {
            index - start: known
            for index, known in self.target_probs.items()
            if start + first <= index < end
        }
        return replace(
            self,
            token_ids=self.token_ids[start:end],
            first=first,
            position=self.position + start,
            target_probs=probs,
        )

    def validation_window(self, max_tokens: int) -> Example:
        """Return the first tokens of the answer with as much of the prompt, at most `max_tokens`
        together: the same part each time."""
        return self._window(max(0, self.first - max_tokens // 2), max_tokens)

    def training_window(self, max_tokens: int, chance: float) -> Example:
        """Return at most `max_tokens` of the text, of which some are the target's, from anywhere in
        it: a training step sees few tokens, so that it ends soon."""
        first = max(0, self.first - max_tokens // 2)
        last = max(first, len(self) - max_tokens)
        # Beyond both ends: else the beginning and the end would be in few windows.
        beyond = max_tokens // 2
        start = first - beyond + int(chance * (last - first + 2 * beyond + 1))
        return self._window(min(max(start, first), last), max_tokens)

    def _window(self, start: int, max_tokens: int) -> Example:
        end = min(len(self), start + max_tokens)
        return self.part(start, end, context=MIN_CONTEXT if start else 1)


def recent_index(count: int, chance: float) -> int:
    """Return the index of one of `count` texts in the order of their age, more often of a newer
    one."""
    return min(count - 1, int(count * chance**RECENCY))
