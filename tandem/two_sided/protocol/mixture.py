"""One token from two sides: Speculative Aggregation and its coupled form. Each side drafts from its
own distribution; the token is a draw from exactly the mixture of both, weighted by the relevance of
each side's documents. DRAGON's Algorithm 1 passes a side's own weight where its appendix A.2 proves
the other side's; here it is the other's.

Arithmetic here keeps the number type of its input: the tests run these functions on fractions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandem.core.acceptance import residual
from tandem.core.errors import InvalidArgument
from tandem.core.probs import Array
from tandem.core.randomness import Purpose, RandomSource


class Side(IntEnum):
    """The place of documents. The values pick a side's own random numbers: never renumber them."""

    DEVICE = 0
    CLOUD = 1

    @property
    def other(self) -> "Side":
        return Side(1 - self)


class Weights(NamedTuple):
    """The shares η of the two sides in the mixture, which are their indices; they sum to 1."""

    device: Any
    cloud: Any


@dataclass(frozen=True, slots=True)
class SideDraft:
    """A side's draft token and what is known of the distribution that it was drawn from: all of it
    [V], or the head (`draft_head`)."""

    token_id: int
    probs: Any


@dataclass(frozen=True, slots=True)
class Aggregated:
    """The token at a position, and the side whose draft it is, or was put in the place of."""

    token_id: int
    side: Side


def log_mass(relevances: Sequence[float]) -> float:
    """Return h of a side: the log of the sum of exp(relevance) over its documents (DRAGON appendix
    A.1). No documents weigh nothing, which is -inf. Raises InvalidArgument for NaN or +inf."""
    scores = _checked(relevances)
    if not len(scores) or scores.max() == -np.inf:
        return -np.inf
    highest = float(scores.max())
    return highest + float(np.log(np.exp(scores - highest).sum()))


def document_weights(relevances: Sequence[float]) -> NDArray[np.float64]:
    """Return the shares [n] of a side's documents in its own distribution: softmax of their
    relevances."""
    scores = _checked(relevances)
    if not len(scores) or scores.max() == -np.inf:
        raise InvalidArgument("relevances", "name no document")
    weights: NDArray[np.float64] = np.exp(scores - scores.max())
    weights /= weights.sum()
    return weights


def local_probs(distributions: Array, weights: Array) -> Array:
    """Return a side's distribution [V] from its documents' distributions [n, V] and their shares
    [n]."""
    probs: Array = weights @ distributions
    return probs


def side_weights(device_log_mass: float, cloud_log_mass: float) -> Weights:
    """Return η of both sides from their h. A side without documents counts nothing; without any
    document at all there is nothing to mix: InvalidArgument."""
    masses = _checked((device_log_mass, cloud_log_mass))
    if masses.max() == -np.inf:
        raise InvalidArgument("log_mass", "neither side has documents")
    device, cloud = np.exp(masses - masses.max())
    share = float(device / (device + cloud))
    return Weights(share, 1.0 - share)


def mixture(device_probs: Array, cloud_probs: Array, weights: Weights) -> Array:
    """Return the target distribution [V]: η^device · device_probs + η^cloud · cloud_probs."""
    mixed: Array = weights.device * device_probs + weights.cloud * cloud_probs
    return mixed


def aggregate(
    device: SideDraft,
    cloud: SideDraft,
    *,
    weights: Weights,
    rng: RandomSource,
    position: int,
) -> Aggregated:
    """Return the token of `position`, drawn from the mixture (DRAGON Algorithm 1, corrected). Each
    side's draft is turned into a draw from the mixture, and a fair coin picks one of the two; a
    draft equal to the token is accepted. Both are of one vocabulary, as was checked on receipt."""
    # The coin first: what the other draft would be turned into is not needed.
    side = Side.DEVICE if rng.bernoulli(1, 2, position, Purpose.COIN) else Side.CLOUD
    draft, other = (device, cloud) if side is Side.DEVICE else (cloud, device)
    token_id = _redrawn(
        side,
        draft,
        other_probs=other.probs,
        other_weight=weights[side.other],
        rng=rng,
        position=position,
    )
    return Aggregated(token_id, side)


def coupled_side(weights: Weights, rng: RandomSource, position: int) -> Side:
    """Return whose token counts at `position`: the device's with probability η^device. Both sides
    know this beforehand; the token picked is a draw from the mixture even if the two draws are
    dependent."""
    whole = weights.device + weights.cloud
    is_device = rng.bernoulli(weights.device, whole, position, Purpose.COIN)
    return Side.DEVICE if is_device else Side.CLOUD


def _redrawn(
    side: Side,
    draft: SideDraft,
    *,
    other_probs: Array,
    other_weight: Any,
    rng: RandomSource,
    position: int,
) -> int:
    """Return a draw from the mixture, the side's draft where possible: where the side's
    distribution exceeds the other's, it is dropped with the *other* side's weight times the
    excess."""
    token = draft.token_id
    probs = draft.probs
    excess = probs[token] - other_probs[token]
    if excess <= 0:
        return token
    if not rng.bernoulli(other_weight * excess, probs[token], position, Purpose.ACCEPT, draw=side):
        return token
    return rng.categorical(residual(other_probs, probs), position, Purpose.RECOVER, side)


def _checked(scores: Sequence[float]) -> NDArray[np.float64]:
    values = np.asarray(scores, dtype=np.float64)
    if not (values < np.inf).all():  # False for NaN as well
        raise InvalidArgument("relevances", "are not all finite numbers or -inf")
    return values
