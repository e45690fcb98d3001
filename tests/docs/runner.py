"""Runs the blocks of one page, in order, in a folder that looks like the repository.

Commands of Tandem run in this process, so that torch is imported once. `tandem up` is the suite
that all pages share; addresses in the documentation become its addresses.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from tandem.cli import main
from tests.docs.blocks import Block, Command, commands_of
from tests.programs import REPOSITORY

UP = ("up", "--rtt-ms", "50", "--mbps", "20")
"""The `tandem up` of the documentation; another one there needs a marker, or a change here."""

LINKED = ("models", "deploy", "protos", "services", "tools", "docs")
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the shared suite serves, by the addresses in the documentation."""

    grpc: str
    http: str

    def put_into(self, text: str) -> str:
        """`text` with the default addresses replaced."""
        return text.replace("127.0.0.1:50050", self.grpc).replace("127.0.0.1:8000", self.http)


@contextmanager
def working_folder(folder: Path) -> Iterator[None]:
    """`folder` as the current one, with links to what commands of the documentation read."""
    for name in LINKED:
        (folder / name).symlink_to(REPOSITORY / name)
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def run_block(block: Block, addresses: Addresses) -> None:
    """Run the block; AssertionError says which command failed and what it wrote."""
    text = addresses.put_into(block.text)
    if block.language == "python":
        exec(compile(text, str(block), "exec"), {"__name__": "__main__"})
        return
    changed = Block(block.page, block.line, block.language, text, block.reason)
    for command in commands_of(changed):
        _run(command, str(block))


def _run(command: Command, place: str) -> None:
    words = command.words
    match command.program:
        case "source":
            assert words[1:] == (".venv/bin/activate",), place
        case "tandem" if words[1] == "up":
            assert words[1:] == UP, f"{place}: the shared suite runs with {shlex.join(UP)}"
        case "tandem" if words[1:2] == ("serve",):
            assert words[-1] == "--help", f"{place}: a service never ends; mark the block"
            _finish([sys.executable, "-m", "tandem.cli", *words[1:]], place)
        case "tandem":
            result = CliRunner().invoke(main, list(words[1:]), prog_name="tandem")
            assert result.exit_code == 0, f"{place}: {shlex.join(words)}\n{result.output}"
        case "make":
            _finish(["make", "--dry-run", "--directory", str(REPOSITORY), *words[1:]], place)
        case _:
            _finish(list(words), place)


def _finish(words: list[str], place: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, f"{place}: {shlex.join(words)}\n{done.stdout}{done.stderr}"
