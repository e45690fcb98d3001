"""What truncation and top-K payloads lose."""

from __future__ import annotations

import numpy as np
import pytest

from lab.analysis.lost_mass import (
    after_sampling_bias,
    before_sampling_bias,
    cut_mass,
    top_k_bias,
)
from tandem.core.probs import Truncation, truncate
from tests.virtual_time.exact_models import MODELS
from tests.virtual_time.test_exact_distribution import CUT_BIAS, TOP_K_BIAS


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


@pytest.mark.parametrize("top", [1, 2, 3])
def test_biases_are_those_of_answers_through_both_machines(top: int) -> None:
    target, draft = MODELS.target_probs((1, 2)), MODELS.draft_probs((1, 2))
    cut = Truncation(top_k=top)
    assert top_k_bias(target, draft, top) == TOP_K_BIAS[top]
    assert after_sampling_bias(target, draft, cut) == CUT_BIAS[top]
    assert before_sampling_bias(target, draft, cut) == 0
