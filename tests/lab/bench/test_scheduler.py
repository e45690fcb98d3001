"""Replayed acceptance decisions come true under every strategy."""

import random

import pytest

from lab.bench.two_sided.dragon_latency import PACINGS
from lab.bench.two_sided.scheduler import STRATEGIES, Cell, one_answer, seconds_by_strategy
from lab.bench.two_sided.scheduler_replay import Record
from tandem.two_sided.protocol.mixture import Side

TOKENS = 30


def recorded(device: float, cloud: float, seed: int = 1) -> Record:
    source = random.Random(seed)
    rates = {Side.DEVICE: device, Side.CLOUD: cloud}
    accepted = {
        side: tuple(source.random() < rate for _ in range(100)) for side, rate in rates.items()
    }
    return Record(accepted)


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_meets_the_recorded_decisions(name: str) -> None:
    record = recorded(0.8, 0.4)
    answer = one_answer(name, Cell(PACINGS[1], "even", 0.2), record, 1, tokens=TOKENS)
    judged = dict.fromkeys(Side, (0, 0))
    for stats in answer.stats.values():
        for side in Side:
            drafted, accepted = judged[side]
            judged[side] = drafted + stats.drafted[side], accepted + stats.accepted[side]
    for side in Side:
        drafted, accepted = judged[side]
        expected = sum(record.accepted[side][:TOKENS]) / TOKENS
        assert accepted / drafted == pytest.approx(expected, abs=0.08)


@pytest.mark.parametrize(("device", "cloud"), [(0.9, 0.3), (0.3, 0.9)])
def test_the_scheduler_goes_where_tokens_come_sooner(device: float, cloud: float) -> None:
    cell = Cell(PACINGS[1], "even", 0.4)
    seconds = seconds_by_strategy(cell, [recorded(device, cloud)], 1)
    better, worse = ("dragon placement=cloud", "dragon-device")
    if device < cloud:
        better, worse = worse, better
    assert seconds[better] < 0.8 * seconds[worse]
    assert seconds["dragon"] < 1.05 * seconds[better]
