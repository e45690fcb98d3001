"""Reports: the row names that readers of the JSON rely on, goals, tables."""

import json
from pathlib import Path

from lab.bench.harness.report import FIELDS, Goal, Report, make_row
from lab.machine import Machine

QUIET = Machine("a processor", 2, "a system", "3.11", "2", "5", "1", load=0.1, commit="abc")

REPORT_NAMES = [
    "preset",
    "draft_length",
    "pacing",
    "rtt_s",
    "mbps",
    "seed",
    "tokens_per_s",
    "speedup_over_ar",
    "tpot_s",
    "ttft_s",
    "acceptance_rate",
    "target_passes_per_token",
    "uplink_bytes_per_token",
    "downlink_bytes_per_token",
]


def a_report() -> Report:
    report = Report("overhead", seed=1, quick=True, machine=QUIET, command="tandem bench overhead")
    report.add("Title", ("preset", "tpot_s"), [make_row(preset="ar", tpot_s=0.01234567, extra=1)])
    report.goals.append(Goal("round overhead", 300e-6, 350e-6, "at most"))
    return report


def test_rows_have_every_name_of_the_design_first() -> None:
    row = make_row(preset="ar", further=3)
    assert list(row) == [*REPORT_NAMES, "further"]
    assert list(FIELDS) == REPORT_NAMES
    assert row["rtt_s"] is None


def test_json_has_experiment_command_commit_machine_and_rows(tmp_path: Path) -> None:
    report = a_report()
    report.rows[0]["tpot_s"] = float("nan")
    path = tmp_path / "new" / "report.json"
    report.write_json(path)
    written = json.loads(path.read_text())
    assert written["experiment"] == "overhead"
    assert written["command"] == "tandem bench overhead"
    assert written["commit"] == "abc"
    assert written["machine"]["load"] == 0.1
    assert written["rows"][0]["tpot_s"] is None  # JSON knows no NaN
    assert written["goals"][0]["met"] is True


def test_a_busy_machine_is_warned_about() -> None:
    busy = Machine("a processor", 2, "a system", "3.11", None, None, None, 2.0, "abc")
    assert "WARNING: the machine is busy" in busy.line()


def test_goals_hold_at_their_limit_and_never_for_nan() -> None:
    assert Goal("", 0.95, 0.95, "at least").met
    assert Goal("", 350e-6, 350e-6, "at most").met
    assert not Goal("", 0.94, 0.95, "at least").met
    assert not Goal("", float("nan"), 0.95, "at least").met
    assert not Goal("", float("nan"), 0.95, "at most").met
    report = a_report()
    assert report.met
    report.goals.append(Goal("ratio", 0.7, 0.6, "at most"))
    assert not report.met


def test_disturbance_is_told_from_its_limit_on() -> None:
    report = a_report()
    report.others_busy = 0.04
    assert "WARNING" not in report.text()
    report.others_busy = 0.31
    assert "WARNING: other processes took 31% of the cores meanwhile" in report.text()
    assert report.to_json()["machine"]["others_busy"] == 0.31
