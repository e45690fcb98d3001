"""`bench adaptive`: its cells, what they are compared with, and how a run goes on."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from pathlib import Path

import pytest

from lab.bench.harness.report import Report, Row, make_row
from lab.bench.harness.suite import Models
from lab.bench.speculation import adaptive
from lab.bench.speculation.adaptive_cells import CHAINS, TRUNCATED, Cell, grid
from lab.machine import this_machine


def cell(preset: str, rate: float = 0.6) -> Cell:
    return Cell(preset, 1.0, 10.0, 0.03, rate)


@pytest.mark.parametrize("name", [*CHAINS, *TRUNCATED])
def test_a_preset_that_chooses_is_compared_with_fixed_ones_alone(name: str) -> None:
    compared = cell(name)
    assert compared.chosen.chooses_rounds
    assert compared.chosen.chooses_truncation is (name in TRUNCATED)
    fixed = compared.fixed()
    assert len(fixed) >= 10
    for preset in fixed.values():
        preset.validate()
        assert not preset.chooses_rounds
        assert not preset.chooses_truncation


def test_the_grid_has_every_link_and_preset_once() -> None:
    cells = grid(quick=False)
    assert len({str(each) for each in cells}) == len(cells) == 3 * 4 * 3 * 6
    assert len(grid(quick=True)) < 10


def test_the_goals_are_of_the_mean_and_of_the_worst_cell() -> None:
    rows = [{"preset": "dsd", "over_best": ratio} for ratio in (0.98, 0.92)]
    mean, worst = adaptive.goals(rows)
    assert mean.figure == pytest.approx(sqrt(0.98 * 0.92))
    assert worst.figure == 0.92
    assert not worst.met


def test_a_run_goes_on_after_the_cells_that_were_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[float] = []

    def cell_row(case: Cell, seeds: Sequence[int]) -> Row:
        ran.append(case.rate)
        return make_row(preset=case.preset, over_best=1.0)

    monkeypatch.setattr(adaptive, "grid", lambda quick: [cell("dsd", 0.3), cell("dsd", 0.6)])
    monkeypatch.setattr(adaptive, "cell_row", cell_row)
    kept = tmp_path / "rows.jsonl"
    report = Report("adaptive", 1, True, this_machine(), "")
    adaptive.run(report, Models(), kept=kept, minutes=0.0)
    assert ran == []
    adaptive.run(report, Models(), kept=kept)
    adaptive.run(report, Models(), kept=kept)
    assert ran == [0.3, 0.6]
