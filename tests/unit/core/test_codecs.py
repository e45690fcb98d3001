"""Codecs: what is sent is what is rebuilt, bit for bit, however often it is sent."""

from math import nan

import numpy as np
import pytest

from tandem.core.codecs import (
    Precision,
    hidden_from_bytes,
    hidden_to_bytes,
    probs_from_bytes,
    probs_to_bytes,
    wire_probs,
)
from tandem.core.errors import InvalidArgument
from tandem.core.probs import Array, SamplingParams, check_probs, probs_from_logits

PRECISIONS: list[Precision] = ["float32", "float16"]


def distributions() -> list[Array]:
    source = np.random.default_rng(0)
    random = [
        probs_from_logits((source.normal(size=size) * scale).astype(np.float32), sampling)
        for size in (1, 2, 4, 1000, 50_000)
        for scale in (0.01, 1.0, 4.0, 12.0)
        for sampling in (
            SamplingParams(),
            SamplingParams(0),
            SamplingParams(0.7, min(size, 40), 0.95),
        )
    ]
    flat = [np.full(size, 1 / size, dtype=np.float32) for size in (3, 151_936)]
    borders = 2.0**-14 * (1 + np.arange(-40, 40) * 2.0**-14)
    near_subnormal = np.append(1 - borders.sum(), borders).astype(np.float32)
    return [*random, *flat, near_subnormal]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("probs", distributions(), ids=lambda probs: str(len(probs)))
def test_a_wire_distribution_survives_the_wire_unchanged(
    probs: Array, precision: Precision
) -> None:
    drawn_from = wire_probs(probs, precision)
    raw = probs_to_bytes(drawn_from, precision)
    rebuilt = probs_from_bytes(raw, len(probs), precision, "probs")
    assert rebuilt.tobytes() == drawn_from.tobytes()
    assert wire_probs(drawn_from, precision).tobytes() == drawn_from.tobytes()
    assert len(raw) == len(probs) * (4 if precision == "float32" else 2)


@pytest.mark.parametrize("probs", distributions(), ids=lambda probs: str(len(probs)))
def test_float16_is_close_and_within_the_support(probs: Array) -> None:
    sent = wire_probs(probs, "float16")
    check_probs(sent, len(probs), "probs")
    assert sent.dtype == np.float32
    assert not sent[probs == 0].any()
    dropped = probs[sent == 0].sum()
    assert np.abs(sent - probs).sum() / 2 <= dropped + 2.0**-11
    assert (probs[sent == 0] <= probs.max() * 2.0**-14).all()


def test_a_flat_distribution_over_a_large_vocabulary_survives_float16() -> None:
    probs = np.full(200_000, 5e-6, dtype=np.float32)
    assert (wire_probs(probs, "float16") > 0).all()


def test_float16_bytes_hold_no_subnormals() -> None:
    for probs in distributions():
        weights = np.frombuffer(probs_to_bytes(probs, "float16"), "<f2")
        assert weights.max() == 1
        assert (weights[weights > 0] >= np.float16(2.0**-14)).all()


def encoded(values: list[float], precision: Precision) -> bytes:
    return np.array(values, dtype="<f4" if precision == "float32" else "<f2").tobytes()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "values",
    [[nan, 1.0], [1.0, nan], [np.inf, 0.0], [1.0, -0.5], [0.0, 0.0], [2.0, 1.0], [1.0], [1, 0, 0]],
)
def test_bytes_that_are_no_distribution_are_rejected(
    values: list[float], precision: Precision
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        probs_from_bytes(encoded(values, precision), 2, precision, "draft[0].distribution")
    assert caught.value.field == "draft[0].distribution"


def test_torn_bytes_are_rejected() -> None:
    with pytest.raises(InvalidArgument, match="7 bytes"):
        probs_from_bytes(b"\0" * 7, 2, "float32", "probs")


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_hidden_states_arrive_as_they_left(precision: Precision) -> None:
    states = np.array([[0.5, -1.25, 3.0], [2.0**-12, 1000.0, -0.0]], dtype=np.float32)
    raw = hidden_to_bytes(states, precision)
    assert len(raw) == states.size * {"float32": 4, "float16": 2}[precision]
    found = hidden_from_bytes(raw, 3, precision, "states")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, states)


def test_numbers_that_half_precision_cannot_hold_become_its_largest() -> None:
    states = np.array([[1e6, -1e6]], dtype=np.float32)
    found = hidden_from_bytes(hidden_to_bytes(states, "float16"), 2, "float16", "states")
    assert found.tolist() == [[65504.0, -65504.0]]
    whole = hidden_from_bytes(hidden_to_bytes(states, "float32"), 2, "float32", "states")
    assert whole.tolist() == [[1e6, -1e6]]


@pytest.mark.parametrize(
    ("raw", "hidden_size", "precision"),
    [
        (b"", 2, "float32"),
        (b"\0" * 12, 2, "float32"),
        (b"\0" * 7, 2, "float32"),
        (b"\0" * 6, 2, "float16"),
        (b"\0" * 8, 0, "float32"),
    ],
)
def test_what_are_no_hidden_states_of_that_size(
    raw: bytes, hidden_size: int, precision: Precision
) -> None:
    with pytest.raises(InvalidArgument, match=r"^states: "):
        hidden_from_bytes(raw, hidden_size, precision, "states")
    assert hidden_from_bytes(b"\0" * 8, 2, "float32", "states").shape == (1, 2)
    assert hidden_from_bytes(b"\0" * 8, 2, "float16", "states").shape == (2, 2)
