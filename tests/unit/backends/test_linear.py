"""Layouts of weights: each multiplies alike, whatever rows share the pass."""

from types import SimpleNamespace

import pytest
import torch

from tandem.backends.torch.linear import (
    FEW_ROWS,
    Linear,
    make_guessing_linear,
    make_linear,
    packed_products_work,
)
from tandem.core.errors import InvalidArgument

SHAPES = [(96, 64), (704, 128), (512, 960)]
COUNTS = (1, 2, 3, 5, 17, 80)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("single_rows", [True, False], ids=["single", "several"])
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_layout_multiplies_alike(
    shape: tuple[int, int], single_rows: bool, biased: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(3)
    weight = (torch.randn(shape) / shape[1] ** 0.5).to(dtype)
    bias = torch.randn(shape[0]).to(dtype) if biased else None
    product = make_linear(weight, bias, single_rows=single_rows)
    within = 1e-5 if dtype == torch.float32 else 0.05
    for count in COUNTS:
        for few in (True, False):
            _check(product, weight, bias, count, few, within)


def _check(
    product: Linear,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    count: int,
    few: bool,
    within: float,
) -> None:
    rows = torch.randn(count, weight.shape[1]).to(weight.dtype)
    residual = torch.randn(count, weight.shape[0]).to(weight.dtype)
    kept = residual.clone()
    with torch.inference_mode():
        wanted = torch.nn.functional.linear(rows.double(), weight.double())
        wanted += 0 if bias is None else bias.double()
        assert torch.allclose(product(rows, few).double(), wanted, atol=within, rtol=within)
        total = product.add_to(residual, rows, few)
        assert torch.allclose(total.double(), wanted + kept.double(), atol=within, rtol=within)
    assert torch.equal(residual, kept), "the residual is read, not written"


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "none"])
@pytest.mark.parametrize("single_rows", [True, False], ids=["single", "several"])
def test_a_row_s_product_does_not_depend_on_its_neighbours(
    shape: tuple[int, int], biased: bool, single_rows: bool
) -> None:
    torch.manual_seed(4)
    bias = torch.randn(shape[0]) if biased else None
    product = make_linear(torch.randn(shape), bias, single_rows=single_rows)
    rows, residual = torch.randn(40, shape[1]), torch.randn(40, shape[0])
    counts = range(1, FEW_ROWS + 1) if single_rows else range(1, 40)
    with torch.inference_mode():
        whole = product(rows, few=True), product.add_to(residual, rows, few=True)
        for count in counts:
            for first in (0, 7, 40 - count):
                some = slice(first, first + count)
                assert torch.equal(product(rows[some], few=True), whole[0][some])
                total = product.add_to(residual[some], rows[some], few=True)
                assert torch.equal(total, whole[1][some])


def test_many_rows_of_a_drafter_do_not_depend_on_their_neighbours_either() -> None:
    torch.manual_seed(5)
    product = make_linear(torch.randn(704, 128), None, single_rows=True)
    rows = torch.randn(90, 128)
    with torch.inference_mode():
        whole = product(rows, few=False)
        for count in (FEW_ROWS + 1, 8, 33):
            assert torch.equal(product(rows[:count], few=False), whole[:count])


def test_rows_that_are_no_block_of_memory() -> None:
    weight = torch.randn(64, 96)
    rows = torch.randn(2 * 96, 6).t()[::2, :96]
    product = make_linear(weight, None, single_rows=False)
    assert torch.allclose(product(rows, few=False), rows @ weight.t(), atol=1e-4)


def test_a_torch_without_onednn_s_operators_multiplies_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are no public interface, so a version may lack or change them."""
    weight = torch.randn(96, 64)
    rows = torch.randn(5, 64)
    assert packed_products_work()
    packed = make_linear(weight, None, single_rows=False)
    for operators in (SimpleNamespace(), SimpleNamespace(_reorder_linear_weight=lambda: None)):
        packed_products_work.cache_clear()
        monkeypatch.setattr(torch.ops, "mkldnn", operators)
        assert not packed_products_work()
        product = make_linear(weight, None, single_rows=False)
        assert type(product) is not type(packed)
        assert make_guessing_linear(weight, product) is product
        assert torch.allclose(product(rows, False), rows @ weight.t(), atol=1e-4)
    packed_products_work.cache_clear()


@pytest.mark.parametrize("bits", [8, 4])
def test_a_torch_without_a_kernel_for_few_bits_is_named(
    monkeypatch: pytest.MonkeyPatch, bits: int
) -> None:
    monkeypatch.delattr(torch, f"_weight_int{bits}pack_mm{'' if bits == 8 else '_for_cpu'}")
    with pytest.raises(InvalidArgument, match=f"dtype: torch {torch.__version__.split('+')[0]}.*8"):
        make_linear(torch.randn(32, 64), None, single_rows=True, bits=bits)
