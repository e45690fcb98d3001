"""A draft with the head of its distribution and one draw from the rest: all that Speculative
Aggregation takes for a draw from exactly the mixture of both sides' whole distributions.

A side splits its distribution in two. The head is sent: its likeliest tokens, each with its
probability rounded down to what the wire holds. The rest, which is everything else and what
rounding left, stays where it is; its mass follows from the head. A draft says of which part it was
drawn, and brings one more token, drawn from the rest.

Let every token of a side's rest have one name, which is that side's alone. Over the names of the
two rests and the tokens of the heads both distributions are known in full, and DRAGON's Algorithm 1
draws a name from the mixture of the two. It keeps a draft, or puts in its place what the other side
has more of: the name of the other's rest then stands for the token that was drawn from it, which
nothing was decided by yet. Without the names, that is a draw from the mixture of the two whole
distributions. Nothing in this depends on the size of the heads or on how they were rounded: both
only cost acceptance, where the two sides have mass on one token that is not in both heads.

Invariants: the result follows from the two drafts and the seed alone, at whichever side it is
computed; the two drafts may depend on each other, the tokens from the rests on nothing; arithmetic
keeps the number type of its input."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.core.codecs import Precision, rounded_down
from tandem.core.errors import InvalidArgument
from tandem.core.probs import Array, most_likely
from tandem.core.randomness import Purpose, RandomSource
from tandem.core.tokens import check_token_ids
from tandem.two_sided.protocol.mixture import Aggregated, Side, SideDraft, Weights, aggregate

_MASS_TOLERANCE = 1e-3
_PARTS = 2
"""Draws 0 and 1 of Purpose.TAIL are tokens of the two sides' rests, the next two say which part a
draft is of."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftHead:
    """What is told of the distribution that a draft was drawn from. ids [M] ascending with
    probs [M]: the head. `rest_id`: a token drawn from the rest, None where nothing is left.
    `from_rest`: whether the draft itself is of the rest."""

    ids: NDArray[np.integer[Any]]
    probs: Array
    rest_id: int | None = None
    from_rest: bool = False

    @property
    def rest_mass(self) -> Any:
        """The probability of everything that the head leaves out."""
        return 0 if self.rest_id is None else max(0, 1 - self.probs.sum())

    def validate(self, token_id: int, vocabulary_size: int) -> None:
        """Raise InvalidArgument("probs") for what no honest side sends with the draft `token_id`.
        Ids are known to be ascending and of the vocabulary, numbers to be in (0, 1]."""
        if self.rest_id is not None:
            check_token_ids((self.rest_id,), vocabulary_size, "probs")
        elif self.from_rest:
            raise InvalidArgument("probs", "a draft of a rest that is empty")
        if not self.from_rest and not np.isin(token_id, self.ids):
            raise InvalidArgument("probs", f"the head is without the draft, {token_id}")
        mass = float(self.probs.sum()) + float(self.rest_mass)
        if abs(mass - 1) > _MASS_TOLERANCE:
            raise InvalidArgument("probs", f"the whole is {mass}, not 1")


DraftProbs = Array | DraftHead
"""What goes with a draft of its distribution: all of it [V], or its head."""


def head_of_draft(
    probs: Array,
    token_id: int,
    *,
    top: int,
    precision: Precision,
    rng: RandomSource,
    position: int,
    side: Side,
) -> DraftHead:
    """Return what to send with `token_id`, which was drawn from `probs` [V]: the `top` likeliest
    entries, in that precision, and a draw from the rest."""
    ids, known, rest = head_and_rest(probs, top, precision)
    if not rest.any():
        return DraftHead(ids, known)
    # Not the draft, even if that is of the rest: the other side's draft may depend on it.
    rest_id = rng.categorical(rest, position, Purpose.TAIL, side)
    # Of a token that rounding has split in two, the draft is of each part as often as that is
    # probable.
    from_rest = rng.bernoulli(
        rest[token_id], probs[token_id], position, Purpose.TAIL, draw=_PARTS + side
    )
    return DraftHead(ids, known, rest_id, from_rest)


def head_and_rest(
    probs: Array, top: int, precision: Precision
) -> tuple[NDArray[np.intp], Array, Array]:
    """Split `probs` [V] into a head, as ids [M] with their numbers [M], and the rest [V]; together
    they are `probs` exactly."""
    ids = most_likely(probs, top)
    known = rounded_down(probs[ids], precision)
    positive = (known > 0).astype(bool)
    ids, known = ids[positive], known[positive]
    rest = probs.copy()
    rest[ids] -= known  # no digit is lost: what is left has no more of them
    return ids, known, rest


def aggregate_sent(
    device: SideDraft,
    cloud: SideDraft,
    *,
    weights: Weights,
    rng: RandomSource,
    position: int,
) -> Aggregated:
    """Return the token of `position`, drawn from the mixture of the distributions that the drafts
    were drawn from. Of both the same must be known: all of it, or the head."""
    heads = (device.probs, cloud.probs)
    if not isinstance(device.probs, DraftHead):
        return aggregate(device, cloud, weights=weights, rng=rng, position=position)
    ids = np.union1d(heads[Side.DEVICE].ids, heads[Side.CLOUD].ids)
    drafted = (device.token_id, cloud.token_id)
    named = [_named(drafted[side], heads[side], ids, side) for side in Side]
    decided = aggregate(*named, weights=weights, rng=rng, position=position)
    side = decided.side
    if decided.token_id == named[side].token_id:
        token_id = drafted[side]
    elif decided.token_id < len(ids):
        token_id = int(ids[decided.token_id])
    else:
        of_rest = heads[side.other].rest_id
        assert of_rest is not None, "a rest without a token has no mass"
        token_id = of_rest
    return Aggregated(token_id, side)


def _named(token_id: int, head: DraftHead, ids: NDArray[np.integer[Any]], side: Side) -> SideDraft:
    """Return a draft as one over names: places in `ids`, and after them one for each side's
    rest."""
    probs = np.zeros(len(ids) + len(Side), dtype=head.probs.dtype)
    probs[np.searchsorted(ids, head.ids)] = head.probs
    rest = len(ids) + side
    probs[rest] = head.rest_mass
    return SideDraft(rest if head.from_rest else int(np.searchsorted(ids, token_id)), probs)
