"""Split verification with a lossless sparse payload (replaces PicoSpec's lossy top-K).

The cloud rejected a draft token but does not know the draft distribution; the edge knows it, but
not the target distribution. The cloud sends the head of the target distribution and a few tokens
drawn from its tail; from these the edge draws from norm(max(0, target - draft)) exactly, and rarely
needs the rest.

Invariant: the distribution of the recovered token does not depend on `top` or `tail_draws`, which
only trade bytes for the rare extra trip. That holds only if an edge that has run out of tail tokens
*finishes the same draw* when the full distribution arrives: to draw afresh at once would give the
head a second turn before the tail has had its own.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.core.acceptance import residual
from tandem.core.errors import InvalidArgument
from tandem.core.probs import Array, most_likely
from tandem.core.randomness import Purpose, RandomSource
from tandem.core.tokens import check_token_ids

_MASS_TOLERANCE = 1e-3
_NONE = np.array([], dtype=np.intp)


@dataclass(frozen=True, slots=True, eq=False)
class SparsePayload:
    """The part of a target distribution that the cloud sends after a rejection. ids [M]
    ascending with probs [M]: the head, the most likely tokens. tail_mass: the mass of all others.
    tail_ids [R] with tail_probs [R]: independent draws from the target distribution restricted to
    the tail, in order, repeats allowed, each with its whole target probability."""

    ids: NDArray[np.integer[Any]]
    probs: Array
    tail_mass: Any
    tail_ids: NDArray[np.integer[Any]]
    tail_probs: Array

    def validate(self, vocabulary_size: int) -> None:
        """Raise InvalidArgument naming the first field that no honest cloud would send."""
        _check_probs(
            ids=self.ids,
            probs=self.probs,
            vocabulary_size=vocabulary_size,
            ids_field="ids",
            probs_field="probs",
        )
        _check_probs(
            ids=self.tail_ids,
            probs=self.tail_probs,
            vocabulary_size=vocabulary_size,
            ids_field="tail_ids",
            probs_field="tail_probs",
        )
        if (self.ids[1:] <= self.ids[:-1]).any():
            raise InvalidArgument("ids", "not in ascending order without repeats")
        if np.isin(self.tail_ids, self.ids).any():
            raise InvalidArgument("tail_ids", "overlaps ids")
        if not 0 <= self.tail_mass <= 1 + _MASS_TOLERANCE:
            raise InvalidArgument("tail_mass", f"{self.tail_mass} is not in [0, 1]")
        if len(self.tail_ids) and self.tail_mass == 0:
            raise InvalidArgument("tail_mass", "must be above 0 if there are tail tokens")
        mass = float(self.probs.sum()) + float(self.tail_mass)
        if not 0 < mass <= 1 + _MASS_TOLERANCE:
            raise InvalidArgument("probs", f"mass with the tail is {mass}, not 1")


@dataclass(frozen=True, slots=True)
class FullPayload:
    """The whole target distribution [V] at the rejected position."""

    target_probs: Array


@dataclass(frozen=True, slots=True)
class TailExhausted:
    """The payload ran out of tail tokens; `draw` numbers the random decision that comes next."""

    draw: int


def make_sparse_payload(
    target_probs: Array, top: int, tail_draws: int, rng: RandomSource, position: int
) -> SparsePayload:
    """Return, at the cloud, the `top` most likely tokens of the target distribution [V] and
    `tail_draws` draws from the rest (none if there is no rest)."""
    ids = most_likely(target_probs, top)
    tail = _without(target_probs, ids)
    draws = range(tail_draws if tail.any() else 0)
    drawn = rng.categoricals(tail, position, Purpose.TAIL, draws) if draws else []
    tail_ids = np.array(drawn, dtype=np.intp)
    return SparsePayload(
        ids=ids,
        probs=target_probs[ids],
        tail_mass=tail.sum(),
        tail_ids=tail_ids,
        tail_probs=target_probs[tail_ids],
    )


def draw_from_sparse_payload(
    payload: SparsePayload, draft_probs: Array, rng: RandomSource, position: int
) -> int | TailExhausted:
    """Return, at the edge, the recovered token, or a request for the full distribution.
    `draft_probs` [V]: what the rejected token was drawn from. The payload must be valid."""
    head_rest: Array = np.maximum(payload.probs - draft_probs[payload.ids], 0)
    head_mass = head_rest.sum()
    if not head_mass + payload.tail_mass > 0:  # rejected by rounding: as in residual()
        head_rest = payload.probs
        head_mass = payload.probs.sum()
    draw = 0
    while True:
        whole = head_mass + payload.tail_mass
        if rng.bernoulli(
            numerator=head_mass,
            denominator=whole,
            position=position,
            purpose=Purpose.RECOVER,
            draw=draw,
        ):
            return int(payload.ids[rng.categorical(head_rest, position, Purpose.RECOVER, draw + 1)])
        turn = draw // 2
        if turn == len(payload.tail_ids):
            return TailExhausted(draw + 1)
        token = int(payload.tail_ids[turn])
        target_prob = payload.tail_probs[turn]
        if _keeps(
            target_prob=target_prob,
            draft_prob=draft_probs[token],
            rng=rng,
            position=position,
            draw=draw + 1,
        ):
            return token
        draw += 2


def finish_with_full_distribution(
    payload: SparsePayload,
    target_probs: Array,
    draft_probs: Array,
    need: TailExhausted,
    rng: RandomSource,
    position: int,
) -> int:
    """Return the recovered token by the full target distribution [V]: the draw that stopped at
    `need` goes on with a tail token of the edge's own, and starts afresh only if that is
    rejected."""
    tail = _without(target_probs, payload.ids)
    if not tail.any():
        raise InvalidArgument("target_probs", "no mass outside the sparse payload's ids")
    token = rng.categorical(tail, position, Purpose.RECOVER, need.draw)
    if _keeps(
        target_prob=target_probs[token],
        draft_prob=draft_probs[token],
        rng=rng,
        position=position,
        draw=need.draw + 1,
    ):
        return token
    rest = residual(target_probs, draft_probs)
    return rng.categorical(rest, position, Purpose.RECOVER, need.draw + 2)


def make_top_k_payload(target_probs: Array, top: int) -> SparsePayload:
    """Return the head of the target distribution [V], to draw from as if there were no tail."""
    ids = most_likely(target_probs, top)
    return SparsePayload(
        ids=ids,
        probs=target_probs[ids],
        tail_mass=target_probs[:0].sum(),
        tail_ids=_NONE,
        tail_probs=target_probs[:0],
    )


def _keeps(target_prob: Any, draft_prob: Any, rng: RandomSource, position: int, draw: int) -> bool:
    """Return whether a tail token is kept: with probability max(0, target - draft)/target."""
    rest = max(target_prob - draft_prob, 0)
    return rng.bernoulli(
        numerator=rest,
        denominator=target_prob,
        position=position,
        purpose=Purpose.RECOVER,
        draw=draw,
    )


def _without(probs: Array, ids: NDArray[np.integer[Any]]) -> Array:
    rest = probs.copy()
    rest[ids] = 0
    return rest


def _check_probs(
    ids: Array, probs: Array, vocabulary_size: int, ids_field: str, probs_field: str
) -> None:
    if ids.ndim != 1 or ids.shape != probs.shape:
        raise InvalidArgument(probs_field, f"shape {probs.shape} for ids {ids.shape}")
    check_token_ids(ids, vocabulary_size, ids_field)
    if not ((probs > 0) & (probs <= 1)).all():  # False for NaN as well
        raise InvalidArgument(probs_field, "has entries outside (0, 1]")
