"""`tandem sim` over scripted models: rows, figures, and what it refuses."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lab.bench.harness.report import FIELDS
from lab.commands.sim_fleet import simulated_row
from tandem.cli import main
from tandem.specdec.presets import PRESETS


def sim(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["sim", "--scripted", "0.2", *arguments], prog_name="tandem")


def rows_of(*arguments: str) -> list[dict[str, Any]]:
    ended = sim("--max-tokens", "24", "--json", *arguments)
    assert (ended.exit_code, ended.stderr) == (0, "")
    found = json.loads(ended.stdout)
    assert found["simulated"] is True
    rows: list[dict[str, Any]] = found["rows"]
    return rows


def test_every_preset_has_a_row_with_the_common_names() -> None:
    rows = rows_of("--mbps", "10", "--seed", "5")
    assert [row["preset"] for row in rows] == list(PRESETS)
    names = {*FIELDS, "cache_miss_rate", "mbps_up", "mbps_down"}
    assert all(set(row) == names for row in rows)
    alone = rows[0]
    assert (alone["draft_length"], alone["speedup_over_ar"]) == (None, 1.0)
    assert alone["tpot_s"] == pytest.approx(0.072)
    assert (alone["rtt_s"], alone["mbps"], alone["seed"]) == (0.03, 10, 5)


def test_flags_that_repeat_are_combined() -> None:
    rows = rows_of(
        *("--preset", "dsd", "--preset", "ar", "--draft-length", "2", "--draft-length", "3"),
        *("--rtt-ms", "0", "--rtt-ms", "100"),
    )
    found = [(row["preset"], row["draft_length"], row["rtt_s"]) for row in rows]
    drafting = [("dsd", length, rtt_s) for length in (2, 3) for rtt_s in (0.0, 0.1)]
    assert found == [*drafting, ("ar", None, 0.0), ("ar", None, 0.1)]
    for row in rows[:4]:
        same = next(r for r in rows[4:] if r["rtt_s"] == row["rtt_s"])
        assert row["speedup_over_ar"] == same["tpot_s"] / row["tpot_s"]


def test_the_same_seed_gives_the_same_figures() -> None:
    arguments = ("--preset", "dssd", "--jitter-ms", "5", "--answers", "3", "--mbps", "1")
    assert rows_of(*arguments) == rows_of(*arguments)
    assert rows_of(*arguments) != rows_of(*arguments, "--seed", "1")


def test_people_get_a_table_that_says_it_is_simulated() -> None:
    lines = sim("--preset", "ar", "--preset", "coupled").stdout.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["preset", "ar", "coupled"]
    assert "Virtual time" in lines[-1]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--draft-ms", "-1"], "--draft-ms"),
        (["--rtt-ms", "-1"], "--rtt-ms"),
        (["--mbps", "0"], "--mbps"),
        (["--draft-length", "0"], "--draft-length"),
        (["--vocabulary", "5"], "--vocabulary"),
        (["--scripted", "2"], "--scripted"),
        (["--draft", "."], "--draft"),
        (["--max-tokens", "9999"], "--max-tokens"),
        (["--preset", "nonesuch"], "--preset"),
    ],
)
def test_bad_flags_are_named(arguments: list[str], named: str) -> None:
    ended = sim(*arguments)
    assert ended.exit_code == 2
    assert named in ended.stderr


def fleet(*arguments: str) -> Result:
    small = (
        "--edges",
        "20",
        "--verifiers",
        "2",
        "--seconds",
        "5",
        "--warm-s",
        "1",
        "--per-edge-s",
        "5",
    )
    return CliRunner().invoke(main, ["sim", "--fleet", *small, *arguments], prog_name="tandem")


def test_a_fleet_has_a_row_for_each_preset() -> None:
    ended = fleet("--json", "--traffic", "bursts", "--set", "draft_length=4", "--preset", "stream")
    assert (ended.exit_code, ended.stderr) == (0, "")
    (row,) = json.loads(ended.stdout)["rows"]
    assert (row["preset"], row["edges"], row["verifiers"]) == ("stream", 20, 2.0)
    assert row["answers"] > 0
    assert row["tpot_p50_s"] > 0
    told = fleet()
    assert [line.split()[0] for line in told.stdout.splitlines()[1:3]] == ["ar", "auto"]


def test_a_fleet_finds_how_many_verifiers_keep_to_a_limit() -> None:
    ended = fleet("--tpot-ms", "45", "--tpot-ms", "1", "--preset", "ar")
    assert ended.exit_code == 0, ended.output
    kept, none = ended.stdout.splitlines()[1:3]
    assert kept.split()[:4] == ["ar", "20", "45", "1.0"]
    assert "none would do" in none


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--rtt-ms", "9..1"), "--rtt-ms"),
        (("--preset", "mc-dsd"), "preset"),
        (("--scale-to", "4", "--tpot-ms", "30"), "leave one out"),
        (("--draft", "x"), "draft"),
    ],
)
def test_a_fleet_that_cannot_be_is_refused(arguments: tuple[str, ...], words: str) -> None:
    ended = fleet(*arguments)
    assert ended.exit_code != 0
    assert words in ended.stderr


def test_the_speed_of_a_simulation_is_told_of_its_rounds() -> None:
    flags = ("--edges", "100", "--verifiers", "1", "--seconds", "2", "--warm-s", "1")
    row = simulated_row([*flags, "--preset", "ar"])
    assert row["preset"] == "ar"
    assert row["simulated_rounds"] > 20
    assert row["rounds_per_processor_s"] > 1000


def test_a_processor_clock_that_has_not_ticked_is_no_division_by_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where an interval timer runs, by which the system counts in ticks."""
    clocks = SimpleNamespace(perf_counter=time.perf_counter, process_time=lambda: 7.0)
    monkeypatch.setattr("lab.commands.sim_fleet.time", clocks)
    flags = ("--edges", "4", "--verifiers", "1", "--seconds", "2", "--warm-s", "1")
    row = simulated_row([*flags, "--preset", "ar"])
    assert row["rounds_per_processor_s"] == row["rounds_per_s"] > 0
