"""Token trees as tuples of parent indices: `parents[i] < i`, -1 for the last committed token.

Pure functions; this module must not import torch.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tandem.core.errors import InvalidArgument


def check_parents(parents: Sequence[int], nodes: int) -> None:
    """Raise InvalidArgument("parents") unless each of `nodes` nodes has an earlier parent or -1."""
    if len(parents) != nodes:
        raise InvalidArgument("parents", f"{len(parents)} parents for {nodes} tokens")
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise InvalidArgument("parents", f"node {node} cannot have parent {parent}")


def depths(parents: Sequence[int]) -> list[int]:
    """Depth of each node: 0 for a child of the last committed token."""
    found: list[int] = []
    for parent in parents:
        found.append(0 if parent < 0 else found[parent] + 1)
    return found


def ancestors(parents: Sequence[int]) -> NDArray[np.bool_]:
    """[nodes, nodes]: row i marks node i itself and its ancestors."""
    marks = np.eye(len(parents), dtype=np.bool_)
    for node, parent in enumerate(parents):
        if parent >= 0:
            marks[node] |= marks[parent]
    return marks


def check_path(parents: Sequence[int] | None, indices: Sequence[int]) -> None:
    """Raise InvalidArgument("indices") unless they lead from a root of the tree downwards."""
    if parents is None:
        raise InvalidArgument("indices", "no tree is pending in this session")
    above = -1
    for node in indices:
        if not 0 <= node < len(parents):
            raise InvalidArgument("indices", f"node {node} is not in a tree of {len(parents)}")
        if parents[node] != above:
            raise InvalidArgument("indices", f"node {node} is not a child of node {above}")
        above = node
