"""How far truncation moves the acceptance of each of several candidates: TSLT, Theorem 4.14.

Candidates are drawn with replacement and tried in order (its Algorithms 4 and 5); the target of
the j-th is what the refusals before it leave. The paper's Corollary 4.13 prints Z⁽¹⁾ where its
Lemma 4.11 and equation 56 have Z⁽²⁾ = Σ max(0, P⁽¹⁾ − Q); this follows the lemma. Invariant: pure
arithmetic."""

from dataclasses import dataclass

import numpy as np

from tandem.core.probs import Array


@dataclass(frozen=True, slots=True)
class CandidateBound:
    """The bound of the j-th candidate, given that those before it were refused: its acceptance rate
    without (β) and with truncation (β̂), and the bound on |β̂ − β|."""

    uncut: float
    cut: float
    bound: float

    @property
    def change(self) -> float:
        return abs(self.cut - self.uncut)


def candidate_bounds(
    target: Array, draft: Array, truncated: Array, candidates: int
) -> list[CandidateBound]:
    """Return one entry for each candidate, all arguments [V]; `truncated` is `draft` cut and
    renormalised. Shorter where a candidate before is always accepted, as nothing is then left to
    condition on."""
    uncut_target, cut_target = (np.asarray(target, dtype=np.float64) for _ in range(2))
    draft, truncated = np.asarray(draft, dtype=np.float64), np.asarray(truncated, dtype=np.float64)
    sigma = 0.5 * float(np.abs(draft - truncated).sum())
    bounds: list[CandidateBound] = []
    drift = 0.0  # Σ_k Π_s 2/Z⁽ˢ⁾: how far the two targets may be apart, in units of σ
    while True:
        uncut = float(np.minimum(uncut_target, draft).sum())
        cut = float(np.minimum(cut_target, truncated).sum())
        bounds.append(CandidateBound(uncut, cut, (drift + 1) * sigma))
        rest, cut_rest = (
            np.maximum(uncut_target - draft, 0),
            np.maximum(cut_target - truncated, 0),
        )
        left, cut_left = float(rest.sum()), float(cut_rest.sum())
        if len(bounds) == candidates or min(left, cut_left) <= _NOTHING:
            return bounds
        drift = 2 / left * (drift + 1)
        uncut_target = rest / left
        cut_target = cut_rest / cut_left


_NOTHING = 1e-6
"""float32 distributions sum to 1 within this."""


def total_acceptance(bounds: list[CandidateBound], cut: bool = True) -> float:
    """Return the probability that one of the candidates is accepted: θ (equation 39)."""
    refused = 1.0
    for bound in bounds:
        refused *= 1 - (bound.cut if cut else bound.uncut)
    return 1 - refused
