"""What a distribution loses: by truncation before it is sampled, by PicoSpec's top-K payload."""

from __future__ import annotations

from typing import Any

import numpy as np

from tandem.core.probs import Array, most_likely


def cut_mass(probs: Array, truncated: Array) -> float:
    """σ of TSLT theorem 3.2: the mass of `probs` [V] outside the support of `truncated` [V]."""
    return float(probs[truncated == 0].sum())


def top_k_bias(target_probs: Array, draft_probs: Array, top: int) -> Any:
    """Total variation between the target distribution [V] and what comes out at one position. What
    is accepted is untouched. A recovered token comes from the residual max(0, target - draft)
    inside the top K alone, so the residual's mass outside, which is the bias, goes to the tokens
    inside it; if it has no mass inside, all of it goes to the head of the target distribution."""
    rest = np.maximum(target_probs - draft_probs, 0)
    ids = most_likely(target_probs, top)
    return rest.sum() - rest[ids].sum()
