"""The command group, without running an experiment that measures time."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from lab.bench.harness.models import Models
from lab.bench.harness.report import Goal, Report, make_row
from lab.bench.harness.texts import HELD_OUT, PEPS
from lab.bench.main import EXPERIMENTS, bench
from lab.bench.wire import wire_bytes
from tests.programs import tracked_files


def stub_run(report: Report, models: Models) -> None:
    report.add("Table", ("preset", "seed"), [make_row(preset="ar", seed=report.seed)])
    report.goals.append(Goal("a goal", 2.0, 1.0, "at most"))


def test_every_experiment_has_help_and_the_common_options() -> None:
    assert set(EXPERIMENTS) == {
        *("peers", "target-server", "steps", "prompts", "learning", "batching", "quantised"),
        *("auto", "methods", "when-it-pays", "bytes", "retriever", "leakage", "papers"),
        *("faults", "overload", "capacity", "soak", "loop"),
    }
    for name in EXPERIMENTS:
        result = CliRunner().invoke(bench, [name, "--help"])
        assert result.exit_code == 0
        for option in ("--json", "--seed", "--quick"):
            assert option in result.output


def test_default_inputs_are_in_the_repository() -> None:
    """Whoever has a plain clone can run every experiment."""
    tracked = set(tracked_files())
    folders = {folder for path in tracked for folder in path.parents}
    found = {HELD_OUT, PEPS}
    for name in EXPERIMENTS:
        for option in bench.commands[name].params:
            if isinstance(option.default, str | Path):
                found.add(Path(option.default))
    assert len(found) == 4
    assert found <= tracked | folders


def test_json_and_check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(wire_bytes, "run", stub_run)
    path = tmp_path / "bytes.json"
    arguments = ["bytes", "--quick", "--seed", "7", "--json", str(path)]
    result = CliRunner().invoke(bench, arguments)
    assert result.exit_code == 0, result.output
    assert "MISSED: a goal" in result.output
    written = json.loads(path.read_text())
    assert written["rows"][0]["seed"] == 7
    assert written["quick"] is True
    assert CliRunner().invoke(bench, [*arguments, "--check"]).exit_code == 1
    alone = CliRunner().invoke(bench, ["bytes", "--json", "--quick"])
    assert json.loads(alone.stdout)["goals"][0]["met"] is False
