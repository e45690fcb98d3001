"""Which models of a machine can draft for a target, told from tokenizers and configurations."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tandem.cli import main
from tandem.demo import demo_folder
from tandem.suite.draft_candidates import draft_candidates
from tandem.suite.local_models import LocalModel, model_at
from tools.write_gguf import write_gguf

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


def test_another_tokenizer_is_told_with_its_share_or_why_not(tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(DRAFT, other)
    path = other / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    renamed = {piece: len(vocabulary) - 1 - token for piece, token in vocabulary.items()}
    tokenizer["model"]["vocab"] = renamed
    path.write_text(json.dumps(tokenizer))
    (found,) = draft_candidates(local(TARGET, 1000), [local(other, 100)])
    assert found.fits, "it is as large, so the tokens themselves are compared"
    assert found.shared > 0.9
    ended = draft_candidates(local(TARGET, 1000), [local(without_tokenizer(tmp_path / "n"), 5)])
    assert "tokenizer" in ended[0].why_not or "cannot be" in ended[0].why_not


def test_vocabularies_of_other_sizes_are_told_without_loading_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.backends.cross_vocabulary.pairing.load_target_tokenizer", None)
    other = draft_copy(tmp_path / "other", vocab_size=2 * 4096)
    (other / "tokenizer.json").write_text("{}")
    (found,) = draft_candidates(local(TARGET, 1000), [local(other, 100)])
    assert (found.fits, found.shared) == (False, 0)
    assert found.why_not.startswith("another tokenizer; ")


def test_gguf_files_in_the_target_s_folder_are_compared_by_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tandem.backends.cross_vocabulary.pairing.load_target_tokenizer", None)
    mine = tmp_path / "mine"
    mine.mkdir()
    small = write_gguf(DRAFT, mine / "small.gguf", kind="Q8_0")
    large = write_gguf(TARGET, mine / "large.gguf", kind="Q8_0")
    ended = CliRunner().invoke(main, ["pair", str(large)])
    assert ended.exit_code == 0, ended.stderr
    first, *_, last = ended.stdout.splitlines()
    assert first.startswith(f"can draft  {small}, 0.1")
    assert first.endswith(" times the size: the same tokenizer")
    assert last == f"tandem up --target {large} --draft {small}"
    assert "demo-draft" not in ended.stdout, "a toy is offered to nobody"
    ended = CliRunner().invoke(main, ["models", str(mine)])
    assert [line.split()[0] for line in ended.stdout.splitlines()] == [str(large), str(small)]


def pair_lines(*arguments: str) -> list[str]:
    ended = CliRunner().invoke(main, ["pair", *arguments])
    assert ended.exit_code == 0, ended.stderr
    return ended.stdout.splitlines()


def test_a_known_target_that_is_not_here_has_known_drafts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    lines = pair_lines("meta-llama/Llama-3.1-8B-Instruct")
    small = "meta-llama/Llama-3.2-1B-Instruct"
    assert lines[0].endswith("'tandem pull meta-llama/Llama-3.1-8B-Instruct' brings it")
    assert lines[2] == f"not here   {small}: 'tandem pull {small}' brings it"
    assert f"tandem pull {small}" in lines
    (draft,) = [json.loads(line) for line in pair_lines("qwen2.5-1.5b", "--json")]
    assert draft["name"] == "Qwen/Qwen2.5-0.5B-Instruct"
    assert "No model here can draft for" in "\n".join(pair_lines("gemma3:270m"))
