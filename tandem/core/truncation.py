"""Truncation of the draft's distribution before sampling (TSLT §3.1: sparsify, then sample).

Invariant: the truncated distribution is renormalised and is the distribution that is drawn from, so
the output distribution stays the target's; the acceptance rate changes by at most the mass cut off
(TSLT theorem 3.2). Truncating after the draw would be lossy and is not offered."""

from dataclasses import dataclass

from tandem.core.errors import InvalidArgument
from tandem.core.probs import Array, keep_largest, keep_nucleus


@dataclass(frozen=True, slots=True)
class Truncation:
    """Keep the `top_k` most likely tokens, then the fewest that hold `top_p` of what is left.
    `top_k` 0 and `top_p` 1 do not cut."""

    top_k: int = 0
    top_p: float = 1.0

    @property
    def cuts(self) -> bool:
        return self.top_k > 0 or self.top_p < 1

    def validate(self, vocabulary_size: int) -> None:
        """Raise InvalidArgument("draft_top_k") or ("draft_top_p") when out of range (NaN too)."""
        if not 0 <= self.top_k <= vocabulary_size:
            raise InvalidArgument("draft_top_k", f"{self.top_k} is not in [0, {vocabulary_size}]")
        if not 0 < self.top_p <= 1:
            raise InvalidArgument("draft_top_p", f"{self.top_p} is not in (0, 1]")


NO_TRUNCATION = Truncation()


def truncate(probs: Array, truncation: Truncation) -> Array:
    """`probs` [V] cut and renormalised; ties at either border stay by lower id."""
    if not truncation.cuts:
        return probs
    kept = probs.copy()
    if 0 < truncation.top_k < len(probs):
        keep_largest(kept, truncation.top_k, 0)
    if truncation.top_p < 1:
        keep_nucleus(kept, truncation.top_p)
    kept /= kept.sum()
    return kept
