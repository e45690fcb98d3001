"""What sparse distributions and token trees cost: the models of TSLT, "Truncated Sparse Logits
Transmission" (equation numbers are that paper's; its L is our draft length).

Two of its equations are misprinted. Eq. 9 lacks a bracket: the denominator is (1 - a) times the
whole oracle time of eq. 5, not of its first part. Eq. 28 puts (L·a + 1)·T_LLM in the denominator's
sum where eq. 26 has T_LLM, and so never exceeds 1; what eqs. 10 and 26 give is
(L·a + 1)·T_LLM / (L·T_SLM + |Q|·T_V + T_LLM).
"""

from collections.abc import Sequence
from math import ceil, log2

from lab.analysis.cost_models import (
    LinkTimes,
    Prediction,
    expected_tokens_per_round,
    stop_and_wait,
)
from tandem.control.conditions import PairTimes
from tandem.core.errors import InvalidArgument
from tandem.core.tree import expansion_nodes


def sparse_probs_bytes(kept: int, vocabulary_size: int, precision_bytes: float) -> float:
    """Return k·(b_prob + b_idx) in bytes (eqs. 3-4): probabilities, and ids of ⌈log2 |V|⌉ bits
    each."""
    if not 1 <= kept <= vocabulary_size:
        raise InvalidArgument("kept", f"must be within 1…{vocabulary_size}, is {kept}")
    return kept * (precision_bytes + ceil(log2(vocabulary_size)) / 8)


def tslt(
    pair: PairTimes,
    link: LinkTimes,
    *,
    acceptance_rate: float,
    draft_length: int,
    probs_bytes: float,
    downlink_bytes: float = 0.0,
) -> Prediction:
    """Predict a chain, one distribution of `probs_bytes` per draft: N_oracle/T_oracle (eqs. 5, 8,
    9)."""
    return stop_and_wait(
        pair,
        link,
        acceptance_rate=acceptance_rate,
        draft_length=draft_length,
        uplink_bytes=draft_length * probs_bytes,
        downlink_bytes=downlink_bytes,
    )


def tree_distributions(expansion: Sequence[int]) -> int:
    """Return |Q| = 1 + Σ_{l<L} k1·…·kl: one distribution for each node that has children (eq.
    27)."""
    distributions = level = 1
    for candidates in _checked(expansion)[:-1]:
        level *= candidates
        distributions += level
    return distributions


def mc_dsd(
    pair: PairTimes,
    link: LinkTimes,
    *,
    layer_acceptance_rate: float,
    expansion: Sequence[int],
    probs_bytes: float,
    token_bytes: float = 0.0,
    downlink_bytes: float = 0.0,
) -> Prediction:
    """Predict a tree ⟨k1,…,kL⟩: L draft passes, |Q| distributions, one target pass over all nodes
    (eq. 26).

    `layer_acceptance_rate`: the probability that one of a layer's candidates is accepted, given
    that one of the layer above is. Tokens per round are the geometric sum of eq. 8 over the layers;
    eq. 28's L·a + 1 takes a for the accepted share of L and says the same with another a."""
    layers = len(_checked(expansion))
    uplink_bytes = (
        tree_distributions(expansion) * probs_bytes + expansion_nodes(expansion) * token_bytes
    )
    communication_s = link.communication_s(uplink_bytes, downlink_bytes)
    return Prediction(
        pair.verify_first_s,
        tokens_per_round=expected_tokens_per_round(layer_acceptance_rate, layers),
        round_s=layers * pair.draft_s + communication_s + pair.verify_s(expansion_nodes(expansion)),
        communication_s=communication_s,
        uplink_bytes=uplink_bytes,
        downlink_bytes=downlink_bytes,
    )


def _checked(expansion: Sequence[int]) -> Sequence[int]:
    if not expansion or min(expansion) < 1:
        raise InvalidArgument("expansion", "must be positive numbers, at least one")
    return expansion
