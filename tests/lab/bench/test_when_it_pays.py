"""`bench when-it-pays`: what its cells compare, and the page that shows them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.bench.harness.baselines import ALONE, BASELINES, CLOUD_DRAFT, best_baseline
from lab.bench.harness.models import ROOT, Models
from lab.bench.harness.report import Report, Row
from lab.bench.speculation import when_it_pays
from lab.bench.speculation.when_it_pays import (
    AS_ABOVE,
    BEGIN,
    END,
    KEPT,
    WITH_DRAFT,
    WITHOUT_DRAFT,
    Cell,
    StepTimes,
    cell_row,
    cells_of,
    page_with,
    speed,
)
from lab.machine import this_machine
from tandem.core.errors import InvalidArgument
from tandem.specdec.presets import PRESETS

TIMES = StepTimes(0.024, 0.0048, 0.072, 0.0005)


def test_the_best_of_the_cloud_is_the_fastest_baseline_that_was_measured() -> None:
    speeds = {ALONE: 10.0, "stream": 30.0}
    assert best_baseline(speeds) == ALONE
    assert best_baseline(speeds | {CLOUD_DRAFT: 20.0}) == CLOUD_DRAFT
    assert best_baseline({"stream": 30.0}) is None
    for name in BASELINES:
        assert not PRESETS[name].drafts


def test_a_cell_compares_the_fastest_at_the_edge_with_the_fastest_of_the_cloud(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    speeds = {"stream": 18.0, "coupled": 12.0, ALONE: 10.0, CLOUD_DRAFT: 24.0}
    monkeypatch.setattr(when_it_pays, "speed", lambda name, cell, times, seed: speeds[name])
    row = cell_row(Cell(0.5, 0.1, 16), TIMES, 1)
    assert (row["edge"], row["cloud"]) == ("stream", CLOUD_DRAFT)
    assert row[WITH_DRAFT] == pytest.approx(18 / 24)
    assert row[WITHOUT_DRAFT] == row["speedup_over_ar"] == pytest.approx(1.8)
    assert (row["declared"], row["rtt_s"], row["sessions"]) == (0.5, 0.1, 16)
    assert row["speeds"] == speeds


def test_drafts_of_the_cloud_gain_and_far_drafts_of_the_edge_gain_less() -> None:
    def at(name: str, rtt_s: float) -> float:
        return speed(name, Cell(0.9, rtt_s, 1), TIMES, 1)

    assert at(CLOUD_DRAFT, 0.3) > 1.5 * at(ALONE, 0.3)
    assert at("stream", 0.0) > at("stream", 0.3) > 1.02 * at(ALONE, 0.3)


def rows(kept: float, other: float) -> list[Row]:
    """A map whose cells are all alike, but for one."""
    ratios = [other, *[kept] * (len(cells_of(False)) - 1)]
    return [
        {
            "declared": cell.rate,
            "rtt_s": cell.rtt_s,
            "sessions": cell.sessions,
            "edge": "stream",
            WITH_DRAFT: ratio,
            WITHOUT_DRAFT: 2 * ratio,
        }
        for cell, ratio in zip(cells_of(False), ratios, strict=True)
    ]


def test_a_page_has_the_map_between_its_marks_and_nothing_else_changes() -> None:
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    for _ in range(2):
        text = page_with(text, {AS_ABOVE: rows(1.0, 1.6), "a token 3 ms": rows(0.5, 1.0)})
        assert text.startswith(f"before\n{BEGIN}\n\n**The cloud has the draft model, too.**")
        assert text.endswith(f"\n{END}\nafter\n")
        assert "old" not in text
    assert "| 0.3 | 0 ms | **1.60** | 1.00 | 1.00 | 1.00 |" in text
    assert "(1.00 to 1.60 times as fast) drafts of the edge are faster in 1, equal within" in text
    assert "`stream` in 64" in text
    assert "| a token 3 ms | 0 of 64 cells (0.50 to 1.00) | 1 of 64 cells (1.00 to 2.00) |" in text
    with pytest.raises(InvalidArgument, match="page"):
        page_with("nothing", {AS_ABOVE: []})


def test_one_command_makes_the_whole_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Declared times reach the simulation; each cell is there once."""
    asked: list[StepTimes] = []

    def told(name: str, cell: Cell, times: StepTimes, seed: int) -> float:
        asked.append(times)
        return 20.0 if name == "stream" else 10.0

    monkeypatch.setattr(when_it_pays, "speed", told)
    monkeypatch.setattr(when_it_pays, "KEPT", tmp_path / "kept.json")
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}{END}")
    report = Report("when-it-pays", 1, False, this_machine(), "tandem bench when-it-pays")
    when_it_pays.run(report, Models(), page, draft_ms=10, cloud_draft_ms=5, verify_ms=50)
    assert len({(row["declared"], row["rtt_s"], row["sessions"]) for row in report.rows}) == 64
    assert asked[0] == StepTimes(0.010, 0.005, 0.050, 0.0005)
    kept: dict[str, Any] = json.loads((tmp_path / "kept.json").read_text())
    assert kept["declared"]["cloud_draft_s"] == pytest.approx(0.005)
    assert len(kept["maps"]) == 4
    assert "64 of 64 cells (2.00 to 2.00)" in page.read_text()


def test_the_page_is_made_of_the_kept_rows_and_they_are_this_code_s() -> None:
    kept: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8"))
    page = ROOT / "lab" / "docs" / "when-it-pays.md"
    text = page.read_text(encoding="utf-8")
    assert page_with(text, kept["maps"]) == text
    times = StepTimes(**kept["declared"])
    for row in kept["maps"][AS_ABOVE][::21]:
        cell = Cell(row["declared"], row["rtt_s"], row["sessions"])
        assert cell_row(cell, times, row["seed"])[WITH_DRAFT] == pytest.approx(
            row[WITH_DRAFT], abs=1e-4
        )
