"""The grid of the cost model: which cells, what counts as close, and what is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lab.bench.harness.report import Report
from lab.bench.harness.suite import Models
from lab.bench.speculation.cost_model import (
    Cell,
    all_cells,
    chosen_cells,
    predicted_tokens_per_s,
    run,
    share_close,
    simulate,
)
from lab.machine import this_machine
from lab.simulation.answer_figures import steady_tokens_per_s
from tandem.core.errors import InvalidArgument
from tandem.specdec.edge_stats import EdgeStats
from tandem.testing.simulation.answer import SimulatedAnswer

CELL = Cell("ar", "server", 0.030, 100.0, 0.6, 4)


def test_every_exact_preset_is_in_every_cell_once() -> None:
    cells = all_cells()
    assert len(cells) == len(set(cells)) == 12 * 3 * 4 * 2 * 4 * 4
    presets = {cell.preset for cell in cells}
    assert {"ar", "dsd", "fsd", "stream", "mc-dsd"} <= presets
    assert not presets & {"auto", "picospec-top-k"}
    assert chosen_cells(9, seed=4) == chosen_cells(9, seed=4) != chosen_cells(9, seed=5)
    assert set(chosen_cells(0, seed=4)) == set(cells)


def test_close_is_within_seven_percent_either_way() -> None:
    assert share_close([0.92, 0.94, 1.0, 1.06, 1.08]) == 0.6


def test_the_cloud_alone_is_predicted_and_simulated_alike() -> None:
    seen = simulate(CELL, seed=1)
    assert seen.tokens_per_s == pytest.approx(4 / (0.072 + 3 * 0.003), rel=0.01)
    assert (seen.acceptance_rate, seen.miss_rate) == (None, None)
    assert predicted_tokens_per_s(CELL, seen) == pytest.approx(seen.tokens_per_s, rel=0.01)


def test_what_was_simulated_is_kept_and_goes_on(tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    for _ in range(2):
        report = Report("cost-model", 5, True, this_machine(), "")
        run(report, Models(), cells=1, kept=kept)
        (goal,) = report.goals
        assert len(report.rows) == 1
        assert "1 cells" in goal.name
    assert len(kept.read_text().splitlines()) == 1
    kept.write_text("{}\n")
    with pytest.raises(InvalidArgument, match=r"kept: .*line 1"):
        run(report, Models(), cells=1, kept=kept)


def test_steady_speed_counts_from_commit_to_commit() -> None:
    """Bursts of 5 tokens every 2 s, seen over 4 s of one session and 6 s of another."""
    bursts = tuple((2.0 * number, 5) for number in range(6))
    first = SimulatedAnswer((), 0.0, 0.0, 0, 0, 0, EdgeStats(), bursts)
    shifted = tuple((moment + 1, count) for moment, count in bursts[:5])
    second = replace(first, commits=shifted)
    assert steady_tokens_per_s([first, second], warm=5) == pytest.approx(5.0)
    with pytest.raises(InvalidArgument, match="max_tokens"):
        steady_tokens_per_s([first, second], warm=22)
