"""What a distribution loses: by truncation before or after it is sampled, by PicoSpec's top-K
payload."""

from __future__ import annotations

from typing import Any

import numpy as np

from tandem.core.probs import Array, Truncation, most_likely, truncate


def cut_mass(probs: Array, truncated: Array) -> float:
    """Return σ of TSLT theorem 3.2: the mass of `probs` [V] outside the support of `truncated`
    [V]."""
    return float(probs[truncated == 0].sum())


def top_k_bias(target_probs: Array, draft_probs: Array, top: int) -> Any:
    """Return the total variation between the target distribution [V] and what comes out at one
    position. What is accepted is untouched. A recovered token comes from the residual max(0, target
    - draft) inside the top K alone, so the residual's mass outside, which is the bias, goes to the
    tokens inside it; if it has no mass inside, all of it goes to the head of the target
    distribution."""
    rest = np.maximum(target_probs - draft_probs, 0)
    ids = most_likely(target_probs, top)
    return rest.sum() - rest[ids].sum()


def before_sampling_bias(target_probs: Array, draft_probs: Array, truncation: Truncation) -> Any:
    """Return the total variation between the target distribution [V] and what comes out at one
    position where the draft distribution [V] is truncated and then sampled, as `tslt` does: none,
    but for rounding."""
    kept = truncate(draft_probs, truncation)
    accepted = np.minimum(target_probs, kept)
    return _variation(target_probs, accepted + (1 - accepted.sum()) * _share(target_probs - kept))


def after_sampling_bias(target_probs: Array, draft_probs: Array, truncation: Truncation) -> Any:
    """Return the total variation between the target distribution [V] and what comes out at one
    position where a draft is sampled from the whole draft distribution [V] and judged by what the
    truncation leaves of it, renormalised with the draft itself (`truncate_keeping`), as
    `tslt-after` does."""
    kept = truncate(draft_probs, truncation)
    inside = kept > 0
    # A draft outside of the cut is judged by a distribution of its own: the cut's, and itself.
    whole = draft_probs[inside].sum() + np.where(inside, 0, draft_probs)
    accepted = draft_probs * _acceptance(target_probs, draft_probs / whole)
    rejected = draft_probs - accepted
    found = accepted + rejected[inside].sum() * _share(target_probs - kept)
    outside = np.flatnonzero(~inside & (rejected > 0))
    if not len(outside):
        return _variation(target_probs, found)
    # Residuals after each of these drafts: the cut's tokens, then all others but the draft itself.
    sent = draft_probs[inside] / whole[outside, None]
    head = np.maximum(target_probs[inside] - sent, 0)
    tail = target_probs[~inside].sum() - target_probs[outside]
    weights = rejected[outside] / (head.sum(axis=1) + tail)
    found[inside] += weights @ head
    found[~inside] += weights.sum() * target_probs[~inside]
    found[outside] -= weights * target_probs[outside]
    return _variation(target_probs, found)


def _acceptance(target_probs: Array, sent: Array) -> Array:
    """Return min(1, target/sent) [n], 1 where nothing is sent."""
    ratio = np.ones_like(target_probs)
    np.divide(target_probs, sent, out=ratio, where=sent > 0)
    return np.minimum(ratio, 1)


def _share(difference: Array) -> Array:
    """Return the residual of a difference [V] of distributions, normalised; if there is none,
    nothing was rejected."""
    rest = np.maximum(difference, 0)
    total = rest.sum()
    return rest / total if total > 0 else rest


def _variation(target_probs: Array, found: Array) -> Any:
    return np.abs(found - target_probs).sum() / 2
