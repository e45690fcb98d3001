"""The top-K bench's sums over positions."""

import numpy as np
import pytest

from lab.bench.speculation.top_k_bias import CutSums, Sums

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


def test_a_cut_after_sampling_is_biased_and_one_before_is_not() -> None:
    """Cut to token 0, a draft 0 is judged as if it had been certain: accepted with 0.5, and
    replaced by any other token. Draft 1 is judged by 1/8, and draft 3 by 2/9: accepted with
    0.1 / (2/9)."""
    rows = []
    for top in (1, 3):
        sums = CutSums(top)
        sums.add(TARGET, DRAFT)
        rows.append(sums.row(seed=0))
    rejected = 0.7 * 0.5
    of_3 = 0.2 * (1 - 0.1 / (2 / 9))  # its residual: nothing of token 0, which 7/9 were sent for
    found = [
        0.7 * 0.5,
        0.1 + (rejected * 0.6 + of_3 * 0.75),
        rejected * 0.2 + of_3 * 0.25,
        0.2 * 0.1 / (2 / 9) + rejected * 0.2,
    ]
    apart = sum(abs(one - there) for one, there in zip(found, TARGET, strict=True)) / 2
    assert rows[0]["bias_mean"] == pytest.approx(apart, abs=1e-6)
    assert apart > 0.1
    assert rows[1]["bias_largest"] == pytest.approx(0, abs=1e-6)  # all that can be drafted is sent
    assert [row["bias_before_sampling"] for row in rows] == pytest.approx([0, 0], abs=1e-6)
    assert [row["cut_mass"] for row in rows] == pytest.approx([0.3, 0], abs=1e-6)
