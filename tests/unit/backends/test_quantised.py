"""Weights in 8 and 4 bits: near the model they were made from, and equal to the one they are."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tandem.backends.interface import ForwardRequest
from tandem.backends.torch.engine import HuggingFaceEngine
from tandem.backends.torch.loading import load_engine
from tandem.backends.torch.quantised import (
    GROUP,
    WEIGHT_BITS,
    QuantisedLinear,
    int4_weight,
    int8_weight,
)
from tests.unit.backends.reference_models import pair, tokens
from tests.unit.backends.tiny_folders import write_model

SHAPES = [(96, 64), (211, 96), (48, 576), (50, 40)]
"""Outputs that are no multiple of 16, and inputs that are none of the group, among them."""
STEP = {8: 1 / 127, 4: 1 / 15}
"""What rounding to so many bits may change of the largest weight beside it."""


def expanded(weight: torch.Tensor, bits: int) -> torch.Tensor:
    """The float32 weight that a quantised one stands for."""
    inputs = weight.shape[1]
    weight = nn.functional.pad(weight, (0, -inputs % GROUP))
    if bits == 8:
        numbers, scale = int8_weight(weight)
        found: torch.Tensor = (numbers.float() * scale.float()[:, None])[:, :inputs]
        return found
    numbers, scales = int4_weight(weight)
    scale, middle = scales.float().transpose(0, 1).unbind(-1)
    groups = (numbers - 8).float().unflatten(1, (-1, GROUP))
    found = (groups * scale[..., None] + middle[..., None]).flatten(1)
    return found[:, :inputs]


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rounding_changes_a_weight_by_half_a_step(shape: tuple[int, int], bits: int) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    weight[3] = 0
    step = 2 * weight.abs().amax() * STEP[bits]  # 4 bits span the largest and the smallest
    assert (expanded(weight, bits) - weight).abs().max() <= 0.6 * step
    assert torch.equal(expanded(weight, bits)[3], torch.zeros(shape[1]))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "none"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_product_is_that_of_the_rounded_weight(
    shape: tuple[int, int], biased: bool, bits: int
) -> None:
    torch.manual_seed(3)
    weight = torch.randn(shape) / shape[1] ** 0.5
    bias = torch.randn(shape[0]) if biased else None
    product = QuantisedLinear(weight, bias, bits)
    for count in (1, 2, 5, 17, 80):
        rows, residual = torch.randn(count, shape[1]), torch.randn(count, shape[0])
        kept = residual.clone()
        wanted = nn.functional.linear(rows.bfloat16().float(), expanded(weight, bits), bias)
        assert torch.allclose(product(rows, few=False), wanted, atol=0.02, rtol=0.02)
        total = product.add_to(residual, rows, few=False)
        assert torch.allclose(total, wanted + kept, atol=0.02, rtol=0.02)
        assert torch.equal(residual, kept), "the residual is read, not written"


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_s_product_depends_on_nothing_else(shape: tuple[int, int], bits: int) -> None:
    """Neither on the rows beside it nor on how many they are."""
    torch.manual_seed(4)
    product = QuantisedLinear(torch.randn(shape), torch.randn(shape[0]), bits)
    rows, residual = torch.randn(40, shape[1]), torch.randn(40, shape[0])
    whole = product(rows, few=False), product.add_to(residual, rows, few=False)
    for count in (1, 2, 3, 4, 5, 8, 17, 39):
        for first in (0, 7, 40 - count):
            some = slice(first, first + count)
            assert torch.equal(product(rows[some], few=True), whole[0][some])
            assert torch.equal(product.add_to(residual[some], rows[some], few=True), whole[1][some])


def test_rows_that_are_no_block_of_memory() -> None:
    rows = torch.randn(2 * 96, 6).t()[::2, :96]
    product = QuantisedLinear(torch.randn(64, 96), None, 8)
    assert torch.equal(product(rows, few=False), product(rows.contiguous(), few=False))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(
    ("name", "fast_path"),
    [("llama", True), ("llama", False), ("qwen2", True), ("qwen3", True), ("gemma2", False)],
)
def test_an_engine_runs_the_model_whose_weights_are_rounded(
    name: str, fast_path: bool, bits: int
) -> None:
    rounded: Any = copy.deepcopy(pair(name, fast_path=False).reference)
    engine = HuggingFaceEngine(
        copy.deepcopy(rounded), model_name=name, vocabulary_hash="", bits=bits, fast_path=fast_path
    )
    head = rounded.get_output_embeddings()
    head.weight = nn.Parameter(head.weight.detach().clone())  # a tied one keeps the embedding
    for module in rounded.modules():
        if isinstance(module, nn.Linear):
            module.weight.data = expanded(module.weight.data, bits)
    sequence = tokens(30, seed=2)
    session = engine.open(30)
    (found,) = engine.forward([ForwardRequest(session, tuple(sequence), 30)])
    with torch.inference_mode():
        wanted = rounded(torch.tensor([sequence])).logits[0].numpy()
    assert np.linalg.norm(found - wanted) < 0.03 * np.linalg.norm(wanted)


@pytest.mark.parametrize("dtype", WEIGHT_BITS)
@pytest.mark.parametrize("name", ["llama", "opt"])
def test_a_folder_is_loaded_in_few_bits(tmp_path: Path, name: str, dtype: str) -> None:
    exact, engine = load_engine(write_model(tmp_path, name)), load_engine(tmp_path, dtype=dtype)
    sequence = tuple(tokens(30, seed=2))
    logits = []
    for each in (exact, engine):
        logits += each.forward([ForwardRequest(each.open(30), sequence, 30)])
    error = np.linalg.norm(logits[1] - logits[0]) / np.linalg.norm(logits[0])
    assert 1e-4 < error < (0.1 if dtype == "int8" else 0.6)
    assert engine.kv_bytes_per_token == exact.kv_bytes_per_token, "activations stay in float32"
