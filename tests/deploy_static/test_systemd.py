"""The units in deploy/systemd: systemd reads them, and a service runs under what they say."""

from __future__ import annotations

import getpass
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.programs import REPOSITORY

UNITS = REPOSITORY / "deploy" / "systemd"
SERVICES = ("aggregator", "drafter", "retriever", "verifier")
DROP_IN = "tandem@verifier.service.d"
MOST_EXPOSED = 30
"""Of 100, as systemd counts; a service that is not confined at all has 96."""
SYSTEMD_ANALYZE = shutil.which("systemd-analyze")


def values(name: str) -> list[str]:
    unit = (UNITS / "tandem@.service").read_text()
    return re.findall(rf"^{name}=(.*)$", unit, re.MULTILINE)


@pytest.mark.parametrize("service", SERVICES)
def test_the_program_is_a_service(service: str) -> None:
    (command,) = values("ExecStart")
    program, *words = shlex.split(command.replace("%i", service))
    assert Path(program).name == "python"
    assert words == ["-P", "-m", f"tandem.services.{service}"]
    assert find_spec(f"tandem.services.{service}.__main__") is not None


@pytest.mark.skipif(SYSTEMD_ANALYZE is None, reason="systemd is not here to judge its unit")
@pytest.mark.parametrize("gpu", [False, True])
def test_systemd_reads_the_unit_and_finds_it_confined(tmp_path: Path, gpu: bool) -> None:
    text = (UNITS / "tandem@.service").read_text()
    assert "User=tandem\n" in text
    text = text.replace("User=tandem\n", f"User={getpass.getuser()}\n")
    unit = tmp_path / "tandem@.service"
    unit.write_text(text.replace("/opt/tandem/bin/python", sys.executable))
    if gpu:
        shutil.copytree(UNITS / DROP_IN, tmp_path / DROP_IN)
    instance = str(tmp_path / "tandem@verifier.service")
    for words in (
        ("verify",),
        ("security", "--offline=yes", f"--threshold={MOST_EXPOSED}", "--no-pager"),
    ):
        command = ["systemd-analyze", *words, instance]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert not re.search(r"(\.service|\.conf):\d+:", done.stderr), done.stderr
