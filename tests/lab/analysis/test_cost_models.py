"""Cost models against numbers worked out by hand."""

import math
from dataclasses import replace
from fractions import Fraction
from typing import TypedDict

import pytest

from lab.analysis.cost_models import (
    LinkTimes,
    dsd,
    dssd,
    expected_tokens_per_round,
    rejection_probability,
)
from tandem.control.conditions import PairTimes
from tandem.core.errors import InvalidArgument


class Case(TypedDict):
    """The arguments that `dsd` and `dssd` both require."""

    acceptance_rate: float
    draft_length: int
    vocabulary_size: int
    precision_bytes: float


PAIR = PairTimes(draft_s=0.002, verify_first_s=0.030, verify_further_s=0.001)
LINK = LinkTimes(rtt_s=0.020, uplink_bytes_per_s=1_000_000, downlink_bytes_per_s=4_000_000)
# a = 1/2, n = 2: 1 + 1/2 + 1/4 tokens a round, a rejection with probability 3/4.
DISTRIBUTIONS: Case = {
    "acceptance_rate": 0.5,
    "draft_length": 2,
    "vocabulary_size": 1000,
    "precision_bytes": 2,
}


def test_expected_tokens_is_the_geometric_sum() -> None:
    for draft_length in range(1, 9):
        for rate in (Fraction(0), Fraction(1, 3), Fraction(9, 10)):
            closed_form = (1 - rate ** (draft_length + 1)) / (1 - rate)
            computed = expected_tokens_per_round(float(rate), draft_length)
            assert computed == pytest.approx(float(closed_form), rel=1e-12)


def test_expected_tokens_at_the_ends() -> None:
    assert expected_tokens_per_round(1.0, 5) == 6.0
    assert expected_tokens_per_round(0.0, 5) == 1.0
    assert expected_tokens_per_round(1.0 - 1e-15, 5) == pytest.approx(6.0, abs=1e-12)


def test_rejection_probability() -> None:
    assert rejection_probability(0.5, 3) == 0.875
    assert rejection_probability(1.0, 3) == 0.0
    assert rejection_probability(0.0, 3) == 1.0


def test_verify_time_grows_with_the_drafts() -> None:
    assert PAIR.verify_s(0) == PAIR.verify_first_s
    assert PAIR.verify_s(4) == pytest.approx(0.034)


def test_dsd_by_hand() -> None:
    prediction = dsd(PAIR, LINK, **DISTRIBUTIONS)
    # Up: 2 distributions of 2,000 bytes at 1 MB/s = 4 ms. Round: 2*2 + 4 + 20 + 32 ms = 60 ms.
    assert prediction.uplink_bytes == 4000
    assert prediction.downlink_bytes == 0
    assert prediction.communication_s == pytest.approx(0.024)
    assert prediction.round_s == pytest.approx(0.060)
    assert prediction.tokens_per_round == 1.75
    assert prediction.tpot_s == pytest.approx(0.060 / 1.75)
    assert prediction.speedup_over_ar == pytest.approx(0.030 * 1.75 / 0.060)


def test_dssd_by_hand() -> None:
    prediction = dssd(PAIR, LINK, **DISTRIBUTIONS)
    # Down: 3/4 of a distribution of 2,000 bytes at 4 MB/s = 0.375 ms.
    assert prediction.uplink_bytes == 0
    assert prediction.downlink_bytes == 1500
    assert prediction.communication_s == pytest.approx(0.020375)
    assert prediction.round_s == pytest.approx(0.056375)
    assert prediction.tpot_s == pytest.approx(0.056375 / 1.75)


def test_communication_bounds_of_corollary_3_1() -> None:
    probs_s = 2000 / LINK.downlink_bytes_per_s
    for rate in (0.0, 0.3, 0.9, 1.0):
        for draft_length in (1, 4, 30):
            case = DISTRIBUTIONS | {"acceptance_rate": rate, "draft_length": draft_length}
            communication_s = dssd(PAIR, LINK, **case).communication_s
            assert LINK.rtt_s <= communication_s <= LINK.rtt_s + probs_s
    assert (
        dssd(PAIR, LINK, **DISTRIBUTIONS | {"acceptance_rate": 1.0}).communication_s == LINK.rtt_s
    )


def test_unlimited_bandwidth_leaves_the_round_trip() -> None:
    assert dsd(PAIR, LinkTimes(rtt_s=0.05), **DISTRIBUTIONS).communication_s == 0.05


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("acceptance_rate", 1.1),
        ("acceptance_rate", math.nan),
        ("draft_length", 0),
        ("vocabulary_size", 0),
        ("precision_bytes", 0),
    ],
)
def test_a_bad_value_is_named(field: str, bad: float) -> None:
    with pytest.raises(InvalidArgument) as caught:
        dssd(PAIR, LINK, **DISTRIBUTIONS | {field: bad})  # type: ignore[arg-type]
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("times", "field", "bad"),
    [
        (PAIR, "draft_s", -1.0),
        (PAIR, "verify_first_s", 0.0),
        (PAIR, "verify_further_s", math.inf),
        (LINK, "rtt_s", math.nan),
        (LINK, "uplink_bytes_per_s", 0.0),
        (LINK, "downlink_bytes_per_s", math.nan),
    ],
)
def test_bad_times_are_named(times: PairTimes | LinkTimes, field: str, bad: float) -> None:
    with pytest.raises(InvalidArgument) as caught:
        replace(times, **{field: bad})  # type: ignore[arg-type]
    assert caught.value.field == field
