"""The line of progress that make shows while it installs."""

from __future__ import annotations

import subprocess
import sys

from tests.programs import REPOSITORY

PROGRESS = REPOSITORY / "tools" / "progress.py"


def run(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRESS), "installing", sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_pipe_gets_the_words_and_the_seconds_and_not_all_that_was_written() -> None:
    ended = run("print('WARNING: noise'); print('Collecting one'); print('Collecting two')")
    assert (ended.returncode, ended.stderr) == (0, "")
    first, *_, last = ended.stdout.splitlines()
    assert first.startswith("installing: 0 s")
    assert last.startswith("installing: ")
    assert last.endswith(" s")
    assert "noise" not in ended.stdout


def test_what_fails_is_shown_whole_and_keeps_its_status() -> None:
    ended = run("import sys; print('one'); print('two', file=sys.stderr, flush=True); sys.exit(3)")
    assert ended.returncode == 3
    assert {"one", "two"} <= set(ended.stderr.splitlines())
