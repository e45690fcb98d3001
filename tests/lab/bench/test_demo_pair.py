"""Figures of a pair on text, and the card's table of held-out figures."""

import numpy as np
import pytest

from lab.bench.speculation.demo_pair import Sums, card_figures

CARD = """
| | parameters |
|---|---|
| `demo-target` | 8 M |

| text | tokens | CE: target | plain | draft | acceptance: plain | draft | agree: plain | draft |
|---|---|---|---|---|---|---|---|---|
| PEPs (prose) | 49,152 | 3.412 | 3.925 | 3.990 | 0.661 | **0.801** | 0.603 | 0.722 |
| GSM8K (chat form) | 9,216 | 1.900 | 2.111 | 2.150 | 0.701 | **0.822** | 0.650 | 0.751 |

| model | method |
|---|---|
"""


def test_the_cards_figures_are_found_by_their_column() -> None:
    figures = card_figures(CARD)
    assert set(figures) == {"PEPs (prose)", "GSM8K (chat form)"}
    prose = figures["PEPs (prose)"]
    assert prose["CE: target"] == 3.412
    assert prose["CE: plain"] == 3.925
    assert prose["CE: draft"] == 3.990
    assert prose["acceptance: plain"] == 0.661
    assert prose["acceptance: draft"] == 0.801
    assert prose["tokens"] == 49_152


def test_a_card_without_the_table_has_no_figures() -> None:
    assert card_figures("# A pair\n\n| a | b |\n|---|---|\n| 1 | 2 |\n") == {}


def test_sums_over_positions() -> None:
    sums = Sums()
    target = np.array([[0.5, 0.5, 0.0], [0.2, 0.2, 0.6]])
    draft = np.array([[0.25, 0.75, 0.0], [0.1, 0.1, 0.8]])
    sums.add(target, draft, [0, 2])
    row = sums.row("peps", seed=1)
    assert row["tokens"] == 2
    assert row["acceptance_rate"] == pytest.approx((0.75 + 0.8) / 2)
    assert row["target_cross_entropy"] == pytest.approx(-(np.log(0.5) + np.log(0.6)) / 2)
    assert row["draft_cross_entropy"] == pytest.approx(-(np.log(0.25) + np.log(0.8)) / 2)
    assert row["top1_agreement"] == 0.5
