"""What an answer should be good at: values worked by hand, and words that say it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.control.objective import Aim, Estimate, Objective, Prices, weights_of
from tandem.core.errors import InvalidArgument
from tandem.specdec.overrides import parse_overrides, with_overrides
from tandem.specdec.presets import PRESETS

ALONE = Estimate(tpot_s=0.1, passes=1.0, cloud_s=0.1, link_bytes=30.0)
DRAFTED = Estimate(tpot_s=0.05, passes=0.25, cloud_s=0.03, link_bytes=60.0, drafting_s=0.04)


def test_the_cloud_alone_is_worth_one_whatever_counts() -> None:
    for idle_weight in (0.0, 0.3, 1.0):
        for energy_weight in (0.0, 0.5, 1.0):
            prices = Prices(cloud_second=2.0)
            for objective in (
                Objective(idle_weight, energy_weight),
                Objective(idle_weight, energy_weight, prices),
            ):
                assert objective.value(ALONE, ALONE) == pytest.approx(1)


def test_values_by_hand() -> None:
    assert Objective(1.0).value(DRAFTED, ALONE) == pytest.approx(0.5)
    assert Objective(0.0).value(DRAFTED, ALONE) == pytest.approx(0.25)
    assert Objective(0.5).value(DRAFTED, ALONE) == pytest.approx(0.375)
    # 10 W for 40 ms and 2 W for 50 ms, against 2 W for 100 ms
    assert Objective(1.0, 1.0).value(DRAFTED, ALONE) == pytest.approx(0.5 / 0.2)
    assert Objective(0.0, 0.5).value(DRAFTED, ALONE) == pytest.approx((0.25 + 2.5) / 2)


def test_money_is_cloud_seconds_bytes_and_joules_at_their_prices() -> None:
    prices = Prices(cloud_second=3.0, gigabyte=1e6, edge_watt_second=0.1)
    assert DRAFTED.cost(prices) == pytest.approx(3 * 0.03 + 1e-3 * 60 + 0.1 * 0.5)
    dear_link = Prices(gigabyte=1.0)
    assert Objective(0.0, prices=dear_link).value(DRAFTED, ALONE) == pytest.approx(2)
    with pytest.raises(InvalidArgument, match="gigabyte"):
        replace(prices, gigabyte=float("nan"))


@pytest.mark.parametrize(
    ("words", "weights"),
    [
        ("latency", (1, 0)),
        ("cost", (0, 0)),
        ("energy", (1, 1)),
        ("0.25", (0.25, 0)),
        ("latency=1,cost=3", (0.25, 0)),
        ("latency=2, cost=1, energy=1", (2 / 3, 0.25)),
        ("energy=5", (1, 1)),
    ],
)
def test_words_numbers_and_parts_say_the_weights(words: str, weights: tuple[float, float]) -> None:
    assert weights_of(words) == pytest.approx(weights)
    preset = with_overrides(PRESETS["auto"], parse_overrides([f"objective={words}"]))
    preset.validate()
    assert (preset.idle_weight, preset.energy_weight) == pytest.approx(weights)
    assert Aim(words).overrides == (() if words == "latency" else (f"objective={words}",))


@pytest.mark.parametrize(
    "words", ["", "soon", "1.5", "-0.1", "nan", "latency=0", "latency=-1,cost=2", "cost=1,speed=1"]
)
def test_other_words_are_refused_by_name(words: str) -> None:
    with pytest.raises(InvalidArgument, match="objective"):
        weights_of(words)
    with pytest.raises(InvalidArgument, match="objective"):
        Aim(words)


@pytest.mark.parametrize(
    ("words", "weights"),
    [
        ("1", (1.0, 0.0)),
        ("0", (0.0, 0.0)),
        ("latency=1,cost=1", (0.5, 0.0)),
        ("latency=3,cost=1,energy=1", (0.75, 0.2)),
        ("energy=2", (1.0, 1.0)),
    ],
)
def test_words_and_parts_become_weights(words: str, weights: tuple[float, float]) -> None:
    assert weights_of(words) == weights
