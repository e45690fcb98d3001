"""Equations of DRAGON that predict: how often a side's draft is accepted, and what it gains."""

from __future__ import annotations

from typing import Any

import numpy as np

from tandem.core.codecs import Precision
from tandem.core.probs import Array
from tandem.two_sided.protocol.draft_head import head_and_rest
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.placement import BothSides, token_time_s


def expected_acceptance(own_probs: Array, other_probs: Array, own_weight: Any) -> Any:
    """Return how often `aggregate` accepts a side's draft (DRAGON eq. 5; its second term is with
    the mixture, since the other side's draw has that distribution). A coupled draft is accepted
    more often: it equals the other side's with probability at least (1 - TV)/(1 + TV)."""
    other_weight = 1 - own_weight
    distance = np.maximum(own_probs - other_probs, 0).sum()
    mixed = own_weight * own_probs + other_weight * other_probs
    return (1 - other_weight * distance + (own_probs * mixed).sum()) / 2


def expected_head_acceptance(
    own_probs: Array, other_probs: Array, own_weight: Any, *, top: int, precision: Precision
) -> Any:
    """Return the same where `aggregate_sent` knows the `top` likeliest tokens of both distributions
    [V] only, for drafts that do not depend on each other. What is in both heads can be kept for
    both sides; a draft that is dropped may come back as the token that replaces it."""
    own, own_rest = _dense(own_probs, top, precision)
    other, other_rest = _dense(other_probs, top, precision)
    other_weight = 1 - own_weight
    excess = np.maximum(own - other, 0)
    dropped = excess.sum() + own_rest.sum()
    back = excess * other_rest + own_rest * (np.maximum(other - own, 0) + other_rest)
    returned = back.sum() / dropped if dropped else 0
    mixed = own_weight * own_probs + other_weight * other_probs
    return (1 - other_weight * (dropped - returned) + (own_probs * mixed).sum()) / 2


def _dense(probs: Array, top: int, precision: Precision) -> tuple[Array, Array]:
    """Return head and rest, both [V]."""
    *_, rest = head_and_rest(probs, top, precision)
    return probs - rest, rest


def speedup_over_synchronous(sides: BothSides, aggregating: Side = Side.DEVICE) -> float:
    """Return how much faster tokens come than when both sides wait for each other at every token,
    which is refusing every draft (Theorem 6.2, for either side)."""
    here, there = sides[aggregating], sides[aggregating.other]
    synchronous_s = max(here.step_s, there.step_s + sides.round_trip_s)
    return synchronous_s / token_time_s(sides, aggregating)
