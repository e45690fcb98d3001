"""A draft tree as it grows, layer by layer (TSLT algorithm 7).

Invariant: nodes are in layer order, the candidates of one node side by side, and all share the
distribution they were drawn from. A layer is a position, and its i-th node has draw number i: no
random number serves twice, and a tree of single candidates is the chain."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.core.probs import Array
from tandem.specdec.events import Drafted, DraftWork
from tandem.specdec.rules import AcceptanceRule


class TreeGrowth:
    """The tree of one work. Feed the `newest` nodes, and `grow` by the distributions after them."""

    def __init__(self, work: DraftWork, rule: AcceptanceRule) -> None:
        self.nodes: list[Drafted] = []
        self.newest = range(0)
        self._work = work
        self._rule = rule
        self._layers = 0

    @property
    def width(self) -> int:
        """How many candidates each node of the last layer is to get."""
        return self._work.expansion[self._layers]

    @property
    def newest_token_ids(self) -> tuple[int, ...]:
        return tuple(self.nodes[node].token_id for node in self.newest)

    @property
    def newest_parents(self) -> tuple[int, ...]:
        return tuple(self.nodes[node].parent for node in self.newest)

    @property
    def contexts(self) -> list[tuple[int, ...]]:
        """The nodes' tokens that each distribution for the next layer follows."""
        if not self._layers:
            return [()]
        return [self._path(node) for node in self.newest]

    def _path(self, node: int) -> tuple[int, ...]:
        drafted = self.nodes[node]
        before = self._path(drafted.parent) if drafted.parent >= 0 else ()
        return (*before, drafted.token_id)

    def grow(self, distributions: Sequence[Array]) -> bool:
        """Draw the next layer from the distributions after each of the `newest` nodes, or at first
        from the one after the committed text; whether it is complete. Ends are not expanded."""
        expanded = self.newest if self._layers else (-1,)
        position, first = self._work.position + self._layers, len(self.nodes)
        for parent, probs in zip(expanded, distributions, strict=True):
            if parent >= 0 and self.nodes[parent].token_id in self._work.ends:
                continue
            drawn = self._rule.candidates(probs, self.width, position, len(self.nodes) - first)
            self.nodes += [Drafted(token_id, probs, parent=parent) for token_id in drawn]
        self.newest = range(first, len(self.nodes))
        self._layers += 1
        return self._layers == len(self._work.expansion) or not self.newest
