"""What a peer of the last release would not understand is refused before it is merged."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.programs import REPOSITORY, run, where

SCRIPT = REPOSITORY / "tools" / "breaking.sh"
PROTO = "demo/v1/demo.proto"
RELEASED = """syntax = "proto3";
package demo.v1;
message Ask {
  uint32 session = 1;
}
"""


def git(repository: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=tests", "-c", "user.email=tests@localhost")
    subprocess.run(("git", "-C", str(repository), *identity, *arguments), check=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One commit with a message of one field."""
    protos = tmp_path / "protos"
    (protos / PROTO).parent.mkdir(parents=True)
    (protos / "buf.yaml").write_text((REPOSITORY / "protos" / "buf.yaml").read_text())
    (protos / PROTO).write_text(RELEASED)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    return tmp_path


def breaking(repository: Path) -> tuple[int, str]:
    done = run("bash", SCRIPT, where("buf"), repository)
    return done.returncode, done.stdout + done.stderr


def test_before_the_first_release_nothing_is_promised(repository: Path) -> None:
    assert breaking(repository) == (0, "breaking: no release yet, nothing to compare with\n")


def test_an_added_field_is_fine_and_a_changed_one_is_not(repository: Path) -> None:
    git(repository, "tag", "v0.1.0")
    file = repository / "protos" / PROTO
    file.write_text(RELEASED.replace("}", "  uint32 epoch = 2;\n}"))
    assert breaking(repository) == (0, "breaking: protos/ is compatible with v0.1.0\n")
    file.write_text(RELEASED.replace("uint32", "string"))
    status, said = breaking(repository)
    assert status != 0
    assert 'Field "1" with name "session"' in said
