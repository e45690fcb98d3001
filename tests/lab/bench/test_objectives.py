"""Preset `auto` by objective: the ends of the front, and what counts as one."""

from __future__ import annotations

from dataclasses import replace

from lab.bench.speculation.objectives import answered, goals, row_of
from tandem.specdec.choices import Control, Predraft, Schedule
from tandem.specdec.presets import PRESETS


def test_cost_takes_fewer_passes_latency_less_time_and_energy_fewer_joules() -> None:
    soon, cheap, easy = (
        row_of("", idle_weight, energy_weight, 0.7, 64, seed=1)
        for idle_weight, energy_weight in ((1.0, 0.0), (0.0, 0.0), (1.0, 1.0))
    )
    assert cheap["target_passes_per_token"] < 0.8 * soon["target_passes_per_token"]
    assert soon["tpot_s"] < 0.8 * cheap["tpot_s"]
    assert easy["joules"] < 0.8 * min(soon["joules"], cheap["joules"])


def test_where_passes_are_the_cost_one_takes_all_drafts_there_are() -> None:
    """Nearly every pass ends with a correction: none ends because its drafts take too long."""
    rounds = Schedule(16, 16, verify_on_arrival=True, decode_when_idle=True)
    cheap = replace(
        PRESETS["stream"],
        control=Control.FIXED,
        predraft=Predraft.OFF,
        schedule=rounds,
        idle_weight=0.0,
    )
    answer = answered(cheap, 0.6, 96, seed=2)
    assert answer.stats.target_passes <= answer.rejections + 1


def test_a_front_goes_one_way_and_ends_at_the_cheapest_preset() -> None:
    rows = [
        {"declared": 0.6, "target_passes_per_token": passes, "tpot_s": time}
        for passes, time in ((0.8, 0.05), (0.6, 0.06), (0.61, 0.07), (0.42, 0.1))
    ]
    assert [goal.met for goal in goals(rows, cheapest=0.41)] == [True, True, True]
    assert [goal.met for goal in goals(rows, cheapest=0.39)] == [False, True, True]
    rows[2]["target_passes_per_token"] = 0.7
    rows[1]["tpot_s"] = 0.04
    assert [goal.met for goal in goals(rows, cheapest=0.41)] == [True, False, False]
