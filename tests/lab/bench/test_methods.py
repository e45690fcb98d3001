"""The comparison of methods: its grid over scripted models, its goals, its tables and plots."""

from dataclasses import replace

import pytest

from lab.bench.harness.report import FIELDS
from lab.bench.speculation.methods import (
    chosen_variants,
    over_cloud_table,
    speedup_table,
    variants,
)
from lab.bench.speculation.methods_ablations import (
    exit_goals,
    exit_rows,
    picospec_variants,
    sweep_goal,
    truncation_sweep,
)
from lab.bench.speculation.methods_goals import grid_goals, share_won, speedups
from lab.bench.speculation.methods_grid import (
    Cell,
    Grid,
    Measured,
    Question,
    grid_rows,
    lengths_of,
    measure_grid,
)
from lab.bench.speculation.methods_real import efficiency_goals
from tandem.core.errors import InvalidArgument
from tandem.core.probs import SamplingParams
from tandem.specdec.choices import Schedule
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


def test_more_exits_miss_less_and_save_time(pair: SimulatedPair) -> None:
    """The deeper exit says what the target will say, so what it foresees is drafted ahead."""
    hearing = replace(
        pair, exit_distributions=(pair.draft_probs, pair.target_probs), exit_depths=(1 / 3, 2 / 3)
    )
    asked = [Question((1, 2, 3), seed, 0) for seed in range(4)]
    none, one, two = exit_rows(hearing, asked, 48)
    assert [row["variant"] for row in (none, one, two)] == ["no exits", "1 exits", "2 exits"]
    assert none["undrafted_rate"] is None
    assert two["undrafted_rate"] <= one["undrafted_rate"] < 0.5
    assert two["tpot_s"] < none["tpot_s"]


def test_every_preset_has_every_length_once() -> None:
    assert list(lengths_of(PRESETS["ar"], (1, 2, 4))) == [PRESETS["ar"]]
    for preset in PRESETS.values():
        found = list(lengths_of(preset, (1, 2, 2, 4)))
        assert len(found) == len(set(found)) >= 1


