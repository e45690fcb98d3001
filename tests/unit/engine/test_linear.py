import pytest
import torch

from tandem.engine.linear import PACKED_FROM, Linear, make_linear

SMALL = (96, 64)
LARGE = (1024, PACKED_FROM // 1024)


@pytest.mark.parametrize("shape", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("single_rows", [True, False], ids=["single", "several"])
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_layout_multiplies_alike(
    shape: tuple[int, int], single_rows: bool, biased: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(3)
    weight = (torch.randn(shape) / shape[1] ** 0.5).to(dtype)
    bias = torch.randn(shape[0]).to(dtype) if biased else None
    product = make_linear(weight, bias, single_rows=single_rows)
    within = 1e-5 if dtype == torch.float32 else 0.05
    for count in (1, 2, 5, 17, 80):
        _check(product, weight, bias, count, within)


def _check(
    product: Linear, weight: torch.Tensor, bias: torch.Tensor | None, count: int, within: float
) -> None:
    rows = torch.randn(count, weight.shape[1]).to(weight.dtype)
    residual = torch.randn(count, weight.shape[0]).to(weight.dtype)
    kept = residual.clone()
    with torch.inference_mode():
        wanted = torch.nn.functional.linear(rows.double(), weight.double())
        wanted += 0 if bias is None else bias.double()
        assert torch.allclose(product(rows).double(), wanted, atol=within, rtol=within)
        total = product.add_to(residual, rows)
        assert torch.allclose(total.double(), wanted + kept.double(), atol=within, rtol=within)
    assert torch.equal(residual, kept), "the residual is read, not written"


def test_a_product_of_rows_that_are_no_block_of_memory() -> None:
    weight = torch.randn(LARGE)
    rows = torch.randn(2 * LARGE[1], 6).t()[::2, : LARGE[1]]
    product = make_linear(weight, None, single_rows=False)
    assert torch.allclose(product(rows), rows @ weight.t(), atol=1e-2)
