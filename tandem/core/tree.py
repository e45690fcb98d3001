"""Token trees as tuples of parent indices: `parents[i] < i`, -1 for the last committed token. A
node with children is *expanded*; so is the last committed token, as node -1. The children of a
node, in the order of their indices, are the candidates for the position after it (TSLT §4.1)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tandem.core.errors import InvalidArgument


def check_parents(parents: Sequence[int], nodes: int, first: int = 0) -> None:
    """Raise InvalidArgument("parents") unless each of `nodes` nodes has an earlier parent or -1.
    `first`: the index of the first of them, where others come before."""
    if len(parents) != nodes:
        raise InvalidArgument("parents", f"{len(parents)} parents for {nodes} tokens")
    for node, parent in enumerate(parents, start=first):
        if not -1 <= parent < node:
            raise InvalidArgument("parents", f"node {node} cannot have parent {parent}")


def depths(parents: Sequence[int]) -> list[int]:
    """Return the depth of each node: 0 for a child of the last committed token."""
    depth_of: list[int] = []
    for parent in parents:
        depth_of.append(0 if parent < 0 else depth_of[parent] + 1)
    return depth_of


def children(parents: Sequence[int]) -> dict[int, list[int]]:
    """Map each expanded node to its children, both in ascending order."""
    by_parent: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        by_parent.setdefault(parent, []).append(node)
    return dict(sorted(by_parent.items()))


def expansion_nodes(expansion: Sequence[int]) -> int:
    """Return Σ k1·…·kl: the nodes of a tree in which each node of layer l has expansion[l]
    children."""
    nodes = 0
    layer = 1
    for width in expansion:
        layer *= width
        nodes += layer
    return nodes


def ancestors(parents: Sequence[int]) -> NDArray[np.bool_]:
    """Return [nodes, nodes], whose row i marks node i itself and its ancestors."""
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
