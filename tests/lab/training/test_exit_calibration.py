"""How far an exit may be believed: a temperature is found again, and errors are those of bins."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lab.training.exit_calibration import Reliability, TemperatureFit
from lab.training.exit_training import calibrate_exits, main, train_exits
from tandem.backends.torch.exit_adapters import (
    DESCRIPTION,
    TENSORS,
    read_description,
    write_description,
)
from tandem.backends.torch.loading import load_engine
from tandem.core.errors import InvalidArgument
from tests.lab.training.test_exit_training import TEXT, TRAINING
from tests.unit.backends.tiny_folders import write_model

SHORT = replace(TRAINING, steps=3)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny-target", "llama")


@pytest.fixture(scope="module")
def exits(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exits")
    train_exits(llama, TEXT, folder, SHORT)
    return folder


def drawn(temperature: float, rows: int = 3000) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, and tokens that are drawn at another temperature than theirs."""
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(rows, 30, generator=generator)
    probs = (logits / temperature).softmax(-1)
    return logits, torch.multinomial(probs, 1, generator=generator)[:, 0]


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.8])
def test_the_temperature_that_tokens_were_drawn_at_is_found(temperature: float) -> None:
    logits, likeliest = drawn(temperature, rows=6000)
    fit = TemperatureFit()
    for part in range(3):
        fit.add(logits[part::3], likeliest[part::3])
    assert fit.temperature() == pytest.approx(temperature, rel=0.06)


def test_with_its_temperature_an_exit_errs_less() -> None:
    logits, likeliest = drawn(1.8)
    before, after = Reliability(), Reliability()
    before.add(logits, likeliest)
    after.add(logits, likeliest, temperature=1.8)
    assert before.share_right == after.share_right
    assert before.error > 0.1
    assert after.error < 0.03


def test_trained_exits_say_how_far_they_may_be_believed(llama: Path, exits: Path) -> None:
    about = read_description(exits)
    assert len(about.temperatures) == len(about.calibration_errors) == len(about.reliability) == 2
    assert all(0 < one < 4 for one in about.temperatures)
    assert about.held_out_tokens > 0
    assert about.trained_positions == SHORT.steps * SHORT.positions
    assert about.context == SHORT.length
    assert load_engine(llama, exits=str(exits)).exit_temperatures == about.temperatures
    lines = (exits / DESCRIPTION).read_text("utf-8").splitlines()
    assert any(line.startswith(' "temperatures": [') for line in lines)


def test_exits_without_temperatures_are_calibrated_in_place(
    llama: Path, exits: Path, tmp_path: Path
) -> None:
    about = read_description(exits)
    (tmp_path / TENSORS).write_bytes((exits / TENSORS).read_bytes())
    bare = replace(about, temperatures=(), calibration_errors=(), reliability=())
    write_description(bare, tmp_path)
    assert load_engine(llama, exits=str(tmp_path)).exit_temperatures == (1.0, 1.0)
    measured = calibrate_exits(llama, TEXT, tmp_path, SHORT)
    assert measured == read_description(tmp_path)
    assert len(measured.temperatures) == len(about.temperatures)
    assert measured.held_out_tokens > about.held_out_tokens


@pytest.mark.parametrize("temperatures", [[1.0], [1.0, 0], [1.0, "2"], "11"])
def test_bad_temperatures_are_refused(exits: Path, tmp_path: Path, temperatures: object) -> None:
    content = json.loads((exits / DESCRIPTION).read_text("utf-8"))
    content["temperatures"] = temperatures
    (tmp_path / DESCRIPTION).write_text(json.dumps(content))
    with pytest.raises(InvalidArgument, match="temperatures"):
        read_description(tmp_path)


def test_the_module_trains_from_token_ids(
    llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "tokens.npy", TEXT.astype(np.uint16))
    given = ["--target", str(llama), "--tokens", str(tmp_path / "tokens.npy")]
    given += ["--out", str(tmp_path / "out"), "--exits", "2", "--rank", "4", "--rows", "2"]
    given += ["--length", "32", "--positions", "16"]
    assert main([*given, "--steps", "2"]) == 0
    assert "exit after layer 1: the model's likeliest token in" in capsys.readouterr().out
    assert main([*given, "--calibrate"]) == 0
    assert main([*given[:3], str(tmp_path / "none.npy"), *given[4:]]) == 1
    assert "none.npy" in capsys.readouterr().err
