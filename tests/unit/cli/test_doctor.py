"""`tandem doctor`: good on this installation, and it names what is bad."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tandem.cli import main
from tandem.commands.check_suite import describe_suite, judge_suite
from tandem.commands.profile_models import profile_checks
from tandem.specdec.presets import PRESETS
from tandem.suite.embedded import EmbeddedSuite
from tandem.two_sided.interface import AGGREGATION_PRESETS
from tandem.two_sided.profiling.decode_fits import read_fits
from tandem.two_sided.protocol.mixture import Side
from tests.unit.cli.scripted_pair import scripted_pair

REPOSITORY = Path(__file__).parents[3]


def doctor(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["doctor", *arguments])


def test_this_installation_and_the_demo_pair_are_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    ended = doctor("--json")
    outcome = json.loads(ended.stdout)
    assert ended.exit_code == 0, ended.stdout
    assert outcome["ok"]
    checks = {found["name"]: found["found"] for found in outcome["checks"]}
    wanted = {"python", "torch", "grpc", "protobuf code", "port", "early exits"}
    assert wanted | {"one vocabulary", "draft back end", "target back end"} <= checks.keys()
    assert "draft context" not in checks, "both read as much"
    assert checks["target back end"].startswith("trees yes, forks yes, cancellation yes, exits ")
    assert checks["presets"] == (
        f"{len(PRESETS)} of {len(PRESETS)} can run; {len(AGGREGATION_PRESETS)} more answer from"
        " documents"
    )


def test_a_bad_check_says_what_to_do_and_does_not_end_the_others(tmp_path: Path) -> None:
    ended = doctor("--draft", str(tmp_path))
    assert ended.exit_code == 1
    (bad,) = [line for line in ended.stdout.splitlines() if line.startswith("bad")]
    assert "draft model: " in bad
    assert "--draft" in bad
    assert any(line.startswith("ok   target model: ") for line in ended.stdout.splitlines())
    assert ended.stderr == "error: bad: draft model; see above for what to do\n"


def test_nobody_at_the_endpoint() -> None:
    ended = doctor("--endpoint", "127.0.0.1:1", "--json")
    last = json.loads(ended.stdout)["checks"][-1]
    assert ended.exit_code == 1
    assert (last["name"], last["ok"]) == ("endpoint", False)
    assert "UNAVAILABLE" in last["found"]
    assert "tandem up" in last["todo"]


async def test_two_ends_that_fit() -> None:
    async with EmbeddedSuite(scripted_pair()) as suite:
        checks = judge_suite(suite.target, await describe_suite(suite.target))
    assert [found.name for found in checks] == ["endpoint", "edge", "cloud", "both ends"]
    assert all(found.ok for found in checks)


async def test_two_ends_with_different_vocabularies() -> None:
    async with EmbeddedSuite(scripted_pair(draft_vocabulary=32)) as suite:
        last = judge_suite(suite.target, await describe_suite(suite.target))[-1]
    assert not last.ok
    assert "the vocabularies differ" in last.found
    assert "scripted has 32 logits, scripted has 64" in last.found


def test_early_exits_that_do_not_fit_are_bad(tmp_path: Path) -> None:
    models = REPOSITORY / "models"
    shutil.copytree(models / "demo-draft", tmp_path / "my-target")
    shutil.copytree(models / "demo-exits", tmp_path / "my-exits")
    for exits, found in (
        ("auto", "trained for another model"),
        (str(tmp_path), "exits.json cannot be read"),
    ):
        ended = doctor("--target", str(tmp_path / "my-target"), "--exits", exits)
        (bad,) = [line for line in ended.stdout.splitlines() if line.startswith("bad")]
        assert bad.startswith("bad  early exits: exits: ")
        assert found in bad
        assert "tandem train-exits" in bad
    ended = doctor("--target", str(tmp_path / "my-target"), "--exits", "none")
    assert "ok   early exits: none wanted" in ended.stdout.splitlines()


def test_profile_measures_both_sides_and_stores_the_lines(tmp_path: Path) -> None:
    draft, stored = str(REPOSITORY / "models" / "demo-draft"), tmp_path / "fits.json"
    options = {
        **{
            "draft": draft,
            "demo": False,
            "threads": 0,
            "device_draft": "cpu",
            "dtype_draft": "float32",
            "engine_draft": "torch",
            "exits": "none",
        },
        **{
            "target": draft,
            "device_target": "cpu",
            "dtype_target": "float32",
            "engine_target": "torch",
        },
        **{"profile_file": stored, "profile_documents": 2},
    }
    device, cloud = profile_checks(options)
    assert (device.ok, cloud.ok) == (True, True), (device.found, cloud.found)
    assert "demo-draft, 2 documents: " in device.found
    assert str(stored) in cloud.found
    fits = read_fits(stored)
    assert set(fits) == set(Side)
    assert all(kept.fit.at(128) > 0 for kept in fits.values())
