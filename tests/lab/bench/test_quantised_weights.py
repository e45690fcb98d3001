"""Ratios of decoding steps that were measured in turns."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lab.bench.speculation.bare_products import matrix_shapes
from lab.bench.speculation.quantised_weights import paired_ratio, step_rows
from tandem.demo import demo_folder

QUIET = {"float32": [4.0, 4.1, 9.0], "int8": [2.0, 2.1, 2.2]}


def test_a_ratio_is_of_the_bursts_of_one_turn() -> None:
    slow = {name: [10 * step for step in steps] for name, steps in QUIET.items()}
    turns = {name: [QUIET[name], slow[name], slow[name]] for name in QUIET}
    assert paired_ratio(turns, "int8", "float32") == pytest.approx(2.1 / 4.1)


def test_load_that_meets_one_burst_does_not_count() -> None:
    turns = {"float32": [[4.0]] * 3, "int8": [[2.0], [8.0], [2.0]]}
    assert paired_ratio(turns, "int8", "float32") == 0.5
    float32, int8 = step_rows(turns, seed=1)
    assert (float32["step_ratio"], int8["step_ratio"]) == (1.0, 0.5)
    assert (int8["step_median_s"], int8["step_fastest_s"]) == (2.0, 2.0)


def test_the_matrices_of_a_step_are_those_that_a_token_meets() -> None:
    tied = matrix_shapes(demo_folder("demo-target"))
    config = json.loads((demo_folder("demo-target") / "config.json").read_text())
    vocabulary, hidden = config["vocab_size"], config["hidden_size"]
    assert tied.count((vocabulary, hidden)) == 1
    assert len(tied) == 1 + 7 * config["num_hidden_layers"]


def test_a_head_of_its_own_takes_the_embeddings_place(tmp_path: Path) -> None:
    weights = {"model.embed_tokens.weight": torch.zeros(9, 4), "lm_head.weight": torch.zeros(8, 4)}
    save_file(weights | {"model.norm.weight": torch.zeros(4)}, tmp_path / "model.safetensors")
    assert matrix_shapes(tmp_path) == [(8, 4)]
