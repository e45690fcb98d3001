"""What a precision gives up, in the terms of its row."""

import numpy as np
import pytest

from lab.bench.harness.pair_distributions import Sums
from lab.bench.speculation.quantised_weights import fit_row


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
    fit = fit_row("int8", row)
    assert (fit["dtype"], fit["overlap"], fit["seed"]) == ("int8", row["acceptance_rate"], 1)
    more = row["draft_cross_entropy"] - row["target_cross_entropy"]
    assert fit["more_than_float32"] == pytest.approx(more)
