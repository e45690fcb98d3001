"""Several candidates for one position: how they are drawn, and which of them stands.

The rejection rule of TSLT §4.2 (algorithms 4 and 5; Yang et al., "Multi-candidate speculative
decoding", 2024), with replacement as printed there, and without (the draft law loses each candidate
drawn and is renormalised), which accepts more.

Invariant: whatever the draft law and the number of candidates, the output law is exactly the target
law. No arithmetic here leaves the number type of its input: the tests run it on fractions. One
candidate is judged by the very comparison that judges a chain. Must not import asyncio, grpc, torch
or time.
"""

from collections.abc import Sequence

from tandem.core.acceptance import residual
from tandem.core.chance import Chance, Purpose
from tandem.core.laws import Array


def draw_candidates(
    draft_probs: Array,
    count: int,
    chance: Chance,
    position: int,
    first_draw: int,
    with_replacement: bool,
) -> list[int]:
    """`count` tokens drawn from the draft law [V] one after the other; without replacement at most
    as many as have any probability. Draws are numbered from `first_draw` on."""
    candidates: list[int] = []
    weights = draft_probs
    while len(candidates) < count and weights.any():
        draw = first_draw + len(candidates)
        candidates.append(chance.pick(weights, position, Purpose.DRAFT, draw))
        if not with_replacement:
            weights = _without(weights, candidates[-1])
    return candidates


def choose_candidate(
    target_probs: Array,
    candidates: Sequence[int],
    draft_probs: Array,
    chance: Chance,
    position: int,
    with_replacement: bool,
) -> tuple[int | None, int]:
    """(index, token) of the first candidate that stands, or (None, token drawn in their place).

    Candidate i is judged with P_i and Q_i: P_1 the target law [V], P_{i+1} = norm(max(0, P_i −
    Q_i)); Q_1 the draft law [V], Q_{i+1} the same, or without replacement without candidate i. The
    last resort is drawn from the last of the P_i.
    """
    rest, mass = target_probs, 1  # P_i = rest / mass
    weights, left = draft_probs, 1  # Q_i = weights / left
    for index, token in enumerate(candidates):
        kept, drawn = rest[token] * left, weights[token] * mass
        if chance.happens(kept, drawn, position, Purpose.ACCEPT, index):
            return index, token
        rest = residual(rest / mass, weights / left)
        mass = rest.sum()
        if not with_replacement:
            weights = _without(weights, token)
            left = weights.sum()
    return None, chance.pick(rest, position, Purpose.RECOVER)


def _without(weights: Array, token: int) -> Array:
    others = weights.copy()
    others[token] = 0
    return others
