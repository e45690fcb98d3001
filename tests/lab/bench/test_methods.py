"""The comparison of methods: its grid over scripted models, its rows and tables."""

import pytest

from lab.bench.speculation.methods import (
    over_cloud_table,
    speedup_table,
)
from lab.bench.speculation.methods_grid import (
    Cell,
    Grid,
    Question,
    grid_rows,
    measure_grid,
)
from tandem.core.probs import SamplingParams
from tandem.specdec.presets import PRESETS
from tandem.testing.scripted import scripted_pair
from tandem.testing.simulation.model_pair import SimulatedPair, simulated_pair

NEAR = Cell("server", 0.0, 100.0)
FAR = Cell("server", 0.3, 10.0)
NAMES = ("ar", "dsd", "dssd", "coupled")


@pytest.fixture(scope="module")
def pair() -> SimulatedPair:
    return simulated_pair(*scripted_pair(0.1), SamplingParams())


@pytest.fixture(scope="module")
def grid(pair: SimulatedPair) -> Grid:
    asked = [Question((1, 2, 3), seed, seed // 2) for seed in range(4)]
    variants = {name: PRESETS[name] for name in NAMES}
    return measure_grid(variants, (NEAR, FAR), pair, asked, 24, (1, 4, 8))


def test_the_best_length_is_kept(grid: Grid, pair: SimulatedPair) -> None:
    asked = [Question((1, 2, 3), seed, seed // 2) for seed in range(4)]
    best = grid[FAR, "dssd"]
    for length in (1, 4, 8):
        preset = {"dssd": PRESETS["dssd"].with_draft_length(length)}
        alone = measure_grid(preset, (FAR,), pair, asked, 24, (length,))
        assert alone[FAR, "dssd"].tpot_s >= best.tpot_s
    assert best.preset.schedule.chunk > 1, "a far cloud is not asked for every token"


def test_rows_are_compared_with_a_cloud_that_drafts_itself(pair: SimulatedPair) -> None:
    """Good drafts make it faster than the target alone, also where the edge is far."""
    asked = [Question((1, 2, 3), seed, 0) for seed in range(2)]
    names = ("ar", "cloud-draft", "coupled")
    grid = measure_grid({name: PRESETS[name] for name in names}, (FAR,), pair, asked, 24, (1, 4))
    row_of = {row["preset"]: row for row in grid_rows(grid)}
    assert {row["best_cloud"] for row in row_of.values()} == {"cloud-draft"}
    gained = row_of["cloud-draft"]["speedup_over_ar"]
    assert gained > 1.5
    assert row_of["cloud-draft"]["speedup_over_cloud"] == 1.0
    for name in ("ar", "coupled"):
        ratio = row_of[name]["speedup_over_ar"] / gained
        assert row_of[name]["speedup_over_cloud"] == pytest.approx(ratio)
    lengths = {name: row["draft_length"] for name, row in row_of.items()}
    assert (lengths["ar"], lengths["cloud-draft"]) == (None, 4)
    (over_ar,), (over_cloud,) = speedup_table(grid).rows, over_cloud_table(grid).rows
    assert (over_ar["over"], over_ar["ar"]) == ("ar", "1.00")
    assert over_ar["cloud-draft"] == f"{gained:.2f}@4"
    assert (over_cloud["over"], over_cloud["cloud-draft"]) == ("cloud-draft", "1.00@4")
