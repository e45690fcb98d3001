"""Weights in 8 or 4 bits: products with PyTorch's own weight-only kernels.

A model's matrices are rounded once, when it is loaded; this quantised model is the one whose
distribution is sampled from, so that acceptance is exact with respect to it. 8 bits: one scale for
each output, symmetric. 4 bits: a scale and an offset for each group of 32 inputs. The rows of a
product are rounded to bfloat16, sums are float32; all else stays in float32.

Invariant: one kernel multiplies a weight whatever the number of rows, and takes them one by one. So
on a CPU a row's product is the same bit for bit whatever rows lie beside it. Five rows therefore
cost about three times one row, no more than five of float32. Weights expanded for an ordinary
product would serve prompts up to twice as fast, with other last bits; they are not used.
"""

from collections.abc import Callable
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional

from tandem.backends.torch.owned_weights import own_parameters
from tandem.core.errors import InvalidArgument

WEIGHT_BITS = MappingProxyType({"int8": 8, "int4": 4})
"""By the dtype that asks for them."""
GROUP = 32
"""Inputs that share a scale in 4 bits."""
_OUTPUTS = 16
"""Kernels take multiples of this many outputs and of GROUP inputs; others get zeros at the end. The
8-bit kernel does not check, and reads beyond the end of such a weight."""
# of the 4-bit kernel for CUDA
_CUDA_TILES = 8
_CUDA_INPUTS = 128


class QuantisedLinear:
    """Implements `linear.Linear` over a weight [out, in] in `bits`, 8 or 4."""

    def __init__(self, weight: Tensor, bias: Tensor | None, bits: int) -> None:
        self._bias = None if bias is None else bias.float()
        self._outputs, inputs = weight.shape
        self._padding = -inputs % (_CUDA_INPUTS if weight.is_cuda else GROUP)
        self._cut = bool(self._outputs % _OUTPUTS)
        padded = functional.pad(weight, (0, self._padding, 0, -self._outputs % _OUTPUTS))
        make = _int8_product if bits == 8 else _int4_product
        self._multiply, self._packed = make(padded)

    def __call__(self, rows: Tensor, few: bool) -> Tensor:
        product = self._multiplied(rows).float()
        return product if self._bias is None else product.add_(self._bias)

    def add_to(self, residual: Tensor, rows: Tensor, few: bool) -> Tensor:
        total = residual + self._multiplied(rows)
        return total if self._bias is None else total.add_(self._bias)

    def _multiplied(self, rows: Tensor) -> Tensor:
        if not len(rows):  # a pass that wants no logits; CUDA's kernels refuse to start over no row
            return rows.new_empty(0, self._outputs, dtype=torch.bfloat16)
        halved = rows.bfloat16().contiguous()
        if self._padding:
            halved = functional.pad(halved, (0, self._padding))
        product = self._multiply(halved, *self._packed)
        return product[:, : self._outputs] if self._cut else product


def quantise_modules(model: nn.Module, bits: int, *, spared: str = "visual") -> None:
    """Replace the linear layers of `model`, one after another; modules named `spared` keep theirs.
    What remains, embeddings and norms, becomes float32."""
    for name, module in list(model.named_modules()):
        if type(module) is nn.Linear and spared not in name.split("."):
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, _QuantisedModule(module, bits))
    model.float()
    own_parameters(model)


class _QuantisedModule(nn.Module):
    """A quantised module in the place of an `nn.Linear`."""

    def __init__(self, linear: nn.Linear, bits: int) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self._linear = QuantisedLinear(linear.weight.detach(), linear.bias, bits)

    def forward(self, hidden: Tensor) -> Tensor:
        product = self._linear(hidden.reshape(-1, self.in_features), few=False)
        return product.view(*hidden.shape[:-1], self.out_features)


def int8_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for weight [out, in], its 8-bit numbers, and their scales [out] in bfloat16."""
    scale = (weight.float().abs().amax(1) / 127).clamp_min(1e-12).bfloat16()
    rounded = torch.round(weight.float() / scale.float()[:, None])
    return rounded.clamp(-127, 127).to(torch.int8), scale


def int4_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for weight [out, in], its numbers 0..15 as int32, and [in / GROUP, out, 2] in
    bfloat16: the scale of a group, and what the number 8 stands for."""
    groups = weight.float().unflatten(1, (-1, GROUP))
    lowest, highest = groups.aminmax(dim=-1)
    scale = ((highest - lowest) / 15).clamp_min(1e-12).bfloat16()
    middle = (lowest + 8 * scale.float()).bfloat16()
    rounded = torch.round((groups - middle.float()[..., None]) / scale.float()[..., None]) + 8
    numbers = rounded.clamp(0, 15).to(torch.int32).flatten(1)
    return numbers, torch.stack([scale, middle], -1).transpose(0, 1).contiguous()


Packed = tuple[Tensor | int, ...]
Product = tuple[Callable[..., Tensor], Packed]
"""A kernel from bfloat16 [rows, in] to bfloat16 [rows, out], and what it takes beside the rows."""


def _int8_product(weight: Tensor) -> Product:
    return _kernel("_weight_int8pack_mm"), int8_weight(weight)


def _kernel(name: str) -> Callable[..., Tensor]:
    """Return one of torch's kernels that are no public interface. Raises InvalidArgument("dtype")
    where this version has none of that name."""
    kernel: Callable[..., Tensor] | None = getattr(torch, name, None)
    if kernel is None:
        why = f"torch {torch.__version__} has no {name}, which 8 and 4 bits need; use float32"
        raise InvalidArgument("dtype", why)
    return kernel


def _int4_product(weight: Tensor) -> Product:
    numbers, scales = int4_weight(weight)
    if weight.is_cuda:
        pairs = (numbers[:, ::2] << 4 | numbers[:, 1::2]).to(torch.uint8)
        packed = _kernel("_convert_weight_to_int4pack")(pairs, _CUDA_TILES)
        return _kernel("_weight_int4pack_mm"), (packed, GROUP, scales)
    packed = _kernel("_convert_weight_to_int4pack_for_cpu")(numbers, 1)
    return _kernel("_weight_int4pack_mm_for_cpu"), (packed, GROUP, scales)
