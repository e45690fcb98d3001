"""Truncating before the draw: which tokens stay, and what it costs (TSLT theorem 3.2)."""

import math
import random
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest

from tandem.core.acceptance import accepts, recover, sample_draft
from tandem.core.codecs import SURE_FLOAT16, sparse_wire_probs
from tandem.core.errors import InvalidArgument
from tandem.core.probs import Array, Truncation, keep_nucleus, truncate, truncate_keeping
from tests.exact import ExactRandom, fractions, output_probs, probs_pairs, random_probs


@pytest.mark.parametrize(
    ("truncation", "kept"),
    [
        (Truncation(top_k=1), [0, 0, 1, 0]),
        (Truncation(top_k=2), [3, 0, 4, 0]),
        (Truncation(top_k=3), [3, 2, 4, 0]),
        (Truncation(top_k=9), [3, 2, 4, 2]),
        (Truncation(top_p=0.3), [0, 0, 1, 0]),
        (Truncation(top_p=0.5), [3, 0, 4, 0]),
        (Truncation(top_p=0.8), [3, 2, 4, 0]),
        (Truncation(top_k=2, top_p=0.5), [0, 0, 1, 0]),
    ],
)
def test_what_stays(truncation: Truncation, kept: list[int]) -> None:
    probs = fractions([3, 2, 4, 2])
    got = truncate(probs, truncation)
    assert got.tolist() == fractions(kept).tolist()
    assert probs.tolist() == fractions([3, 2, 4, 2]).tolist(), "the distribution itself was changed"


@pytest.mark.parametrize(
    ("truncation", "field"),
    [
        (Truncation(top_k=-1), "draft_top_k"),
        (Truncation(top_k=5), "draft_top_k"),
        (Truncation(top_p=0.0), "draft_top_p"),
        (Truncation(top_p=-0.5), "draft_top_p"),
        (Truncation(top_p=1.01), "draft_top_p"),
        (Truncation(top_p=math.nan), "draft_top_p"),
    ],
)
def test_what_is_out_of_range_is_named(truncation: Truncation, field: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^{field}: "):
        truncation.validate(4)


def acceptance(target: Array, draft: Array) -> Fraction:
    return sum((min(pair) for pair in zip(target, draft, strict=True)), Fraction(0))


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_the_acceptance_rate_moves_by_at_most_the_mass_cut_off(top_k: int) -> None:
    source = random.Random(top_k)
    for _ in range(300):
        target, draft = random_probs(source, 5), random_probs(source, 5)
        cut = truncate(draft, Truncation(top_k=top_k))
        sigma = sum(mass for mass, left in zip(draft, cut, strict=True) if not left)
        assert abs(acceptance(target, cut) - acceptance(target, draft)) <= sigma


def one_token(rng: ExactRandom, target: Array, draft: Array, drawn_from: Array) -> int:
    token = sample_draft(drawn_from, rng, 0)
    if accepts(target, token, draft[token], rng, 0):
        return token
    return recover(target, (token,), draft, rng, 0)


def test_truncating_before_the_draw_is_exact_and_after_it_is_not() -> None:
    biased = 0
    for target, draft in probs_pairs(seed=3, count=40):
        cut = truncate(draft, Truncation(top_k=2))
        exact = output_probs(partial(one_token, target=target, draft=cut, drawn_from=cut), 4)
        assert exact == target.tolist()
        late = output_probs(partial(one_token, target=target, draft=cut, drawn_from=draft), 4)
        biased += late != target.tolist()
    assert biased > 10


def test_a_token_that_was_drawn_before_the_cut_stays_whatever_the_cut() -> None:
    """Beside those that are left, as likely as it was; or a floor below the likeliest."""
    probs = fractions([8, 4, 2, 1, 1])
    quarter: Any = Fraction(1, 4)  # of any number type
    kept = truncate_keeping(probs, Truncation(top_k=2), 2)
    assert kept.tolist() == fractions([8, 4, 2, 0, 0]).tolist()
    assert probs.tolist() == fractions([8, 4, 2, 1, 1]).tolist(), "the distribution was changed"
    lifted = truncate_keeping(probs, Truncation(top_k=2), 3, floor=quarter)
    assert lifted.tolist() == fractions([8, 4, 0, 2, 0]).tolist()
    assert truncate_keeping(probs, Truncation(top_k=2), 1).tolist() == (
        fractions([8, 4, 0, 0, 0]).tolist()
    ), "a token that the cut leaves is cut around as ever"
    assert truncate_keeping(probs, Truncation(top_k=2), 1, floor=2 * quarter).tolist() == (
        fractions([8, 4, 0, 0, 0]).tolist()
    ), "it reaches the floor"
    assert truncate_keeping(probs, Truncation(top_k=2), 1, floor=3 * quarter).tolist() == (
        fractions([8, 6, 0, 0, 0]).tolist()
    )


def test_what_reaches_the_floor_survives_half_precision() -> None:
    """However it is rounded before: else a token that was drawn would arrive as impossible."""
    probs = np.array([0.5, 0.5 - 2.0**-30, 2.0**-30], dtype=np.float32)
    lost = sparse_wire_probs(truncate_keeping(probs, Truncation(top_k=2), 2), "float16")
    assert lost[2] == 0
    kept = truncate_keeping(probs, Truncation(top_k=2), 2, floor=SURE_FLOAT16)
    assert kept[2] == pytest.approx(2.0**-14, rel=0.01)
    arrived = sparse_wire_probs(kept, "float16")
    assert arrived[2] > 0
    assert arrived.argmin() == 2


def test_a_nucleus_of_all_cuts_nothing() -> None:
    """Not even what rounding would lose at its border."""
    probs = np.array([1.0, 1e-20, 1e-20, 0.0], dtype=np.float32)
    assert np.count_nonzero(truncate(probs, Truncation(top_k=3, top_p=1.0))) == 3
    assert np.count_nonzero(truncate(probs, Truncation(top_k=2, top_p=1.0))) == 2
    assert np.count_nonzero(truncate(probs, Truncation(top_k=3, top_p=0.999))) == 1


def test_the_border_of_a_nucleus_is_found_in_double_precision() -> None:
    """Half of 65,536 equal weights, whose sums in single precision go astray."""
    weights = np.full(2**16, 0.1, dtype=np.float32)
    keep_nucleus(weights, 0.5)
    assert np.count_nonzero(weights) == 2**15
    assert weights[: 2**15].all()
