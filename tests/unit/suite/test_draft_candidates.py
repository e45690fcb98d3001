"""Which models of a machine can draft for a target, told from tokenizers and configurations."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tandem.cli import main
from tandem.core.errors import InvalidArgument
from tandem.demo import demo_folder
from tandem.suite.draft_candidates import draft_candidates
from tandem.suite.local_models import LocalModel, NoSuchModel, model_at

TARGET = demo_folder("demo-target")
DRAFT = demo_folder("demo-draft")


def local(source: Path, size_bytes: int) -> LocalModel:
    return replace(model_at(source), name=source.name, size_bytes=size_bytes)


def draft_copy(folder: Path, **changes: object) -> Path:
    shutil.copytree(DRAFT, folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def without_tokenizer(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "model.safetensors").write_bytes(bytes(8))
    return folder


def test_the_same_tokenizer_fits_and_comes_first(tmp_path: Path) -> None:
    bare = without_tokenizer(tmp_path / "no-tokenizer")
    models = [
        local(bare, 5),
        local(TARGET, 1000),
        local(DRAFT, 100),
        local(draft_copy(tmp_path / "smaller"), 50),
    ]
    found = draft_candidates(local(TARGET, 1000), models)
    assert [candidate.model.name for candidate in found] == ["smaller", "demo-draft", bare.name]
    assert [candidate.fits for candidate in found] == [True, True, False]
    assert found[0].shared == 1
    assert found[1].size_ratio == 0.1
    assert found[2].why_not


def test_a_draft_of_the_target_s_size_comes_too_late() -> None:
    (found,) = draft_candidates(local(TARGET, 150), [local(DRAFT, 100)])
    assert not found.fits
    assert found.why_not == "larger than 50% of the target, so its drafts come too late"


def test_a_shorter_context_is_told(tmp_path: Path) -> None:
    short = draft_copy(tmp_path / "short", max_position_embeddings=128)
    (found,) = draft_candidates(local(TARGET, 1000), [local(short, 100)])
    assert found.why_not == "reads 128 tokens, the target 1024: longer texts would be refused"


def test_a_target_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    bare = without_tokenizer(tmp_path / "bare")
    with pytest.raises(InvalidArgument):
        draft_candidates(local(bare, 1000), [])
    with pytest.raises(NoSuchModel, match="with its weights"):
        model_at(tmp_path)


def test_the_command_says_what_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    for folder in (TARGET, DRAFT):
        (tmp_path / "models" / folder.name).symlink_to(folder)
    ended = CliRunner().invoke(main, ["pair", "demo-target"])
    assert ended.exit_code == 0
    assert ended.stdout.splitlines()[0].startswith("can draft  demo-draft, 0.11 times the size")
    assert ended.stdout.endswith("\ntandem up --target demo-target --draft demo-draft\n")
    ended = CliRunner().invoke(main, ["pair", "demo-draft", "--json"])
    assert [json.loads(line)["can_draft"] for line in ended.stdout.splitlines()] == [False]
    ended = CliRunner().invoke(main, ["pair", "demo-draft"])
    assert "--engine-draft lookup" in ended.stdout
    ended = CliRunner().invoke(main, ["pair", "no-such-model"])
    assert ended.exit_code == 1
    assert ended.stderr.startswith("error: no-such-model: no such folder, file or model")
