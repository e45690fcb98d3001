"""`tandem install-service`: the unit that systemd is given, and what is refused before it is."""

from __future__ import annotations

import getpass
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tandem.cli import main

MOST_EXPOSED = 30
"""Of 100, as systemd counts; a service that is not confined at all has 96."""
SYSTEMD_ANALYZE = shutil.which("systemd-analyze")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["install-service", *map(str, arguments)])


def dry(*arguments: object) -> str:
    outcome = run("--dry-run", *arguments)
    assert outcome.exit_code == 0, outcome.output
    return outcome.stdout


def values(unit: str, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", unit, re.MULTILINE)


def test_the_command_is_the_services_own_with_its_flags() -> None:
    unit = dry("drafter", "--verifier", "a:50051,b:50051", "--model", 'a "b" 5% of $x')
    (command,) = values(unit, "ExecStart")
    read = [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(command)]
    assert read[:4] == [sys.executable, "-P", "-m", "tandem.services.drafter"]
    assert read[4:] == ["--verifier", "a:50051,b:50051", "--model", 'a "b" 5% of $x']


def test_a_service_is_confined_started_again_and_given_time_to_drain() -> None:
    unit = dry("drafter", "--drain-s", "30")
    for line in (
        *("NoNewPrivileges=yes", "ProtectSystem=strict", "CapabilityBoundingSet=", "User=tandem"),
        *("PrivateDevices=yes", "Restart=always", "RestartPreventExitStatus=2"),
        *("StateDirectory=tandem/drafter", "TimeoutStopSec=40", "WantedBy=multi-user.target"),
    ):
        assert line in unit.splitlines()


def test_an_accelerator_is_reached_where_it_is_asked_for_and_no_other_device() -> None:
    unit = dry("verifier", "--device", "cuda:1").splitlines()
    assert "PrivateDevices=yes" not in unit
    assert "DevicePolicy=closed" in unit
    assert "DeviceAllow=char-nvidia* rw" in unit


def test_home_folders_are_hidden_unless_a_model_lies_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", "/opt/tandem")
    assert "ProtectHome=yes" in dry("drafter", "--model", "/srv/model")
    assert "ProtectHome=read-only" in dry("drafter", "--model", "/home/me/model")


@pytest.mark.skipif(SYSTEMD_ANALYZE is None, reason="systemd is not here to judge its unit")
def test_systemd_reads_the_unit_and_finds_it_confined(tmp_path: Path) -> None:
    paths = []
    for service in ("drafter", "aggregator", "retriever", "verifier"):
        paths.append(tmp_path / f"tandem-{service}.service")
        paths[-1].write_text(dry("--user", getpass.getuser(), service))
    for words in (
        ("verify",),
        ("security", "--offline=yes", f"--threshold={MOST_EXPOSED}", "--no-pager"),
    ):
        command = ["systemd-analyze", *words, *map(str, paths)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert not re.search(r"tandem-\w+\.service:\d+:", done.stderr), done.stderr


@pytest.mark.parametrize(
    ("flags", "variables", "named"),
    [
        (("--verifire", "a:1"), "", "--verifire"),
        (("--threads", "none"), "", "--threads: must be"),
        ((), "TANDEM_VERIFIRE=a:1\n", "TANDEM_VERIFIRE: is not a setting"),
        ((), "what is this\n", "line 1 is not NAME=VALUE"),
        ((), "TANDEM_TLS_CA=/nowhere/ca.crt\n", "TANDEM_TLS_C"),
    ],
)
def test_what_the_service_would_refuse_is_refused_now(
    tmp_path: Path, flags: tuple[str, ...], variables: str, named: str
) -> None:
    (tmp_path / "edge.env").write_text(variables)
    units = tmp_path / "units"
    units.mkdir()
    given = ("--unit-folder", units, "--environment-file", tmp_path / "edge.env")
    outcome = run(*given, "drafter", *flags)
    assert outcome.exit_code in (1, 2)
    assert named in outcome.stderr
    assert outcome.stderr.count("\n") == 1
    assert list(units.iterdir()) == []


def test_an_enrolled_edge_is_installed_and_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what `tandem enroll` wrote, with systemctl's calls noted."""
    noted = tmp_path / "calls"
    (tmp_path / "systemctl").write_text(f'#!/bin/sh\necho "$@" >>{noted}\n')
    (tmp_path / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("TANDEM_NOT_OF_THE_SERVICE", "this shell's")
    made = ("--authority", str(tmp_path / "certs"), "--out", str(tmp_path))
    for words in (
        ("certs", "--out", str(tmp_path / "certs")),
        ("enroll", "edge-1", *made, "--at", str(tmp_path / "edge-1")),
    ):
        assert CliRunner().invoke(main, words).exit_code == 0
    environment = tmp_path / "edge-1" / "edge.env"
    options = ("--unit-folder", tmp_path, "--environment-file", environment)
    outcome = run(*options, "--user", getpass.getuser(), "drafter", "--verifier", "a:50051")
    assert outcome.exit_code == 0, outcome.output
    unit = (tmp_path / "tandem-drafter.service").read_text()
    assert values(unit, "EnvironmentFile") == [str(environment)]
    name = "tandem-drafter.service"
    assert noted.read_text().splitlines() == ["daemon-reload", f"enable {name}", f"restart {name}"]


def test_a_user_that_is_not_there_is_said_how_to_make(tmp_path: Path) -> None:
    (tmp_path / "open.env").write_text("TANDEM_INSECURE=true\n")
    given = ("--unit-folder", tmp_path, "--environment-file", tmp_path / "open.env")
    outcome = run(*given, "--user", "nobody-of-that-name", "drafter")
    assert outcome.exit_code == 2
    assert "useradd --system" in outcome.stderr
