"""How many tokens a round has along a text that the target drew.

Given that a token stands at a place, a draft at that place was accepted with min(1, draft ÷ target)
of its probabilities, whatever happened before it: with min(target, draft) it is accepted and is
that token, with the target's probability it is that token at all. So the expectation over all
rounds follows from one text, without drafting. Invariant: pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence


def tokens_per_round(accepted: Sequence[float], draft_length: int) -> float:
    """Return the expected tokens of a round of `draft_length` drafts and one token of the target's.
    `accepted`: for each token of the text the probability that a draft there was accepted."""
    left = [0.0] * (len(accepted) + 1)
    for start in reversed(range(len(accepted))):
        left[start] = 1.0
        reached = 1.0
        for place in range(start, min(start + draft_length + 1, len(accepted))):
            drafted = place < start + draft_length
            further = reached * accepted[place] if drafted else 0.0
            left[start] += (reached - further) * left[place + 1]
            reached = further
    return len(accepted) / left[0]
