"""Shapes of a model's weights, by the headers of its safetensors files: no weight is read."""

from __future__ import annotations

from math import prod
from pathlib import Path

from safetensors import safe_open


def weight_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of weights by their names, of all files of a folder; empty where it has
    none."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "np") as file:
            names = file.keys()
            shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in names}
    return shapes


def parameters_in(folder: Path) -> int:
    """Return how many numbers the files of a folder hold."""
    return sum(map(prod, weight_shapes(folder).values()))
