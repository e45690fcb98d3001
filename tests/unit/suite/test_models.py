"""Which model a flag means, and how one that cannot be loaded is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from tandem.cli import main
from tandem.suite.models import choose_model, demo_source

DEMO_DRAFT = Path(__file__).parents[3] / "models" / "demo-draft"


def test_the_demo_pair_is_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Path(choose_model(demo_source("demo-draft")).source) == DEMO_DRAFT


def refusal(*arguments: str) -> tuple[int, str]:
    ended = CliRunner().invoke(main, ["generate", "--prompt", "x", *arguments])
    assert ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 1
    return ended.exit_code, ended.stderr


def test_damaged_weights(tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(DEMO_DRAFT, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    code, words = refusal("--draft", str(folder))
    assert code == 1
    assert f"error: draft: {weights} cannot be loaded" in words


def test_a_damaged_target_is_not_called_a_draft(tmp_path: Path) -> None:
    """Drafts are looked up where no draft is named: the first to read the target's file."""
    file = tmp_path / "error-page.gguf"
    file.write_text("<html>")
    code, words = refusal("--target", str(file))
    assert code == 1
    assert words.startswith(f"error: target: {file} is not a GGUF file")


def test_exits_of_another_model_are_refused(tmp_path: Path) -> None:
    exits = DEMO_DRAFT.with_name("demo-exits")
    code, words = refusal("--target", str(DEMO_DRAFT), "--exits", str(exits))
    assert code == 2
    assert f"--exits: {exits} was trained for another model: base_hash is" in words
