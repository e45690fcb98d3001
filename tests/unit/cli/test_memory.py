"""`tandem memory`: what is remembered, without its words, and its deletion."""

from __future__ import annotations

import json
from array import array
from pathlib import Path

import pytest
from click.testing import CliRunner

from tandem.cli import main
from tandem.runtime.memory_files import MemoryFile
from tandem.specdec.text_memory import Text


def memory(*arguments: str) -> tuple[int, str]:
    ended = CliRunner().invoke(main, ["memory", *arguments], prog_name="tandem")
    return ended.exit_code, ended.output


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The user's own, with a text of one tenant."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    place = tmp_path / "tandem" / "memory"
    MemoryFile(place, b"alice", "vocabulary").append(Text(array("i", range(1234)), 4))
    return place


def test_it_shows_how_much_is_remembered(folder: Path) -> None:
    code, shown = memory("show")
    assert code == 0
    assert "1,234 tokens of 1 texts, 0.00 MB, last written 20" in shown
    assert "alice" not in shown
    code, shown = memory("show", "--json")
    line = json.loads(shown)
    assert (code, line["texts"], line["tokens"]) == (0, 1, 1234)
    assert line["size_bytes"] == Path(line["file"]).stat().st_size


def test_one_command_deletes_all(folder: Path) -> None:
    assert memory("clear") == (0, f"deleted 1 file in {folder}\n")
    assert memory("show") == (0, f"nothing is remembered in {folder}\n")
    code, shown = memory("clear", "--json")
    assert (code, json.loads(shown)) == (0, {"folder": str(folder), "deleted": 0})


def test_another_folder_is_named(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    MemoryFile(other, b"bob", "vocabulary").append(Text(array("i", range(9)), 4))
    assert memory("clear", "--folder", str(other)) == (0, f"deleted 1 file in {other}\n")
    assert len([*folder.iterdir()]) == 1
