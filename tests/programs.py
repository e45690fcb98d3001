"""The programs that judge what is in deploy/: `make deploy-tools` puts them beside Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
TIMEOUT_S = 110.0
"""As long as a test may take: on a busy machine seconds of computing take a minute."""
GO = {"GOGC": "400"}
"""What is written in Go spends a quarter of its time on collecting garbage, unless told not to."""


def where(program: str) -> str:
    """Its path; a missing one is a failure that says how to get it."""
    beside = Path(sys.executable).parent
    found = shutil.which(program, path=str(beside)) or shutil.which(program)
    assert found is not None, f"{program}: not found; 'make deploy-tools' gets it"
    return found


def run(program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """What `program` said, and its exit status."""
    command = [where(program), *map(str, arguments)]
    environment = GO | os.environ
    return subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=environment
    )


def output(program: str, *arguments: str | Path) -> str:
    """Its standard output; a failure shows what it complained about."""
    done = run(program, *arguments)
    assert done.returncode == 0, f"{program} {' '.join(map(str, arguments))}: {done.stderr}"
    return done.stdout


def tracked_files(*paths: str) -> list[Path]:
    """The repository's files below `paths` (all without any) that git tracks and that are there."""
    listed = output("git", "-C", REPOSITORY, "ls-files", "-z", "--", *paths).split("\0")
    return [path for name in listed if name and (path := REPOSITORY / name).is_file()]
