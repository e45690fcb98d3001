"""Rejection sampling of speculative decoding: one draft for a position (Leviathan et al. 2023, Chen
et al. 2023; DSSD and TSLT print the ratio upside down), or several candidates (TSLT §4.2,
algorithms 4 and 5; Yang et al., "Multi-candidate speculative decoding", 2024).

Candidates are drawn with replacement, as printed there, or without: the draft distribution loses
each candidate drawn and is renormalised, which accepts more.

Invariant: whatever the draft distribution and the number of candidates, the output distribution is
exactly the target distribution, provided drawing, accepting and recovering use the same draft
distribution bit for bit. No arithmetic here leaves the number type of its input: the tests run
these functions on fractions."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tandem.core.errors import InvalidArgument
from tandem.core.probs import Array
from tandem.core.randomness import Purpose, RandomSource


def sample_draft(draft_probs: Array, rng: RandomSource, position: int) -> int:
    """Return a draft token."""
    return rng.categorical(draft_probs, position, Purpose.DRAFT)


def draw_candidates(
    draft_probs: Array,
    count: int,
    rng: RandomSource,
    position: int,
    first_draw: int,
    with_replacement: bool,
) -> list[int]:
    """Return `count` tokens drawn from the draft distribution [V] one after the other; without
    replacement at most as many as have any probability. Draws are numbered from `first_draw` on."""
    candidates: list[int] = []
    weights = draft_probs
    while len(candidates) < count and weights.any():
        draw = first_draw + len(candidates)
        candidates.append(rng.categorical(weights, position, Purpose.DRAFT, draw))
        if not with_replacement:
            weights = _without(weights, candidates[-1])
    return candidates


def accepts(
    target_probs: Array, token: int, draft_prob: Any, rng: RandomSource, position: int
) -> bool:
    """Accept draft `token` with probability min(1, target_probs[token]/draft_prob).
    `target_probs` is the target distribution [V] at `position`; `draft_prob` the probability under
    which the token was drawn. Raises InvalidArgument("token") or ("draft_prob")."""
    if not 0 <= token < len(target_probs):
        raise InvalidArgument("token", f"{token} is not in a vocabulary of {len(target_probs)}")
    if not 0 <= draft_prob <= 1:
        raise InvalidArgument("draft_prob", f"{draft_prob} is not a probability")
    return rng.bernoulli(target_probs[token], draft_prob, position, Purpose.ACCEPT)


def accepted_candidate(
    target_probs: Array,
    candidates: Sequence[int],
    draft_probs: Array,
    rng: RandomSource,
    position: int,
    with_replacement: bool = False,
) -> int | None:
    """Return the index of the first accepted candidate, or None; a single candidate is judged as by
    `accepts`."""
    stages = _stages(target_probs, candidates, draft_probs, with_replacement)
    for index, token in enumerate(candidates):
        rest, mass, weights, left = next(stages)
        if rng.bernoulli(
            numerator=rest[token] * left,
            denominator=weights[token] * mass,
            position=position,
            purpose=Purpose.ACCEPT,
            draw=index,
        ):
            return index
    return None


def recover(
    target_probs: Array,
    candidates: Sequence[int],
    draft_probs: Array,
    rng: RandomSource,
    position: int,
    with_replacement: bool = False,
) -> int:
    """Return the token in place of rejected candidates: after a single one from norm(max(0,
    target_probs - draft_probs)), after several from the residual that is left of these."""
    *_, (rest, _, _, _) = _stages(target_probs, candidates, draft_probs, with_replacement)
    return rng.categorical(rest, position, Purpose.RECOVER)


def _stages(
    target_probs: Array, candidates: Sequence[int], draft_probs: Array, with_replacement: bool
) -> Iterator[tuple[Array, Any, Array, Any]]:
    """Return the distributions for judging each candidate, and what is left after the last: P_i as
    (rest, mass) with P_i = rest/mass, and Q_i likewise as (weights, left). P_1 is the target
    distribution [V] and P_{i+1} = norm(max(0, P_i - Q_i)); Q_1 is the draft distribution [V] and
    Q_{i+1} the same, or without replacement without candidate i."""
    rest = target_probs
    mass = 1
    weights = draft_probs
    left = 1
    for index in range(len(candidates)):
        if index and not with_replacement:
            weights = _without(weights, candidates[index - 1])
            left = weights.sum()
        yield rest, mass, weights, left
        rest = residual(rest / mass, weights / left)
        mass = rest.sum()
    yield rest, mass, weights, left


def residual(target_probs: Array, draft_probs: Array) -> Array:
    """Return max(0, target_probs - draft_probs) [V], not normalised. Equal distributions leave
    nothing, and then a rejection can only come from rounding: the target distribution itself is the
    residual, so that there is always something to draw."""
    if target_probs.shape != draft_probs.shape:
        why = f"shape {draft_probs.shape} for target distribution {target_probs.shape}"
        raise InvalidArgument("draft_probs", why)
    rest = target_probs - draft_probs
    np.maximum(rest, 0, out=rest)
    return rest if rest.any() else target_probs


def sample_target(target_probs: Array, rng: RandomSource, position: int) -> int:
    """Return a token of the target distribution itself: a bonus token, or one the cloud decodes
    alone."""
    return rng.categorical(target_probs, position, Purpose.TARGET)


def _without(weights: Array, token: int) -> Array:
    others = weights.copy()
    others[token] = 0
    return others
