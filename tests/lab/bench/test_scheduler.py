"""Replayed acceptance decisions come true under every strategy; the pipeline is told in full."""

import random

import pytest

from lab.bench.two_sided.dragon_latency import PACINGS
from lab.bench.two_sided.pipeline import Decision, spans_until, timed, trace_events
from lab.bench.two_sided.scheduler import EXPECTING, STRATEGIES, Cell, compared, one_answer
from lab.bench.two_sided.scheduler_replay import Record
from tandem.two_sided.protocol.mixture import Side

TOKENS = 30


def recorded(device: float, cloud: float, seed: int = 1) -> Record:
    source = random.Random(seed)
    rates = {Side.DEVICE: device, Side.CLOUD: cloud}
    accepted = {
        side: tuple(source.random() < rate for _ in range(100)) for side, rate in rates.items()
    }
    expected = {side: (rate,) * 100 for side, rate in rates.items()}
    return Record(accepted, expected, dict.fromkeys(Side, (1.0, 1.1, 0.9)))


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
    rows = {row["preset"]: row for row in compared(cell, [recorded(device, cloud)], 1)}
    better, worse = ("dragon placement=cloud", "dragon-device")
    if device < cloud:
        better, worse = worse, better
    assert rows[better]["total_s"] < 0.8 * rows[worse]["total_s"]
    assert rows["dragon"]["total_s"] < 1.05 * rows[better]["total_s"]


def test_eq_5_follows_how_likely_drafts_were_and_not_what_became_of_them() -> None:
    decisions: dict[str, list[Decision]] = {"dragon": [], EXPECTING: []}
    for name, noted in decisions.items():
        one_answer(name, Cell(PACINGS[0], "even", 0.0), recorded(0.8, 0.4), 1, noted, TOKENS)
    expected = [decision.cloud_acceptance for decision in decisions[EXPECTING]]
    assert expected == pytest.approx([0.4] * len(expected))
    assert len({round(decision.cloud_acceptance, 3) for decision in decisions["dragon"]}) > 3


def test_the_trace_holds_every_step_and_decision() -> None:
    decisions: list[Decision] = []
    cell = Cell(PACINGS[1], "even", 0.5)
    answer = one_answer("dragon", cell, recorded(0.9, 0.4), 1, decisions, TOKENS)
    assert any(decision.moves for decision in decisions)
    moments = [at_s for at_s, _ in timed(answer, decisions)]
    assert len(moments) == len(decisions)
    assert all(0 < at_s <= answer.duration_s for at_s in moments)
    for side in Side:  # the cloud's were missing in the picture
        spans = spans_until(answer, side, answer.duration_s)
        assert sum(span.what == "decode" for span in spans) > TOKENS // 2
    assert not spans_until(answer, Side.CLOUD, -1.0)
    events = trace_events(answer, decisions)["traceEvents"]
    counters = [event for event in events if event["ph"] == "C"]
    assert len(counters) == len(decisions)
    steps = [event for event in events if event.get("cat") == "decode"]
    assert len(steps) > TOKENS
    assert all(event["dur"] > 0 for event in steps)
