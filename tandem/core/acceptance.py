"""The rejection rule of speculative sampling for one draft token (Leviathan et al. 2023, Chen et
al. 2023; the ratio as in DESIGN 3.1, since DSSD and TSLT print it upside down).

Invariant: whatever the draft law, the output law is exactly the target law, provided drawing,
accepting and recovering all use the same draft law bit for bit. No arithmetic here leaves the
number type of its input: the tests run these functions on fractions. Must not import asyncio, grpc,
torch or time.
"""

from typing import Any

import numpy as np

from tandem.core.chance import Chance, Purpose
from tandem.core.errors import InvalidArgument
from tandem.core.laws import Array


def accepts(
    target_probs: Array, token: int, draft_prob: Any, chance: Chance, position: int
) -> bool:
    """Whether to keep draft `token`: with probability min(1, target_probs[token]/draft_prob).

    `target_probs` is the target law [V] at `position`; `draft_prob` the probability under which
    the token was drawn. Raises InvalidArgument("token") or ("draft_prob") when out of range.
    """
    if not 0 <= token < len(target_probs):
        raise InvalidArgument("token", f"{token} is not in a vocabulary of {len(target_probs)}")
    if not 0 <= draft_prob <= 1:
        raise InvalidArgument("draft_prob", f"{draft_prob} is not a probability")
    return chance.happens(target_probs[token], draft_prob, position, Purpose.ACCEPT)


def recover(target_probs: Array, draft_probs: Array, chance: Chance, position: int) -> int:
    """The token that replaces a rejected one: from norm(max(0, target_probs - draft_probs))."""
    return chance.pick(residual(target_probs, draft_probs), position, Purpose.RECOVER)


def residual(target_probs: Array, draft_probs: Array) -> Array:
    """max(0, target_probs - draft_probs) [V], not normalised.

    Equal laws leave nothing, and then a rejection can only come from rounding: the target law
    itself is the residual, so that there is always something to draw.
    """
    if target_probs.shape != draft_probs.shape:
        raise InvalidArgument(
            "draft_probs", f"shape {draft_probs.shape} for target law {target_probs.shape}"
        )
    rest = target_probs - draft_probs
    np.maximum(rest, 0, out=rest)
    return rest if rest.any() else target_probs


def sample_target(target_probs: Array, chance: Chance, position: int) -> int:
    """A token from the target law itself: a bonus token, or one the cloud decodes alone."""
    return chance.pick(target_probs, position, Purpose.TARGET)


def sample_draft(draft_probs: Array, chance: Chance, position: int) -> int:
    """A draft token."""
    return chance.pick(draft_probs, position, Purpose.DRAFT)
