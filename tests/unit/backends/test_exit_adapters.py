"""Folders of early-exit adapters: found, loaded as trained, refused where they do not fit."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tandem.backends.torch.exit_adapters import (
    DESCRIPTION,
    TENSORS,
    ExitsDescription,
    new_adapters,
    place_beside,
    save_adapters,
    weights_hash,
)
from tandem.backends.torch.loading import base_hash, load_engine
from tandem.core.errors import InvalidArgument
from tests.unit.backends.tiny_folders import write_model

LAYERS = 3
HIDDEN = 64
RANK = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with exits that fit it, beside it."""
    model = write_model(tmp_path_factory.mktemp("models") / "tiny-target", "llama")
    write_exits(model.with_name("tiny-exits"), base_hash(model))
    return model


def write_exits(folder: Path, base: str) -> None:
    description = ExitsDescription(base, LAYERS, HIDDEN, (0, 1), RANK, (0.5, 0.75))
    save_adapters(new_adapters(description, seed=1), folder)


def test_exits_beside_a_model_are_found(folder: Path, tmp_path: Path) -> None:
    assert place_beside(folder) == folder.with_name("tiny-exits")
    assert place_beside(Path("/x/llama")) == Path("/x/llama-exits")
    for exits in ("auto", str(folder.with_name("tiny-exits"))):
        assert load_engine(folder, exits=exits).exit_depths == pytest.approx((1 / 3, 2 / 3))
    alone = Path(shutil.copytree(folder, tmp_path / "alone"))
    for model, exits in ((folder, "none"), (alone, "auto")):
        assert load_engine(model, exits=exits).exit_depths == ()


def test_exits_of_another_model_are_refused(folder: Path, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other-target", "qwen3")
    with pytest.raises(InvalidArgument, match=r"^exits: .*trained for another model: base_hash"):
        load_engine(other, exits=str(folder.with_name("tiny-exits")))


def describe(**changes: Any) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        found = json.loads((folder / DESCRIPTION).read_text())
        (folder / DESCRIPTION).write_text(json.dumps(found | changes))

    return change


def write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def tensor(name: str, value: torch.Tensor | None) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        found = load_file(folder / TENSORS)
        found.pop(name, None)
        if value is not None:
            found[name] = value
        save_file(found, folder / TENSORS)

    return change


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda folder: shutil.rmtree(folder), r"exits.json cannot be read"),
        (write(DESCRIPTION, b"{"), r"exits.json cannot be read"),
        (write(DESCRIPTION, b"[]"), r"exits.json: format is not 1"),
        (describe(format=2), r"format is not 1"),
        (describe(base_hash=None), r"base_hash: Input should be a valid string"),
        (describe(rank="4"), r"rank: Input should be a valid integer"),
        (describe(layers=[]), r"layers: Tuple should have at least 1 item"),
        (describe(layers=[1, 0]), r"layers must ascend within 0\.\.1"),
        (describe(layers=[0, 2]), r"layers must ascend within 0\.\.1"),
        (describe(layers=[0, "1"]), r"layers\.1: Input should be a valid integer"),
        (describe(rank=0), r"rank: Input should be greater than or equal to 1"),
        (describe(layer_count=7), r"layer_count is 7, the model's is 3"),
        (describe(hidden_size=32), r"hidden_size is 32, the model's is 64"),
        (describe(rank=5), r"0.down has shape \[4, 64\], not \[5, 64\]"),
        (write(TENSORS, b"nothing"), r"exits.safetensors cannot be read"),
        (tensor("1.up", None), r"tensor 1.up is missing or unknown"),
        (tensor("2.up", torch.zeros(1)), r"tensor 2.up is missing or unknown"),
        (tensor("0.up", torch.zeros(64, 5)), r"0.up has shape \[64, 5\], not \[64, 4\]"),
        (tensor("0.up", torch.full((64, 4), torch.nan)), r"0.up has values that are not finite"),
        (
            tensor("0.up", torch.zeros(64, 4, dtype=torch.int32)),
            r"0.up has values that are not finite",
        ),
    ],
)
def test_a_bad_folder_is_refused_with_the_reason(
    folder: Path, tmp_path: Path, damage: Callable[[Path], object], why: str
) -> None:
    exits = Path(shutil.copytree(folder.with_name("tiny-exits"), tmp_path / "exits"))
    damage(exits)
    with pytest.raises(InvalidArgument, match=why) as caught:
        load_engine(folder, exits=str(exits))
    assert caught.value.field == "exits"


def test_the_hash_is_of_the_weights_not_of_their_files(tmp_path: Path) -> None:
    first, second = {"a": torch.ones(3), "b": torch.zeros(2)}, {"c": torch.ones(2, 2)}
    save_file(first | second, tmp_path / "whole.safetensors", metadata={"any": "thing"})
    save_file(first, tmp_path / "1.safetensors")
    save_file(second, tmp_path / "2.safetensors")
    whole = weights_hash([tmp_path / "whole.safetensors"])
    assert whole == weights_hash([tmp_path / "2.safetensors", tmp_path / "1.safetensors"])
    for changed in ({"a": torch.ones(3).double()}, {"a": torch.ones(1, 3)}, {"d": torch.ones(1)}):
        save_file(first | second | changed, tmp_path / "changed.safetensors")
        assert weights_hash([tmp_path / "changed.safetensors"]) != whole
    (tmp_path / "no.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(InvalidArgument, match=r"no\.safetensors cannot be read"):
        weights_hash([tmp_path / "no.safetensors"])
