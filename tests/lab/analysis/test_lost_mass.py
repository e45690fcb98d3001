"""What truncation and top-K payloads lose."""

from __future__ import annotations

import numpy as np
import pytest

from lab.analysis.lost_mass import cut_mass, top_k_bias
from tandem.core.probs import Truncation, truncate


def test_the_cut_mass_is_what_truncation_leaves_out() -> None:
    probs = np.array([0.3, 0.2, 0.4, 0.1])
    for top, cut in ((1, 0.6), (2, 0.3), (4, 0.0)):
        assert cut_mass(probs, truncate(probs, Truncation(top_k=top))) == pytest.approx(cut)


def test_the_bias_of_top_k_is_the_residual_outside_of_it() -> None:
    target = np.array([0.1, 0.4, 0.2, 0.3])
    draft = np.array([0.0, 0.5, 0.1, 0.4])
    assert top_k_bias(target, draft, 2) == pytest.approx(0.2)
    assert top_k_bias(target, draft, 3) == pytest.approx(0.1)
    assert top_k_bias(target, draft, 4) == 0
