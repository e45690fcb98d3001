"""Which tokens may come in the place of a draft: guesses that pre-drafting is aimed with.

Nothing drawn or accepted depends on them; a wrong guess costs time only. Weights compare with the
draft token's own, which is 1. Must not import asyncio, grpc, torch or time.
"""

import numpy as np

from tandem.core.laws import Array, most_likely
from tandem.core.noise import gumbel

_HEAD = 64
"""Noise is added to this many of the likeliest tokens: others hardly ever win."""

Rivals = tuple[tuple[int, float], ...]


def likely_rivals(law: Array, token_id: int, count: int) -> Rivals:
    """The `count` likeliest tokens of `law` [V] but `token_id`, weighted by probability."""
    ids = [int(other) for other in most_likely(law, count + 1) if other != token_id]
    own = float(law[token_id])
    weighted = [(other, _ratio(float(law[other]), own)) for other in ids if law[other] > 0]
    return tuple(sorted(weighted, key=lambda rival: -rival[1])[:count])


def coupled_rivals(law: Array, token_id: int, seed: int, position: int, count: int) -> Rivals:
    """The runners-up of the shared-noise rule: the largest log law + noise below the winner's."""
    head = most_likely(law, _HEAD)
    ids = head[(law[head] > 0) & (head != token_id)]
    if not len(ids):
        return ()
    with_own = np.append(ids, token_id)
    scores = np.log(law[with_own].astype(np.float64)) + gumbel(seed, position, with_own)
    best = np.argsort(-scores[:-1], kind="stable")[:count]
    return tuple((int(ids[i]), _ratio(float(np.exp(scores[i] - scores[-1])), 1.0)) for i in best)


def _ratio(weight: float, own: float) -> float:
    return min(1.0, weight / own) if own > 0 else 1.0
