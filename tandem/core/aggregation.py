"""One token from two sides: Speculative Aggregation and its coupled form (DESIGN §3.5, §3.6).

Device and cloud each draw a draft from their own law; the token that counts is a draw from the
mixture of both, weighted by how relevant each side's documents are. DRAGON's Algorithm 1 passes a
side's own weight where its appendix A.2 proves the other side's; here it is the other's.

Invariant: whatever the two laws and weights, the output law is exactly the mixture. No arithmetic
of laws here leaves the number type of its input: the tests run these functions on fractions. Must
not import asyncio, grpc, torch or time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.core.acceptance import residual
from tandem.core.chance import Chance, Purpose
from tandem.core.errors import InvalidArgument
from tandem.core.laws import Array


class Side(IntEnum):
    """Where documents are. The values pick a side's own random numbers: never renumber them."""

    DEVICE = 0
    CLOUD = 1

    @property
    def other(self) -> "Side":
        return Side(1 - self)


@dataclass(frozen=True, slots=True)
class Weights:
    """The shares η of the two sides in the mixture; they sum to 1."""

    device: Any
    cloud: Any

    def of(self, side: Side) -> Any:
        return self.device if side is Side.DEVICE else self.cloud


@dataclass(frozen=True, slots=True)
class SideDraft:
    """A side's draft token and the law [V] it was drawn from."""

    token_id: int
    law: Array


@dataclass(frozen=True, slots=True)
class Aggregated:
    """The token at a position, and whether each side's draft was that token."""

    token_id: int
    device_accepted: bool
    cloud_accepted: bool

    def accepted(self, side: Side) -> bool:
        return self.device_accepted if side is Side.DEVICE else self.cloud_accepted


def log_mass(relevances: Sequence[float]) -> float:
    """h of a side: log of the sum of exp(relevance) over its documents (DRAGON appendix A.1).

    No documents weigh nothing, which is -inf. Raises InvalidArgument for NaN or +inf.
    """
    scores = _checked(relevances)
    if not len(scores) or scores.max() == -np.inf:
        return -np.inf
    highest = float(scores.max())
    return highest + float(np.log(np.exp(scores - highest).sum()))


def document_weights(relevances: Sequence[float]) -> NDArray[np.float64]:
    """The shares [n] of a side's documents in its own law: softmax of their relevances."""
    scores = _checked(relevances)
    if not len(scores) or scores.max() == -np.inf:
        raise InvalidArgument("relevances", "name no document")
    weights: NDArray[np.float64] = np.exp(scores - scores.max())
    weights /= weights.sum()
    return weights


def local_law(laws: Array, weights: Array) -> Array:
    """A side's law [V] from its documents' laws [n, V] and their shares [n]."""
    if laws.ndim != 2 or len(laws) != len(weights):
        raise InvalidArgument("laws", f"shape {laws.shape} for {len(weights)} weights")
    law: Array = weights @ laws
    return law


def side_weights(device_log_mass: float, cloud_log_mass: float) -> Weights:
    """η of both sides from their h. A side without documents counts nothing; without any document
    at all there is nothing to mix: InvalidArgument."""
    masses = _checked((device_log_mass, cloud_log_mass))
    if masses.max() == -np.inf:
        raise InvalidArgument("log_mass", "neither side has documents")
    device, cloud = np.exp(masses - masses.max())
    share = float(device / (device + cloud))
    return Weights(share, 1.0 - share)


def mixture(device_law: Array, cloud_law: Array, weights: Weights) -> Array:
    """The target law [V]: η^device · device_law + η^cloud · cloud_law."""
    _check_shapes(device_law, cloud_law)
    law: Array = weights.device * device_law + weights.cloud * cloud_law
    return law


def aggregate(
    device: SideDraft, cloud: SideDraft, weights: Weights, chance: Chance, position: int
) -> Aggregated:
    """The token of `position`, drawn from the mixture (DRAGON Algorithm 1, corrected).

    Each side's draft is turned into a draw from the mixture, and a fair coin picks one of the two;
    a draft is accepted if it equals the token. Raises InvalidArgument for laws of different
    lengths or tokens outside of them.
    """
    _check_shapes(device.law, cloud.law)
    from_device = _redrawn(Side.DEVICE, device, cloud.law, weights.cloud, chance, position)
    from_cloud = _redrawn(Side.CLOUD, cloud, device.law, weights.device, chance, position)
    token_id = from_device if chance.happens(1, 2, position, Purpose.COIN) else from_cloud
    return Aggregated(token_id, token_id == device.token_id, token_id == cloud.token_id)


def coupled_side(weights: Weights, chance: Chance, position: int) -> Side:
    """Whose token counts at `position` (DESIGN §3.6): the device's with probability η^device.

    Both sides know this beforehand while the weights stand, and the token of a mixture's component
    picked like this is a draw from the mixture, however the two sides' draws depend on each other.
    """
    counts = chance.happens(weights.device, weights.device + weights.cloud, position, Purpose.COIN)
    return Side.DEVICE if counts else Side.CLOUD


def expected_acceptance(own_law: Array, other_law: Array, own_weight: Any) -> Any:
    """How often `aggregate` accepts a side's draft (DRAGON eq. 5; its second term is with the
    mixture, since the other side's draw has that law).

    A coupled draft is accepted more often: it counts by itself with the side's own weight, and
    equals the other side's with probability at least (1 - TV)/(1 + TV).
    """
    _check_shapes(own_law, other_law)
    other_weight = 1 - own_weight
    distance = np.maximum(own_law - other_law, 0).sum()
    mixed = own_weight * own_law + other_weight * other_law
    return (1 - other_weight * distance + (own_law * mixed).sum()) / 2


def _redrawn(
    side: Side,
    draft: SideDraft,
    other_law: Array,
    other_weight: Any,
    chance: Chance,
    position: int,
) -> int:
    """A draw from the mixture that is the side's draft where possible: where the side's law exceeds
    the other's, the draft is dropped with the *other* side's weight times the excess."""
    token, law = draft.token_id, draft.law
    if not 0 <= token < len(law):
        raise InvalidArgument("token_id", f"{token} is not in a vocabulary of {len(law)}")
    excess = law[token] - other_law[token]
    if excess <= 0:
        return token
    if not chance.happens(other_weight * excess, law[token], position, Purpose.ACCEPT, side):
        return token
    return chance.pick(residual(other_law, law), position, Purpose.RECOVER, side)


def _check_shapes(one: Array, other: Array) -> None:
    if one.shape != other.shape or one.ndim != 1:
        raise InvalidArgument("law", f"shapes {one.shape} and {other.shape}")


def _checked(scores: Sequence[float]) -> NDArray[np.float64]:
    found = np.asarray(scores, dtype=np.float64)
    if not (found < np.inf).all():  # False for NaN as well
        raise InvalidArgument("relevances", "are not all finite numbers or -inf")
    return found
