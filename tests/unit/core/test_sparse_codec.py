"""Sparse distributions as bytes: the same bits at both ends, small, and nothing else is let in."""

from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from tandem.core.codecs import (
    Precision,
    entries_from_bytes,
    entries_to_bytes,
    rounded_down,
    sparse_probs_from_bytes,
    sparse_probs_to_bytes,
    sparse_wire_probs,
)
from tandem.core.errors import InvalidArgument
from tandem.core.probs import Truncation, truncate

PRECISIONS: list[Precision] = ["float32", "float16"]


def random_sparse_probs(seed: int, vocabulary: int, entries: int) -> NDArray[np.float32]:
    source = np.random.default_rng(seed)
    probs = np.zeros(vocabulary, dtype=np.float32)
    ids = source.choice(vocabulary, entries, replace=False)
    probs[ids] = source.dirichlet(np.full(entries, 0.3))
    probs /= probs.sum()
    return probs


def edge_cases() -> list[NDArray[np.float32]]:
    one_hots = []
    for token in (0, 1, 63, 64):
        probs = np.zeros(65, dtype=np.float32)
        probs[token] = 1
        one_hots.append(probs)
    tiny = np.zeros(9, dtype=np.float32)
    tiny[[0, 4, 8]] = [1 - 2**-14, 2**-14, 2**-40]
    ends = np.zeros(70_000, dtype=np.float32)
    ends[[0, 69_999]] = 0.5
    return [*one_hots, tiny, ends, np.full(3, 1 / 3, dtype=np.float32)]


DISTRIBUTIONS = [
    *edge_cases(),
    *(random_sparse_probs(s, 1000, n) for s, n in enumerate((1, 2, 7, 64, 999, 1000))),
]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("probs", DISTRIBUTIONS)
def test_a_wire_distribution_survives_the_wire_unchanged(
    probs: NDArray[np.float32], precision: Precision
) -> None:
    drawn_from = sparse_wire_probs(probs, precision)
    for sent in (probs, drawn_from):
        raw = sparse_probs_to_bytes(sent, precision)
        received = sparse_probs_from_bytes(raw, len(probs), precision, "distributions")
        assert received.tobytes() == drawn_from.tobytes()
    assert sparse_wire_probs(drawn_from, precision).tobytes() == drawn_from.tobytes()
    assert not (drawn_from > probs).any() or precision == "float16"
    if precision == "float32":
        assert drawn_from.tobytes() == probs.tobytes()
    else:
        np.testing.assert_allclose(drawn_from, probs, rtol=2e-3, atol=2**-13)


def test_it_is_small() -> None:
    """64 of 32,000 entries, in a few bytes each."""
    probs = truncate(random_sparse_probs(0, 32_000, 20_000), Truncation(top_k=64))
    assert len(sparse_probs_to_bytes(probs, "float16")) <= 1 + 64 * (2 + 1.75)
    assert len(sparse_probs_to_bytes(probs, "float32")) <= 1 + 64 * (4 + 1.75)
    neighbours = np.zeros(32_000, dtype=np.float32)
    neighbours[:64] = 1 / 64
    assert len(sparse_probs_to_bytes(neighbours, "float16")) == 1 + 64 * 2


GOOD = sparse_probs_to_bytes(random_sparse_probs(1, 100, 5), "float32")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00",
        GOOD[:-1],
        GOOD + b"\x00",
        b"\x21" + GOOD[1:],
        b"\xff" * 40,
        bytes(9),
        b"\x00" + np.array([1.0, 0.0], dtype="<f4").tobytes(),
        b"\x00" + np.array([1.5, -0.5], dtype="<f4").tobytes(),
        b"\x00" + np.array([0.2, 0.2], dtype="<f4").tobytes(),
        b"\x00" + np.array([np.nan, 0.5], dtype="<f4").tobytes(),
        b"\x08\xff" + np.array([1.0], dtype="<f4").tobytes(),
        b"\x20\xff\xff\xff\xff" + np.array([1.0], dtype="<f4").tobytes(),
        b"\x00" + np.full(101, 1 / 101, dtype="<f4").tobytes(),
    ],
)
def test_what_is_no_distribution_is_rejected_by_name(raw: bytes) -> None:
    with pytest.raises(InvalidArgument, match=r"^sparse_probs: "):
        sparse_probs_from_bytes(raw, 100, "float32", "sparse_probs")


def test_any_bytes_are_a_distribution_or_rejected() -> None:
    source = np.random.default_rng(5)
    taken = 0
    for _ in range(3000):
        raw = bytes([source.integers(0, 12)]) + source.bytes(int(source.integers(0, 24)))
        try:
            probs = sparse_probs_from_bytes(raw, 50, "float16", "distributions")
        except InvalidArgument:
            continue
        taken += 1
        assert abs(probs.sum() - 1) < 1e-3
    assert taken < 300


def test_gaps_have_32_bits_at_most() -> None:
    """Else a gap could be wider than the integers it is summed up in."""
    only = np.array([1.0], dtype="<f4").tobytes()
    with pytest.raises(InvalidArgument, match="id 4294967295 is not in"):
        sparse_probs_from_bytes(b"\x20" + b"\xff" * 4 + only, 100, "float32", "probs")
    with pytest.raises(InvalidArgument, match="not a sparse distribution"):
        sparse_probs_from_bytes(b"\x21" + b"\xff" * 5 + only, 100, "float32", "probs")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_entries_come_through_bit_for_bit_where_the_precision_holds_them(
    precision: Precision,
) -> None:
    for probs in DISTRIBUTIONS:
        known = rounded_down(probs, precision)
        ids = np.flatnonzero(known)
        raw = entries_to_bytes(ids, known[ids], precision)
        found, values = entries_from_bytes(raw, len(probs), precision, "probs")
        assert found.tolist() == ids.tolist()
        assert values.tobytes() == known[ids].tobytes()


def test_rounding_down_never_adds_and_takes_the_nearest() -> None:
    source = np.random.default_rng(2)
    probs = source.dirichlet(np.full(3000, 0.1)).astype(np.float32)
    down = rounded_down(probs, "float16")
    assert (down <= probs).all()
    assert (np.nextafter(down.astype(np.float16), np.float16(1)).astype(np.float64) > probs).all()
    assert (rounded_down(probs, "float32") == probs).all()
    assert rounded_down(np.array([1.0, 2**-24, 2**-25]), "float16").tolist() == [1, 2**-24, 0]


def test_rounding_down_keeps_fractions_fractions() -> None:
    thirds = np.array([Fraction(1, 3), Fraction(2, 3), Fraction(3, 8), Fraction(0)], dtype=object)
    down = rounded_down(thirds, "float16")
    assert all(type(each) is Fraction for each in down)
    assert down[2:].tolist() == thirds[2:].tolist()
    for rounded, exact in zip(down[:2], thirds[:2], strict=True):
        assert 0 < exact - rounded < Fraction(1, 2048)


@pytest.mark.parametrize("value", [0.0, -0.5, 1.5, np.nan, np.inf])
def test_entries_outside_what_a_probability_can_be_are_refused(value: float) -> None:
    raw = entries_to_bytes(np.array([1, 3]), np.array([0.5, value]), "float16")
    with pytest.raises(InvalidArgument, match=r"^probs: .*outside \(0, 1\]"):
        entries_from_bytes(raw, 5, "float16", "probs")
