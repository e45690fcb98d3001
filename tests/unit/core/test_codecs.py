"""Codecs: what is sent is what is rebuilt, bit for bit, however often it is sent."""

from math import nan

import numpy as np
import pytest

from tandem.core.codecs import (
    Precision,
    law_from_bytes,
    law_to_bytes,
    wire_law,
)
from tandem.core.errors import InvalidArgument
from tandem.core.laws import Array, Sampling, check_law, law_from_logits

PRECISIONS: list[Precision] = ["float32", "float16"]


def laws() -> list[Array]:
    source = np.random.default_rng(0)
    random = [
        law_from_logits((source.normal(size=size) * scale).astype(np.float32), sampling)
        for size in (1, 2, 4, 1000, 50_000)
        for scale in (0.01, 1.0, 4.0, 12.0)
        for sampling in (Sampling(), Sampling(0), Sampling(0.7, min(size, 40), 0.95))
    ]
    flat = [np.full(size, 1 / size, dtype=np.float32) for size in (3, 151_936)]
    borders = 2.0**-14 * (1 + np.arange(-40, 40) * 2.0**-14)
    near_subnormal = np.append(1 - borders.sum(), borders).astype(np.float32)
    return [*random, *flat, near_subnormal]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("law", laws(), ids=lambda law: str(len(law)))
def test_a_wire_law_survives_the_wire_unchanged(law: Array, precision: Precision) -> None:
    drawn_from = wire_law(law, precision)
    raw = law_to_bytes(drawn_from, precision)
    rebuilt = law_from_bytes(raw, len(law), precision, "law")
    assert rebuilt.tobytes() == drawn_from.tobytes()
    assert wire_law(drawn_from, precision).tobytes() == drawn_from.tobytes()
    assert len(raw) == len(law) * (4 if precision == "float32" else 2)


@pytest.mark.parametrize("law", laws(), ids=lambda law: str(len(law)))
def test_float16_is_close_and_within_the_support(law: Array) -> None:
    sent = wire_law(law, "float16")
    check_law(sent, len(law), "law")
    assert sent.dtype == np.float32
    assert not sent[law == 0].any()
    dropped = law[sent == 0].sum()
    assert np.abs(sent - law).sum() / 2 <= dropped + 2.0**-11
    assert (law[sent == 0] <= law.max() * 2.0**-14).all()


def test_float32_carries_the_law_itself() -> None:
    law = law_from_logits(np.arange(9, dtype=np.float32), Sampling())
    assert wire_law(law, "float32").tobytes() == law.tobytes()
    assert np.frombuffer(law_to_bytes(law, "float32"), "<f4").tolist() == law.tolist()


def test_a_flat_law_over_a_large_vocabulary_survives_float16() -> None:
    law = np.full(200_000, 5e-6, dtype=np.float32)
    assert (wire_law(law, "float16") > 0).all()


def test_float16_bytes_hold_no_subnormals() -> None:
    for law in laws():
        weights = np.frombuffer(law_to_bytes(law, "float16"), "<f2")
        assert weights.max() == 1
        assert (weights[weights > 0] >= np.float16(2.0**-14)).all()


def encoded(values: list[float], precision: Precision) -> bytes:
    return np.array(values, dtype="<f4" if precision == "float32" else "<f2").tobytes()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "values",
    [[nan, 1.0], [1.0, nan], [np.inf, 0.0], [1.0, -0.5], [0.0, 0.0], [2.0, 1.0], [1.0], [1, 0, 0]],
)
def test_bytes_that_are_no_law_are_refused(values: list[float], precision: Precision) -> None:
    with pytest.raises(InvalidArgument) as caught:
        law_from_bytes(encoded(values, precision), 2, precision, "draft[0].law")
    assert caught.value.field == "draft[0].law"


def test_torn_bytes_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="7 bytes"):
        law_from_bytes(b"\0" * 7, 2, "float32", "law")


def test_decoded_laws_may_be_written_to() -> None:
    law_from_bytes(encoded([1.0, 0.0], "float32"), 2, "float32", "law")[0] = 0
