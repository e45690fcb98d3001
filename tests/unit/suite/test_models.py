"""Which model a flag means, and how one that cannot be loaded is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from tandem.backends.model_source import ModelChoice
from tandem.cli import main
from tandem.suite.models import CannotLoad, choose_model, demo_source

DEMO_DRAFT = Path(__file__).parents[3] / "models" / "demo-draft"


def test_the_demo_pair_is_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Path(choose_model(demo_source("demo-draft")).source) == DEMO_DRAFT


def test_no_demo_pair_says_what_to_give() -> None:
    with pytest.raises(CannotLoad, match="set --draft and --target"):
        choose_model(demo_source("demo-nothing"))


def test_a_folder_and_a_pinned_name() -> None:
    assert choose_model(str(DEMO_DRAFT), "cuda", "float16") == ModelChoice(
        str(DEMO_DRAFT), None, "cuda", "float16"
    )
    assert choose_model("owner/name@abc") == ModelChoice("owner/name", "abc")
    with pytest.raises(CannotLoad, match=r"no such folder, .*; 'tandem pull owner/name' downloads"):
        choose_model("owner/name")


def refusal(*arguments: str) -> tuple[int, str]:
    ended = CliRunner().invoke(main, ["generate", "--prompt", "x", *arguments])
    assert ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 1
    return ended.exit_code, ended.stderr


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    code, words = refusal("--draft", str(tmp_path))
    assert code == 1
    assert f"error: {tmp_path} has no config.json; give the folder of a model" in words


@pytest.mark.parametrize("side", ["--target", "--draft"])
def test_a_file_that_is_not_there(tmp_path: Path, side: str) -> None:
    """By the name that was given: the side that reads it first may be another."""
    missing = tmp_path / "missing.gguf"
    code, words = refusal(side, str(missing))
    assert code == 1
    assert f"error: {missing}: no such file; 'tandem models' lists" in words


def test_a_file_in_place_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    code, words = refusal("--draft", str(tmp_path / "file"))
    assert code == 1
    assert "is a file; give the folder of a model" in words


def test_damaged_weights(tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(DEMO_DRAFT, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    code, words = refusal("--draft", str(folder))
    assert code == 1
    assert f"error: draft: {weights} cannot be loaded" in words


def test_a_device_that_is_not_there() -> None:
    code, words = refusal("--device-draft", "tpu")
    assert code == 2
    assert "--device-draft: 'tpu' is neither cpu nor cuda" in words


def test_exits_of_another_model_are_refused(tmp_path: Path) -> None:
    exits = DEMO_DRAFT.with_name("demo-exits")
    code, words = refusal("--target", str(DEMO_DRAFT), "--exits", str(exits))
    assert code == 2
    assert f"--exits: {exits} was trained for another model: base_hash is" in words
