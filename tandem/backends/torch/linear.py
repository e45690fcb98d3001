"""Matrix products for a handful of rows, which is all that decoding and verification consist of.

On a CPU they are bound by reading the weights, and PyTorch's own product of a few float32 rows
reads them badly: at 8 million parameters 5 rows took 5.2 ms, 1.8 ms with weights laid out for
oneDNN; one row 3.0 ms, 2.0 ms with transposed weights. So weights are laid out once, when the model
is loaded.

Invariant, for float32 on a CPU: a row's product is the same bit for bit whatever rows lie beside it
(transposed weights: as long as the caller says whether rows are few). Attention runs per session,
so a session's text does not depend on who shares its passes. Anywhere else PyTorch's own product is
kept, which promises nothing of the kind.
"""

from copy import copy
from functools import cache
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from tandem.backends.torch.quantised import QuantisedLinear

FEW_ROWS = 3
"""Most rows that a product of transposed weights takes at once. On some processors that many rows
give the same bits as one; beyond, sums are ordered otherwise, which changes the last bits."""


class Linear(Protocol):
    """y = x · weightᵀ + bias for x [rows, in]."""

    def __call__(self, rows: Tensor, few: bool) -> Tensor:
        """Return the product with `rows` [rows, in] -> [rows, out]. `few`: no sequence has more
        than FEW_ROWS of these rows."""

    def add_to(self, residual: Tensor, rows: Tensor, few: bool) -> Tensor:
        """Return residual [rows, out] + the product; `residual` itself stays as it is."""


def make_linear(
    weight: Tensor, bias: Tensor | None, *, single_rows: bool, bits: int | None = None
) -> Linear:
    """Return the product with `weight` [out, in], laid out for its place. `single_rows`: most calls
    have one row, as a drafter's do; a verifier's have several. `bits`: 8 or 4, to quantise it."""
    if bits is not None:
        return QuantisedLinear(weight, bias, bits)
    if not lays_out_anew(weight, bits):
        return _Plain(weight, bias)
    if single_rows or not packed_products_work():
        return _Transposed(weight, bias)
    return _Packed(weight, bias)


def lays_out_anew(weight: Tensor, bits: int | None) -> bool:
    """Return whether `make_linear` copies `weight`; otherwise it keeps it as it is."""
    return bits is not None or (weight.device.type == "cpu" and weight.dtype == torch.float32)


def merged_linear(linear: Linear, down: Tensor, up: Tensor) -> Linear | None:
    """Return the product `linear` with down [in, rank] · up [rank, out] added to a copy of its
    weights, which costs its passes nothing; None for other than float32 weights laid out for single
    rows: halved or rounded ones would lose most of what is added."""
    return linear.merged(down, up) if isinstance(linear, _Transposed) else None


def make_guessing_linear(weight: Tensor, exact: Linear) -> Linear:
    """Return the product with `weight` [out, in] for guesses: half the bytes to read where the
    processor multiplies bfloat16, else `exact`, which has the same weights."""
    if not isinstance(exact, _Packed) or not _multiplies_bfloat16():
        return exact
    return _Halved(weight)


@cache
def packed_products_work() -> bool:
    """Return whether this build of torch has oneDNN, and what `_Packed` calls of it: found by
    trial, since the operators are no public interface and other versions may lack or change them.
    """
    if not torch.backends.mkldnn.is_available():
        return False
    weight = torch.ones(2, 3)
    rows = torch.ones(1, 3)
    try:
        product = _Packed(weight, None)
        total = product.add_to(product(rows, False), rows, False)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return torch.equal(total, torch.full((1, 2), 6.0))


def _multiplies_bfloat16() -> bool:
    """Return whether the processor does, and oneDNN says so."""
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return supported is not None and bool(supported())


class _Plain:
    """PyTorch's own product."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias
        self._transposed = weight.t()

    def __call__(self, rows: Tensor, few: bool) -> Tensor:
        return functional.linear(rows, self._weight, self._bias)

    def add_to(self, residual: Tensor, rows: Tensor, few: bool) -> Tensor:
        if self._bias is not None:
            residual = residual + self._bias
        return torch.addmm(residual, rows, self._transposed)


class _Transposed:
    """Weights [in, out], read row after row."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight.t().contiguous()
        self._bias = bias
        self._at_once = _rows_at_once(self._weight)

    def __call__(self, rows: Tensor, few: bool) -> Tensor:
        if few and len(rows) > self._at_once:
            return torch.cat([self(some, few) for some in rows.split(self._at_once)])
        if self._bias is not None:
            return torch.addmm(self._bias, rows, self._weight)
        return torch.mm(rows, self._weight)

    def add_to(self, residual: Tensor, rows: Tensor, few: bool) -> Tensor:
        if few and len(rows) > self._at_once:
            pairs = zip(residual.split(self._at_once), rows.split(self._at_once), strict=True)
            return torch.cat([self.add_to(to, some, few) for to, some in pairs])
        if self._bias is not None:
            residual = residual + self._bias
        return torch.addmm(residual, rows, self._weight)

    def merged(self, down: Tensor, up: Tensor) -> "_Transposed":
        """Return the same product with down [in, rank] · up [rank, out] added to its weights."""
        merged = copy(self)
        merged._weight = torch.addmm(self._weight, down, up)
        return merged


def _rows_at_once(weight: Tensor) -> int:
    """Return FEW_ROWS if so many rows times `weight` [in, out] give the bits that each gives alone,
    else 1. Found by trial: it depends on the processor and on the matrix product chosen for it."""
    rows = torch.randn(FEW_ROWS, len(weight), generator=torch.Generator().manual_seed(1))
    residual = torch.zeros(FEW_ROWS, weight.shape[1])
    for products in (torch.mm(rows, weight), torch.addmm(residual, rows, weight)):
        for count in range(1, FEW_ROWS):
            for first in range(FEW_ROWS - count + 1):
                some = slice(first, first + count)
                alone = (
                    torch.mm(rows[some], weight),
                    torch.addmm(residual[some], rows[some], weight),
                )
                if not all(torch.equal(product, products[some]) for product in alone):
                    return 1
    return FEW_ROWS


class _Packed:
    """Weights in oneDNN's blocked layout, by the operators that torch.compile's own CPU code uses;
    they are no public interface: `packed_products_work` says whether they are there."""

    _ROWS = 64  # the layout chosen for this many serves fewer just as well, the one for 1 does not

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        operators = torch.ops.mkldnn
        self._weight = operators._reorder_linear_weight(weight.contiguous(), self._ROWS)
        self._bias = bias
        self._product = operators._linear_pointwise.default
        self._sum = operators._linear_pointwise.binary

    def __call__(self, rows: Tensor, few: bool) -> Tensor:
        product: Tensor = self._product(rows, self._weight, self._bias, "none", [], "")
        return product

    def add_to(self, residual: Tensor, rows: Tensor, few: bool) -> Tensor:
        total: Tensor = self._sum(rows, residual, self._weight, self._bias, "add")
        return total


class _Halved:
    """`_Packed` with weights and rows in bfloat16; takes and gives float32."""

    def __init__(self, weight: Tensor) -> None:
        self._product = _Packed(weight.bfloat16(), None)

    def __call__(self, rows: Tensor, few: bool) -> Tensor:
        return self._product(rows.bfloat16(), few).float()

    def add_to(self, residual: Tensor, rows: Tensor, few: bool) -> Tensor:
        return residual + self(rows, few)
