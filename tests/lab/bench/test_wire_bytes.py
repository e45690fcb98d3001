"""Sizes of serialized rounds at draft length 8 and a vocabulary of 151,936, as promised."""

from dataclasses import replace

import numpy as np
import pytest

from lab.bench.harness.zipf_distributions import ZipfDistributions
from lab.bench.wire.wire_bytes import EXPONENT, VOCABULARY_SIZE, count, goals
from tandem.core.codecs import Precision
from tandem.specdec.presets import PRESETS

TOKENS = 24


def test_rounds_keep_to_the_promised_sizes() -> None:
    rows = [
        count(PRESETS[name].with_draft_length(8), "", EXPONENT, TOKENS, seed=3)
        for name in ("dssd", "coupled")
    ]
    assert rows[0]["rejections"] > 0
    dssd, answer, coupled_up, coupled_down = goals(rows)
    assert (dssd.limit, answer.limit, coupled_up.limit, coupled_down.limit) == (120, 700, 64, 64)
    for goal in (dssd, answer, coupled_up, coupled_down):
        assert goal.met, goal.line()
    assert dssd.figure > 8 * (3 + 4)  # ids and probabilities were there
    assert answer.figure > 64 * (3 + 4)


@pytest.mark.parametrize(("precision", "size"), [("float32", 4), ("float16", 2)])
def test_dsd_sends_a_distribution_with_every_draft(precision: Precision, size: int) -> None:
    preset = replace(PRESETS["dsd"].with_draft_length(8), uplink_precision=precision)
    row = count(preset, "", EXPONENT, 8, seed=3)
    distributions = 8 * VOCABULARY_SIZE * size
    assert distributions < row["uplink_bytes_per_round_max"] < distributions + 100


def test_distributions_are_distributions_and_depend_on_the_context_alone() -> None:
    distributions = ZipfDistributions(5000, 1.5, 0.5, seed=1)
    target, draft = distributions.target((1, 2, 3)), distributions.draft((1, 2, 3))
    assert target.sum() == pytest.approx(1, abs=1e-5)
    assert draft.sum() == pytest.approx(1, abs=1e-5)
    assert np.array_equal(target, distributions.target((1, 2, 3)))
    assert np.array_equal(draft, distributions.draft((1, 2, 3)))
    assert target.argmax() != distributions.target((1, 2, 4)).argmax()
    assert 0.5 < np.minimum(target, draft).sum() < 0.95
    ranks = np.sort(target)[::-1]
    assert ranks[0] / ranks[3] == pytest.approx(4**1.5, rel=1e-3)
    assert len(np.unique(target)) == 5000  # every token has a rank of its own
