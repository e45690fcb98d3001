"""The top-K bench's sums over positions."""

import numpy as np
import pytest

from lab.bench.speculation.top_k_bias import Sums

TARGET = np.array([0.5, 0.3, 0.1, 0.1], dtype=np.float32)
DRAFT = np.array([0.7, 0.1, 0.0, 0.2], dtype=np.float32)


def test_the_bias_is_the_residual_outside_the_head() -> None:
    """The residual: 0.2 on token 1, 0.1 on token 2."""
    rows = []
    for top in (1, 2, 3, 4):
        sums = Sums(top)
        sums.add(TARGET, DRAFT)
        sums.add(TARGET, TARGET)
        rows.append(sums.row(seed=0))
    assert [row["bias_largest"] for row in rows] == pytest.approx([0.3, 0.1, 0.0, 0.0], abs=1e-6)
    assert [row["bias_mean"] for row in rows] == pytest.approx([0.15, 0.05, 0.0, 0.0], abs=1e-6)
    assert rows[1]["head_mass"] == pytest.approx(0.8)
    assert rows[3]["payload_entries_bytes"] == 32
