"""A GGUF file's model as a folder, as `make real-pair` needs one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tandem.backends.model_description import load_tokenizer
from tandem.demo import demo_folder
from tests.unit.backends.gguf_files import draft_gguf
from tools.gguf_folder import find_file, write_folder


def test_a_folder_made_of_a_file_has_its_weights_and_its_tokenizer(tmp_path: Path) -> None:
    path = draft_gguf(tmp_path)
    write_folder(path, tmp_path / "folder")
    made, wanted = (
        load_file(folder / "model.safetensors")
        for folder in (tmp_path / "folder", demo_folder("demo-draft"))
    )
    assert made.keys() == wanted.keys()
    assert all(torch.equal(made[name], wanted[name].float()) for name in made)
    tokenizer = load_tokenizer(tmp_path / "folder")
    assert tokenizer.vocabulary_hash == load_tokenizer(demo_folder("demo-draft")).vocabulary_hash
    assert find_file(str(path)) == path
    with pytest.raises(SystemExit, match="neither"):
        find_file("no_such_package")
