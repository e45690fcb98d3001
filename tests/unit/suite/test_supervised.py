"""The start of a child: the module runs as under `python -m`, and does not outlive its parent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
import sys
if __name__ == "__main__":
    print("given", *sys.argv[1:])
    ending = sys.argv[1]
    if ending == "raise":
        raise ValueError("broken")
    sys.exit(None if ending == "none" else int(ending) if ending.isdigit() else ending)
"""


def run(folder: Path, parent: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "a_module.py").write_text(MODULE)
    command = (sys.executable, "-m", "tandem.suite.supervised", str(parent), "a_module")
    return subprocess.run(
        [*command, *arguments], cwd=folder, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    ("ending", "exit_code", "words"),
    [("none", 0, ""), ("0", 0, ""), ("7", 7, ""), ("sorry", 1, "sorry"), ("raise", 1, "broken")],
)
def test_arguments_go_in_and_the_exit_code_comes_out(
    tmp_path: Path, ending: str, exit_code: int, words: str
) -> None:
    ended = run(tmp_path, os.getpid(), ending, "--flag=1")
    assert ended.stdout == f"given {ending} --flag=1\n"
    assert ended.returncode == exit_code
    assert words in ended.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
def test_nothing_runs_for_a_parent_that_is_gone(tmp_path: Path) -> None:
    ended = run(tmp_path, 2**22, "0")
    assert (ended.stdout, ended.returncode) == ("", 1)