def test_the_best_length_is_kept(grid: Grid, pair: SimulatedPair) -> None:
    asked = [Question((1, 2, 3), seed, seed // 2) for seed in range(4)]
    best = grid[FAR, "dssd"]
    for length in (1, 4, 8):
        preset = {"dssd": PRESETS["dssd"].with_draft_length(length)}
        alone = measure_grid(preset, (FAR,), pair, asked, 24, (length,))
        assert alone[FAR, "dssd"].tpot_s >= best.tpot_s
    assert best.preset.schedule.chunk > 1, "a far cloud is not asked for every token"


def test_rows_have_the_fixed_names_and_the_groups_seeds(grid: Grid) -> None:
    rows = grid_rows(grid, 256)
    assert len(rows) == 2 * len(NAMES) * 2
    for row in rows:
        assert list(row)[: len(FIELDS)] == list(FIELDS)
        assert row["simulated"] is True
        assert row["predicted_tpot_s"] == pytest.approx(row["tpot_s"], rel=0.5)
    alone = [row for row in rows if row["preset"] == "ar"]
    assert {(row["seed"], row["speedup_over_ar"]) for row in alone} == {(0, 1.0), (1, 1.0)}


def test_rows_are_compared_with_a_cloud_that_drafts_itself(pair: SimulatedPair) -> None:
    """Good drafts make it faster than the target alone, also where the edge is far."""
    asked = [Question((1, 2, 3), seed, 0) for seed in range(2)]
    names = ("ar", "cloud-draft", "coupled")
    grid = measure_grid({name: PRESETS[name] for name in names}, (FAR,), pair, asked, 24, (1, 4))
    row_of = {row["preset"]: row for row in grid_rows(grid, 256)}
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


def test_rows_without_a_cloud_that_drafts_are_compared_with_the_target_alone(grid: Grid) -> None:
    for row in grid_rows(grid, 256):
        assert row["best_cloud"] == "ar"
        assert row["speedup_over_cloud"] == row["speedup_over_ar"]


def test_only_what_is_named_is_compared_with_the_target_alone() -> None:
    assert set(chosen_variants(["stream", "cloud-draft"])) == {"ar", "stream", "cloud-draft"}
    assert chosen_variants([]) == variants()
    with pytest.raises(InvalidArgument, match="cloud-draft"):
        chosen_variants(["cloud-drafts"])


def measured(grid: Grid, cell: Cell, name: str, times: float) -> Measured:
    """An entry of the grid that takes so many times as long."""
    known = grid[cell, name]
    slower = {
        group: [
            replace(a, last_commit_s=a.ttft_s + times * (a.last_commit_s - a.ttft_s))
            for a in answers
        ]
        for group, answers in known.answers.items()
    }
    return Measured(known.preset, slower)


def verdicts(grid: Grid) -> dict[str, tuple[float, bool]]:
    return {goal.name.split(",")[0]: (goal.figure, goal.met) for goal in grid_goals(grid)}


def test_goals_are_ratios_in_the_worst_cell(grid: Grid) -> None:
    found = verdicts(grid)
    ratios = speedups(grid, "dssd", "dsd")
    assert set(ratios) == {NEAR, FAR}
    assert found["dssd over dsd"][0] == min(ratios.values())
    assert found["dssd over dsd at 10 Mbit/s"][0] == ratios[FAR]
    assert not any("stream" in name or "picospec" in name for name in found)


def test_a_stream_has_to_win(grid: Grid) -> None:
    for times, met in ((0.9, True), (1.1, False)):
        faster = {(cell, "stream"): measured(grid, cell, "ar", times) for cell in (NEAR, FAR)}
        both = grid | faster
        ratio, reached = verdicts(both)["stream over ar"]
        assert ratio == pytest.approx(1 / times)
        assert reached is met
        share = share_won(both, "stream", ("dssd", "absent"))
        assert (
            share
            == sum(both[cell, "stream"].tpot_s <= both[cell, "dssd"].tpot_s for cell in (NEAR, FAR))
            / 2
        )


def test_a_part_left_out_is_one_field_changed() -> None:
    schedule = Schedule(8, 4, verify_on_arrival=True, bonus=False, token_by_token=True)
    whole = replace(PRESETS["dssd"], name="picospec", schedule=schedule)
    parts = picospec_variants(whole)
    for preset in parts.values():
        preset.validate()
    assert parts["picospec"] is whole
    assert parts["w/o Para-draft"].schedule == replace(schedule, window=4)
    assert not parts["w/o Fast-verify"].schedule.verify_on_arrival
    assert parts["w/o Split-rej"].carries_probs
    assert len(set(parts.values())) == 4


def test_a_sweep_keeps_to_the_theorem(pair: SimulatedPair) -> None:
    rows = truncation_sweep(pair, [Question((1, 2, 3), 1, 1)], 12, kept=(1, 8, 256))
    assert sweep_goal(rows).met
    masses = [row["retained_mass"] for row in rows[::2]]
    assert masses == sorted(masses)
    assert masses[-1] == pytest.approx(1.0)
    assert rows[-1]["acceptance_change"] == pytest.approx(0.0, abs=1e-6)
    assert rows[0]["uplink_bytes_per_token"] < rows[-1]["uplink_bytes_per_token"]


def test_more_exits_must_miss_less() -> None:
    def verdict(*rates: float | None) -> list[bool]:
        names = ("no exits", "1 exits", "2 exits")
        rows = [
            {"variant": name, "undrafted_rate": rate}
            for name, rate in zip(names, rates, strict=True)
        ]
        return [goal.met for goal in exit_goals(rows)]

    assert verdict(None, 0.6, 0.4) == [True]
    assert verdict(None, 0.4, 0.6) == [False]
    assert verdict(None, 0.4, None) == []


def test_a_controller_chooses_for_itself() -> None:
    assert list(lengths_of(PRESETS["stream"], (1, 2, 4))) == [PRESETS["stream"]]


def test_efficiency_is_the_worst_of_each_preset() -> None:
    rows = [
        {"preset": name, "efficiency": figure}
        for name, figure in (("ar", 0.99), ("dsd", 0.97), ("ar", 0.9))
    ]
    assert [(goal.figure, goal.met) for goal in efficiency_goals(rows)] == [
        (0.9, False),
        (0.97, True),
    ]
