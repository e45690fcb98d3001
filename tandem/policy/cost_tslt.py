"""What sparse laws and token trees cost: the models of TSLT, "Truncated Sparse Logits Transmission"
(equation numbers are that paper's; its L is our draft length).

Two of its equations are misprinted. Eq. 9 lacks a bracket: the denominator is (1 - a) times the
whole oracle time of eq. 5, not of its first part. Eq. 28 puts (L·a + 1)·T_LLM in the denominator's
sum where eq. 26 has T_LLM, and so never exceeds 1; what eqs. 10 and 26 give is
(L·a + 1)·T_LLM / (L·T_SLM + |Q|·T_V + T_LLM).

Invariant: pure arithmetic on values. Must not import asyncio, grpc, torch or time.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2

from tandem.core.errors import InvalidArgument
from tandem.policy.cost_models import (
    LinkTimes,
    PairTimes,
    Prediction,
    expected_tokens_per_round,
    prediction_of_rounds,
    stop_and_wait,
)


def sparse_law_bytes(kept: int, vocabulary_size: int, precision_bytes: float) -> float:
    """k·(b_prob + b_idx) in bytes: the kept tokens' probabilities and ids (eqs. 3-4).

    An id takes ⌈log2 |V|⌉ bits.
    """
    if not 1 <= kept <= vocabulary_size:
        raise InvalidArgument("kept", f"must be within 1…{vocabulary_size}, is {kept}")
    return kept * (precision_bytes + ceil(log2(vocabulary_size)) / 8)


def tslt(
    pair: PairTimes,
    link: LinkTimes,
    *,
    acceptance_rate: float,
    draft_length: int,
    law_bytes: float,
    downlink_bytes: float = 0.0,
) -> Prediction:
    """A chain with one law of `law_bytes` per draft: N_oracle/T_oracle (eqs. 5, 8, 9 corrected)."""
    return stop_and_wait(
        pair,
        link,
        acceptance_rate=acceptance_rate,
        draft_length=draft_length,
        uplink_bytes=draft_length * law_bytes,
        downlink_bytes=downlink_bytes,
    )


def tree_laws(expansion: Sequence[int]) -> int:
    """|Q| = 1 + Σ_{l<L} k1·…·kl: one law for each node that has children (eq. 27)."""
    laws = level = 1
    for candidates in _checked(expansion)[:-1]:
        level *= candidates
        laws += level
    return laws


def tree_nodes(expansion: Sequence[int]) -> int:
    """Σ_l k1·…·kl: the drafts of a tree without its root."""
    nodes, level = 0, 1
    for candidates in _checked(expansion):
        level *= candidates
        nodes += level
    return nodes


def mc_dsd(
    pair: PairTimes,
    link: LinkTimes,
    *,
    layer_acceptance_rate: float,
    expansion: Sequence[int],
    law_bytes: float,
    token_bytes: float = 0.0,
    downlink_bytes: float = 0.0,
) -> Prediction:
    """A tree ⟨k1,…,kL⟩: L draft passes, |Q| laws, one target pass over all nodes (eq. 26).

    `layer_acceptance_rate`: that one of a layer's candidates stands, given that the layer above
    has one that does. Tokens per round are the geometric sum of eq. 8 over the layers; eq. 28's
    L·a + 1 takes a for the accepted share of L and says the same with another a.
    """
    layers = len(_checked(expansion))
    uplink_bytes = tree_laws(expansion) * law_bytes + tree_nodes(expansion) * token_bytes
    communication_s = link.communication_s(uplink_bytes, downlink_bytes)
    return prediction_of_rounds(
        pair,
        tokens_per_round=expected_tokens_per_round(layer_acceptance_rate, layers),
        round_s=layers * pair.draft_s + communication_s + pair.verify_s(tree_nodes(expansion)),
        communication_s=communication_s,
        uplink_bytes=uplink_bytes,
        downlink_bytes=downlink_bytes,
    )


def tree_speedup(
    pair: PairTimes, *, expansion: Sequence[int], accepted_share: float, law_s: float
) -> float:
    """(L·a + 1)·T_LLM/(L·T_SLM + |Q|·T_V + T_LLM): eq. 28 as eqs. 10 and 26 have it.

    `law_s` is T_V, the transmission of one law; T_LLM is a pass over one token.
    """
    layers = len(_checked(expansion))
    oracle_s = layers * pair.draft_s + tree_laws(expansion) * law_s + pair.verify_first_s
    return (layers * accepted_share + 1) * pair.verify_first_s / oracle_s


def _checked(expansion: Sequence[int]) -> Sequence[int]:
    if not expansion or min(expansion) < 1:
        raise InvalidArgument("expansion", "must be positive numbers, at least one")
    return expansion
