"""`tandem sim` over scripted models: rows, figures, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lab.bench.harness.report import FIELDS
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
