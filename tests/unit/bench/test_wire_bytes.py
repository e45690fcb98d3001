"""Sizes of serialized rounds at draft length 8 and a vocabulary of 151,936, as promised."""

from dataclasses import replace

import numpy as np
import pytest

from bench.wire_bytes import EXPONENT, VOCABULARY_SIZE, count, goals
from bench.zipf_laws import ZipfLaws
from tandem.core.codecs import Precision
from tandem.policy.presets import find_preset

TOKENS = 24


def test_rounds_keep_to_the_promised_sizes() -> None:
    rows = [
        count(find_preset(name).with_draft_length(8), "", EXPONENT, TOKENS, seed=3)
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
def test_dsd_sends_a_law_with_every_draft(precision: Precision, size: int) -> None:
    preset = replace(find_preset("dsd").with_draft_length(8), uplink_precision=precision)
    row = count(preset, "", EXPONENT, 8, seed=3)
    laws = 8 * VOCABULARY_SIZE * size
    assert laws < row["uplink_bytes_per_round_max"] < laws + 100


def test_laws_are_laws_and_depend_on_the_context_alone() -> None:
    laws = ZipfLaws(5000, 1.5, 0.5, seed=1)
    target, draft = laws.target((1, 2, 3)), laws.draft((1, 2, 3))
    assert target.sum() == pytest.approx(1, abs=1e-5)
    assert draft.sum() == pytest.approx(1, abs=1e-5)
    assert np.array_equal(target, laws.target((1, 2, 3)))
    assert np.array_equal(draft, laws.draft((1, 2, 3)))
    assert target.argmax() != laws.target((1, 2, 4)).argmax()
    assert 0.5 < np.minimum(target, draft).sum() < 0.95
    ranks = np.sort(target)[::-1]
    assert ranks[0] / ranks[3] == pytest.approx(4**1.5, rel=1e-3)
    assert len(np.unique(target)) == 5000  # every token has a rank of its own
