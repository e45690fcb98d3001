"""`bench auto`: its run goes on where an earlier one ended; what its figures are relative to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import inf
from pathlib import Path

import pytest

from lab.bench.harness.models import Models
from lab.bench.harness.report import Report, Row, make_row
from lab.bench.speculation import auto, auto_rows
from lab.bench.speculation.auto_cases import (
    CHANCE,
    MEMORY_BOUND,
    Cell,
)
from lab.bench.speculation.auto_goals import goals as virtual_goals
from lab.bench.speculation.auto_rows import CHOSEN, case_row, fixed_presets, read_rows
from lab.machine import this_machine
from tandem.specdec.presets import PRESETS, Preset


class Killed(Exception):
    """In place of a signal."""


def cell(rate: float, sessions: int = 1, hardware: str = "server") -> Cell:
    return Cell(hardware, 0.030, 9, rate, sessions)


def row_with(*chosen: float, **others: Sequence[float]) -> Row:
    """Of a cell in which `auto` and others write so many tokens a second, by seed."""
    row = make_row(preset=CHOSEN, speedup_over_ar=chosen[0] / others["ar"][0])
    best = max(speeds[0] for speeds in others.values())
    row |= {"over_baseline": chosen[0] / others["ar"][0], "over_best": chosen[0] / best}
    return row | {"speeds": others | {CHOSEN: chosen}}


def report_on(cases: Sequence[Cell], monkeypatch: pytest.MonkeyPatch) -> Report:
    monkeypatch.setattr(auto, "QUICK", cases)
    monkeypatch.setattr(auto, "CHANGES", [])
    return Report("auto", 1, True, this_machine(), "")


def test_a_run_goes_on_after_the_cases_that_were_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[float] = []

    def case_row(case: Cell, fixed: object, seeds: object) -> Row:
        if len(ran) == 2:
            ran.append(0.0)
            raise Killed
        ran.append(case.rate)
        return row_with(case.rate, ar=[1.0]) | {"declared": case.rate, "sessions": 1}

    monkeypatch.setattr(auto_rows, "case_row", case_row)
    report = report_on([cell(rate) for rate in (1, 2, 3)], monkeypatch)
    kept = tmp_path / "new" / "rows.jsonl"
    with pytest.raises(Killed):
        auto.run(report, Models(), kept=kept)
    kept.write_text(kept.read_text() + '{"case": "cut sh')
    auto.run(report, Models(), kept=kept)
    assert sorted(ran) == [0, 1, 2, 3], "each case once"
    assert sorted(read_rows(kept, {"seeds": [1, 2, 3]})) == [
        f"server, 30 ms, 9 Mbit/s, acceptance {rate}, 1 sessions" for rate in (1, 2, 3)
    ]
    assert [row["declared"] for row in report.rows] == [1, 2, 3]


def test_what_was_kept_is_taken_only_for_what_would_be_computed_the_same_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quick run's rows lack presets of a full one; another version's `auto` is another."""
    ran: list[float] = []

    def case_row(case: Cell, fixed: object, seeds: object) -> Row:
        ran.append(case.rate)
        return row_with(1.0, ar=[1.0]) | {"declared": case.rate, "sessions": 1}

    monkeypatch.setattr(auto_rows, "case_row", case_row)
    kept, quick = tmp_path / "rows.jsonl", report_on([cell(0.5)], monkeypatch)
    kept.write_text('{"case": "of before", "seeds": [1, 2, 3], "row": {}}\n[1]\n')
    auto.run(quick, Models(), kept=kept)
    auto.run(quick, Models(), kept=kept)
    assert ran == [0.5]
    auto.run(replace(quick, seed=2), Models(), kept=kept)
    assert ran == 2 * [0.5]
    auto.run(replace(quick, machine=replace(quick.machine, commit="other")), Models(), kept=kept)
    assert ran == 3 * [0.5]
    monkeypatch.setattr(auto, "GRID", [cell(0.5)])
    monkeypatch.setattr(auto, "LOAD", [])
    auto.run(replace(quick, quick=False), Models(), kept=kept)
    assert ran == 4 * [0.5]


def test_what_was_left_out_where_no_draft_pays_counts_as_the_cloud_alone_with_every_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It had the first seed's figure alone: a lucky one for the cloud alone was held against `auto`
    as another preset's."""

    def tokens_per_s(case: Cell, preset: Preset, seed: int) -> float:
        speeds = {"ar": (22.0, 19.0, 20.0), "auto": (20.0, 20.0, 20.0)}
        return speeds.get(preset.name, (1.0, 1.0, 1.0))[seed - 1]

    monkeypatch.setattr(Cell, "tokens_per_s", tokens_per_s)
    case = cell(0.05, 4)
    assert case.limit_over_ar() == 1
    row = case_row(case, {"stream": PRESETS["stream"]}, [1, 2, 3])
    assert row["left_out"] == ["stream"]
    assert row["speeds"]["stream"] == row["speeds"]["ar"] == [22.0, 19.0, 20.0]


@cache
def speed_alone(rate: float, sessions: int) -> float:
    return cell(rate, sessions).tokens_per_s(PRESETS["ar"], 1)


@pytest.mark.parametrize("name", ["coupled", "dssd"])
@pytest.mark.parametrize(("rate", "sessions"), [(0.3, 4), (0.9, 1)])
def test_no_preset_exceeds_what_its_rounds_allow(name: str, rate: float, sessions: int) -> None:
    case, preset = cell(rate, sessions), PRESETS[name]
    speed = case.tokens_per_s(preset, 1) / speed_alone(rate, sessions)
    assert speed < CHANCE[sessions] * case.at_most(preset) < inf


def test_no_drafts_bring_more_than_passes_leave() -> None:
    """Sixteen sessions, 24 ms and 72 + 3 ms: a pass over 16 tokens takes 117 ms, over 32 of them
    165 ms, and the best of all lengths at acceptance 0.6 is one draft."""
    assert cell(0.6, 16).limit_over_ar() == pytest.approx(1.6 * 117 / 165)
    assert cell(0.05, 16).limit_over_ar() == 1
    assert cell(0.6, 64, MEMORY_BOUND).limit_over_ar() > 1.2


def test_auto_is_held_against_the_best_that_the_cloud_does_without_an_edge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def tokens_per_s(case: Cell, preset: Preset, seed: int) -> float:
        return {"ar": 10.0, "cloud-draft": 30.0, "auto": 27.0}.get(preset.name, 5.0)

    monkeypatch.setattr(Cell, "tokens_per_s", tokens_per_s)
    drafting = case_row(replace(cell(0.9), cloud_draft=True), fixed_presets(quick=True), [1])
    assert (drafting["baseline"], drafting["over_baseline"]) == ("cloud-draft", 0.9)
    assert (drafting["best"], drafting["over_best"]) == ("cloud-draft", 0.9)
    assert not virtual_goals([drafting | {"sessions": 1}], [], [])[0].met
    plain = case_row(cell(0.9), fixed_presets(quick=True), [1])
    assert (plain["baseline"], plain["over_baseline"]) == ("ar", 2.7)
    assert "cloud-draft" not in plain["speeds"]
