"""The line of progress that make shows while it installs."""

from __future__ import annotations

import signal
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


def test_an_interrupt_ends_the_command_and_says_that_it_can_be_given_again() -> None:
    command = [sys.executable, str(PROGRESS), "installing"]
    sleeps = [sys.executable, "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(
        [*command, *sleeps],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # As at a terminal: what a shell started in the background ignores it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("installing: 0 s")
        process.send_signal(signal.SIGINT)
        written, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "")
    assert written == "installing: interrupted; the same command goes on\n"
