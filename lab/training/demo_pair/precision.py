"""In which precision a training computes: in bfloat16 where that is quick. A processor without the
vector instructions for it multiplies float32 eight times as fast."""

from __future__ import annotations

import torch


def product_dtype(device: torch.device) -> torch.dtype:
    """Return the type of products on a device, bfloat16 or float32; weights are float32 either
    way."""
    if device.type != "cpu" or "AVX512" in torch.backends.cpu.get_cpu_capability():
        return torch.bfloat16
    return torch.float32


def product_precision(device: torch.device) -> torch.autocast:
    """Return a context in which products are computed in `product_dtype`."""
    dtype = product_dtype(device)
    return torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32)
