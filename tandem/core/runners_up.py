"""Which tokens may come in the place of a draft: guesses that pre-drafting is aimed with. Nothing
drawn or accepted depends on them; a wrong guess costs time only. Weights compare with the draft
token's own, which is 1."""

import math

from tandem.core.distribution import Distribution, distribution_of
from tandem.core.probs import Array, most_likely

RunnersUp = tuple[tuple[int, float], ...]


def likely_runners_up(probs: Array, token_id: int, count: int) -> RunnersUp:
    """The `count` likeliest tokens of `probs` [V] but `token_id`, each runner-up with a weight."""
    others = [int(other) for other in most_likely(probs, count + 1) if other != token_id]
    best = sorted(others, key=lambda other: -float(probs[other]))[:count]
    own = float(probs[token_id])
    return tuple((other, _ratio(float(probs[other]), own)) for other in best)


def gumbel_runners_up(
    probs: Array | Distribution, token_id: int, seed: int, position: int, count: int
) -> RunnersUp:
    """The runners-up of the Gumbel coupling rule: the next best log distribution + noise."""
    found = distribution_of(probs).coupled_candidates(seed, position, count + 1)
    own = dict(found).get(token_id, -math.inf)
    others = [(other, score) for other, score in found if other != token_id][:count]
    return tuple((other, math.exp(min(0.0, score - own))) for other, score in others)


def _ratio(weight: float, own: float) -> float:
    return min(1.0, weight / own) if own > 0 else 1.0
