"""TSLT's models: its printed figures, its misprints, trees counted node by node."""

from itertools import product

import pytest

from lab.analysis.cost_models import LinkTimes, dsd
from lab.analysis.cost_tslt import (
    mc_dsd,
    sparse_probs_bytes,
    tree_distributions,
    tslt,
)
from tandem.control.conditions import PairTimes
from tandem.core.tree import expansion_nodes

PAIR = PairTimes(draft_s=0.010, verify_first_s=0.050)
LINK = LinkTimes(rtt_s=0.0, uplink_bytes_per_s=1_250_000)


def tree_speedup(
    pair: PairTimes, *, expansion: tuple[int, ...], accepted_share: float, probs_s: float
) -> float:
    """(L·a + 1)·T_LLM/(L·T_SLM + |Q|·T_V + T_LLM): eq. 28 as eqs. 10 and 26 have it.

    `probs_s` is T_V, the transmission of one distribution; T_LLM is a pass over one token.
    """
    layers = len(expansion)
    oracle_s = layers * pair.draft_s + tree_distributions(expansion) * probs_s + pair.verify_first_s
    return (layers * accepted_share + 1) * pair.verify_first_s / oracle_s


def test_a_sparse_distribution_weighs_ids_and_probabilities() -> None:
    """Ids of a sparse distribution over 32,000 tokens take 15 bits beside the 16 of section 5."""
    assert sparse_probs_bytes(320, 32_000, 2) == 320 * (16 + 15) / 8


def test_the_oracle_time_of_a_chain() -> None:
    """Eq. 5 without misprints: 4 · (10 ms + 1240 B at 1.25 MB/s) + 50 ms."""
    probs_bytes = sparse_probs_bytes(320, 32_000, 2)
    prediction = tslt(PAIR, LINK, acceptance_rate=0.5, draft_length=4, probs_bytes=probs_bytes)
    assert prediction.round_s == pytest.approx(4 * (0.010 + 1240 / 1.25e6) + 0.050)
    assert prediction.tpot_s == pytest.approx(prediction.round_s / 1.9375)


def test_whole_distributions_make_it_dsd() -> None:
    whole = tslt(PAIR, LINK, acceptance_rate=0.8, draft_length=4, probs_bytes=64_000)
    plain = dsd(
        PAIR, LINK, acceptance_rate=0.8, draft_length=4, vocabulary_size=32_000, precision_bytes=2
    )
    assert whole == plain


@pytest.mark.parametrize("expansion", [(1,), (4,), (2, 2, 2), (3, 1, 2), (1, 1, 1, 1)])
def test_distributions_and_nodes_are_those_of_the_tree(expansion: tuple[int, ...]) -> None:
    """Eq. 27, against paths written out."""
    levels = [list(product(*map(range, expansion[:depth]))) for depth in range(len(expansion) + 1)]
    assert expansion_nodes(expansion) == sum(map(len, levels[1:]))
    assert tree_distributions(expansion) == sum(map(len, levels[:-1]))


def test_the_printed_equation_28_never_gains() -> None:
    """With everything accepted and sent in no time, ⟨2,2,2⟩ gains 4·50/(30 + 50); as printed,
    (L·a + 1)·T_LLM stands in the denominator too."""
    printed = 1 / (3 * 0.010 / (4 * 0.050) + 1)
    corrected = tree_speedup(PAIR, expansion=(2, 2, 2), accepted_share=1.0, probs_s=0.0)
    assert printed < 1
    assert corrected == pytest.approx(2.5)
    free = LinkTimes(rtt_s=0.0)
    model = mc_dsd(PAIR, free, layer_acceptance_rate=1.0, expansion=(2, 2, 2), probs_bytes=1000)
    assert model.speedup_over_ar == pytest.approx(corrected)
