"""deploy/up.sh with a docker that fails: it says which service or image is at fault."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def start(folder: Path, docker: str) -> subprocess.CompletedProcess[str]:
    """With `docker`, a shell script's body, in the place of Docker's command."""
    program = folder / "docker"
    program.write_text(f"#!/bin/bash\n{docker}\n")
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    command = [str(ROOT / "deploy" / "up.sh")]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=20
    )


def test_an_engine_that_does_not_answer_is_named(tmp_path: Path) -> None:
    finished = start(tmp_path, "exit 1")
    assert finished.returncode == 1
    assert "No Docker engine answers" in finished.stderr


def test_a_docker_without_compose_is_named(tmp_path: Path) -> None:
    finished = start(tmp_path, '[ "$1" = version ]')
    assert finished.returncode == 1
    assert "This Docker has no Compose" in finished.stderr
    assert "No Docker engine answers" not in finished.stderr


def test_an_engine_that_is_started_keeps_nothing_of_its_caller_open(tmp_path: Path) -> None:
    """A pipe or a lock that it kept would keep the caller waiting for as long as it runs."""
    seen = tmp_path / "seen"
    for program, body in (
        ("docker", f'[ "$1" != version ] || [ -e {seen} ]'),
        ("dockerd", f"ls /proc/$$/fd >{seen}.new; mv {seen}.new {seen}"),
    ):
        (tmp_path / program).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / program).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = ROOT / ".ci" / "docker" / "engine.sh"
    command = f"exec 7>{tmp_path}/lock 8</dev/null; TMPDIR={tmp_path} {script}"
    subprocess.run(["bash", "-c", command], env=environment, check=True, timeout=60)
    inherited = {int(name) for name in seen.read_text().split()}
    assert not {7, 8} & inherited


def test_an_unhealthy_service_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    body = """
case "$2" in
  up) echo "container is unhealthy"; exit 1 ;;
  ps) printf '%s\\n' "link running healthy 0" "verifier restarting starting 2" "access exited 0" ;;
  logs) echo "error: model: is not a folder" ;;
esac
exit 0"""
    finished = start(tmp_path, body)
    assert finished.returncode == 1
    assert "verifier is restarting (starting)" in finished.stderr
    assert "  error: model: is not a folder" in finished.stderr
    assert "link is" not in finished.stderr
    assert "access is" not in finished.stderr
