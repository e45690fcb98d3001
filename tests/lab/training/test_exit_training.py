"""Training brings exits nearer to the model, and goes on after an interruption as if without it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lab.training.exit_texts import ExitTexts
from lab.training.exit_training import (
    CHECKPOINT,
    ExitTraining,
    train_exits,
)
from tandem.backends.torch.exit_adapters import TENSORS, read_description
from tandem.backends.torch.loading import load_engine
from tandem.core.errors import InvalidArgument
from tests.long_runs import with_long_cases
from tests.unit.backends.reference_models import VOCABULARY
from tests.unit.backends.tiny_folders import write_model

TRAINING = ExitTraining(
    exits=2, rank=16, steps=25, rows=2, length=32, positions=64, learning_rate=1e-2, seed=5
)
TEXT = np.random.default_rng(1).integers(3, 12, 4000)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny-target", "llama")


@pytest.mark.parametrize(
    "name", with_long_cases(["llama", "gemma2", "opt", "gpt2", "gpt-oss"], ("llama", "gpt2"))
)
def test_training_brings_the_exits_nearer_to_the_model(tmp_path: Path, name: str) -> None:
    folder, losses = write_model(tmp_path / "model", name), []
    trained = train_exits(
        folder, TEXT, tmp_path / "out", TRAINING, on_step=lambda _, loss: losses.append(loss)
    )
    assert len(losses) == TRAINING.steps + 1  # the start is shown too
    assert np.mean(losses[-5:]) < 0.8 * losses[1]
    assert trained == read_description(tmp_path / "out")
    assert (trained.layers, len(trained.agreement)) == ((0, 1), 2)
    assert load_engine(folder, exits=str(tmp_path / "out")).exit_depths == (1 / 3, 2 / 3)
    assert not (tmp_path / "out" / CHECKPOINT).exists()


def test_an_interrupted_training_ends_with_the_same_adapters(llama: Path, tmp_path: Path) -> None:
    training = replace(TRAINING, steps=8, checkpoint_every=3)
    train_exits(llama, TEXT, tmp_path / "whole", training)
    seen: list[int] = []

    def stop_at_5(step: int, _: float) -> None:
        seen.append(step)
        if step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_exits(llama, TEXT, tmp_path / "parts", training, on_step=stop_at_5)
    train_exits(llama, TEXT, tmp_path / "parts", training, on_step=lambda s, _: seen.append(s))
    assert seen == [0, 1, 2, 3, 4, 5, 5, 6, 7, 8]
    whole, parts = (load_file(tmp_path / name / TENSORS) for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_what_cannot_be_trained_is_refused(llama: Path, tmp_path: Path) -> None:
    for exits in (0, 3):
        with pytest.raises(InvalidArgument, match=r"exits: .*room for 1…2"):
            train_exits(llama, TEXT, tmp_path, replace(TRAINING, exits=exits))
    with pytest.raises(InvalidArgument, match="layers must ascend"):
        train_exits(llama, TEXT, tmp_path, replace(TRAINING, layers=(2,)))
    with pytest.raises(InvalidArgument, match=r"^text: 100 tokens"):
        train_exits(llama, TEXT[:100], tmp_path, TRAINING)
    with pytest.raises(InvalidArgument, match=r"^text: .*211"):
        train_exits(llama, np.append(TEXT, VOCABULARY), tmp_path, TRAINING)


def test_what_is_measured_on_is_never_learnt_from() -> None:
    texts = ExitTexts(torch.arange(40, 280), rows=2, length=16)
    held_out = {token for rows in texts.held_out() for token in rows.flatten().tolist()}
    assert len(texts) == 240 - 32
    for step in range(50):
        read, places = texts.step(np.random.default_rng(step), positions=8)
        assert read.shape == (2, 16)
        assert len(places) == 8
        assert not held_out & set(read.flatten().tolist())
