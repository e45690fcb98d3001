"""The grid of `bench auto` goes on where an earlier run ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.harness.machine import this_machine
from bench.harness.report import Report, Row, make_row
from bench.harness.suite import Models
from bench.speculation import auto


class Killed(Exception):
    """In place of a signal."""


def test_a_run_goes_on_after_the_cells_that_were_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[float] = []

    def row(cell: auto.Cell, fixed: object, seeds: object) -> Row:
        if len(ran) == 2:
            ran.append(0.0)
            raise Killed
        ran.append(cell.rate)
        return make_row(declared=cell.rate, sessions=1, speedup_over_ar=cell.rate, over_best=1.0)

    monkeypatch.setattr(auto, "QUICK", [auto.Cell("server", 0, 9, each, 1) for each in (1, 2, 3)])
    monkeypatch.setattr(auto, "CHANGES", {})
    monkeypatch.setattr(auto, "_cell_row", row)
    kept = tmp_path / "rows.jsonl"
    report = Report("auto", 1, True, this_machine(), "")
    with pytest.raises(Killed):
        auto.run(report, Models(), kept=kept)
    kept.write_text(kept.read_text() + '{"cell": "cut sh')
    auto.run(report, Models(), kept=kept)
    assert sorted(ran) == [0, 1, 2, 3], "each cell once"
    assert sorted(auto.read_rows(kept, [1])) == [
        f"server, 0 ms, 9 Mbit/s, acceptance {rate}, 1 sessions" for rate in (1, 2, 3)
    ]
    assert auto.read_rows(kept, [2]) == {}
    assert sorted(row["declared"] for row in report.rows) == [1, 2, 3]


def test_no_further_cell_begins_after_the_time_that_was_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auto, "CHANGES", {})
    report = Report("auto", 1, True, this_machine(), "")
    auto.run(report, Models(), minutes=0.0)
    assert report.rows == []
    assert report.goals == []


def test_no_drafts_bring_more_than_passes_leave() -> None:
    """Sixteen sessions, 24 ms and 72 + 3 ms: a pass over 16 tokens takes 117 ms, over 32 of them
    165 ms, and the best of all lengths at acceptance 0.6 is one draft."""
    cell = auto.Cell("server", 0.3, 10.0, 0.6, 16)
    assert auto.limit_over_ar(cell) == pytest.approx(1.6 * 117 / 165)
    assert auto.limit_over_ar(replace(cell, rate=0.05)) == 1
