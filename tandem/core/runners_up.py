"""Which tokens may come in the place of a draft: guesses that pre-drafting is aimed with. Nothing
drawn or accepted depends on them; a wrong guess costs time only. Weights compare with the draft
token's own, which is 1."""

import numpy as np

from tandem.core.gumbel import gumbel
from tandem.core.probs import Array, most_likely

_HEAD = 64
"""Noise is added to this many of the likeliest tokens: others hardly ever win."""

RunnersUp = tuple[tuple[int, float], ...]


def likely_runners_up(probs: Array, token_id: int, count: int) -> RunnersUp:
    """The `count` likeliest tokens of `probs` [V] but `token_id`, each runner-up with a weight."""
    others = [int(other) for other in most_likely(probs, count + 1) if other != token_id]
    best = sorted(others, key=lambda other: -float(probs[other]))[:count]
    own = float(probs[token_id])
    return tuple((other, _ratio(float(probs[other]), own)) for other in best)


def gumbel_runners_up(
    probs: Array, token_id: int, seed: int, position: int, count: int
) -> RunnersUp:
    """The runners-up of the Gumbel coupling rule: the next best log distribution + noise."""
    head = most_likely(probs, _HEAD)
    ids = head[(probs[head] > 0) & (head != token_id)]
    if not len(ids):
        return ()
    with_own = np.append(ids, token_id)
    scores = np.log(probs[with_own].astype(np.float64)) + gumbel(seed, position, with_own)
    best = np.argsort(-scores[:-1], kind="stable")[:count]
    return tuple((int(ids[i]), _ratio(float(np.exp(scores[i] - scores[-1])), 1.0)) for i in best)


def _ratio(weight: float, own: float) -> float:
    return min(1.0, weight / own) if own > 0 else 1.0
