"""The edge's drafts of one request when they are trees: one tree at a time, sent and judged whole.
Invariant: the draft KV holds the first `kv_length` committed tokens and, until the next task, the
tree that was drafted last, but for its last layer; of that, the accepted path is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from tandem.core.errors import ProtocolError
from tandem.core.probs import Array
from tandem.core.tokens import PrefixedTokens
from tandem.core.tree import children, depths, expansion_nodes
from tandem.specdec.drafting import Drafting, DraftsInFlight, draft_frame
from tandem.specdec.events import Drafted, DraftTask, EdgeRequest
from tandem.specdec.messages import Committed, Drafts, FrameHeader
from tandem.specdec.presets import MAX_DRAFT_LENGTH, Preset, expansion_within
from tandem.specdec.proposers import DraftSource, Proposed
from tandem.specdec.rules import AcceptanceRule

MOST_REMEMBERED = 0.75
"""Of a node's distribution, at most, for the tokens that are remembered: the model has a say."""


class TreeInFlight(DraftsInFlight):
    """One tree, sent or not; its length is its depth, its `token_ids` the first of its branches."""

    def __init__(self) -> None:
        super().__init__()
        self._parents: tuple[int, ...] = ()
        self._branch: list[int] = []

    def __len__(self) -> int:
        return layers(self._drafts)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.tokens_at(self._branch)

    @property
    def unsent(self) -> int:
        return len(self) - self.sent

    @property
    def fed(self) -> int:
        """Number of nodes that the draft KV holds: all layers but the last, which nothing
        followed; of a remembered branch none."""
        layered = zip(depths(self._parents), self._drafts, strict=True)
        return sum(
            depth + 1 < len(self) and drafted.source is DraftSource.MODEL
            for depth, drafted in layered
        )

    def tokens_at(self, nodes: Sequence[int]) -> tuple[int, ...]:
        return tuple(self._drafts[node].token_id for node in nodes)

    def add(self, drafts: Sequence[Drafted]) -> None:
        self._drafts = list(drafts)
        self._parents = tuple(drafted.parent for drafted in drafts)
        self._branch = self._first_branch()

    def remove(self, count: int) -> None:
        """Remove the whole tree: what is committed settles all of it."""
        self.clear()

    def clear(self) -> None:
        super().clear()
        self._parents = ()
        self._branch = []

    def judged(self, message: Committed) -> tuple[int, ...]:
        """Return the tokens on the accepted path and the first candidate after. Raises
        ProtocolError for a path that the tree has not."""
        followed = children(self._parents)
        node = -1
        for step in message.path:
            if step not in followed.get(node, ()):
                raise ProtocolError("a tree in flight", f"Committed with the path {message.path}")
            node = step
        if len(message.path) != message.accepted:
            raise ProtocolError("a tree in flight", f"{message.accepted} nodes on {message.path}")
        return self.tokens_at([*message.path, *followed.get(node, [])[:1]])

    def _first_branch(self) -> list[int]:
        followed = children(self._parents)
        branch = list[int]()
        while below := followed.get(branch[-1] if branch else -1):
            branch.append(below[0])
        return branch


class TreeDrafting(Drafting):
    """`Drafting` for presets with an expansion."""

    def __init__(self, request: EdgeRequest, committed: PrefixedTokens) -> None:
        super().__init__(request, committed)
        self.in_flight: TreeInFlight = TreeInFlight()
        self._kept: tuple[int, ...] = ()

    @property
    def _expansion(self) -> tuple[int, ...]:
        """The next tree: the preset's, or what the cloud takes of it."""
        preset = self._request.preset
        return expansion_within(preset.expansion, self.allowed or MAX_DRAFT_LENGTH)

    @property
    def draftable(self) -> int:
        return 0 if self.in_flight else min(len(self._expansion), self.room)

    def begin(self, count: int, ends: frozenset[int]) -> DraftTask:
        """Return the task that drafts the next `count` layers, unbranched if more than the preset
        has."""
        deeper = count > len(self._expansion)
        path = self._kept
        self._kept = ()
        self.task = DraftTask(
            keep=self.kv_length,
            token_ids=self._committed.since(self.kv_length + len(path)),
            position=len(self._committed),
            count=count,
            ends=ends,
            expansion=(1,) * count if deeper else self._expansion[:count],
            path=path,
        )
        return self.task

    def take(
        self, task: DraftTask, drafts: list[Drafted], kv_length: int, draft_s: float = 0.0
    ) -> bool:
        """Put the tree of a task in flight. `kv_length` leaves its nodes out."""
        if task is not self.task:
            return False
        if not 1 <= layers(drafts) <= task.count:
            raise ProtocolError(f"1…{task.count} layers expected", f"drafted with {layers(drafts)}")
        self.task = None
        self._kv_length = kv_length
        self.in_flight.add(drafts)
        return True

    def _exceeds(self) -> bool:
        planned = expansion_nodes(self.task.expansion) if self.task is not None else 0
        return max(planned, len(self.in_flight.all)) > self.allowed

    def positions(self, drafts: Sequence[Drafted]) -> int:
        return layers(drafts)

    def judged(self, message: Committed) -> tuple[int, ...]:
        return self.in_flight.judged(message) if self.in_flight.sent else ()

    def settle(self, message: Committed) -> None:
        """Keep the path of a tree that is judged, of what the draft KV holds of it."""
        self._kept = tuple(node for node in message.path if node < self.in_flight.fed)
        self.in_flight.clear()

    def send_due(self, budget_s: float = inf) -> list[Drafts]:
        if not (self.in_flight.unsent and self.allowed):
            return []
        self.in_flight.sent = len(self.in_flight)
        header: FrameHeader = {
            "session": self._request.session,
            "base": len(self._committed),
            "prefix_hash": self._committed.prefix,
        }
        return [tree_frame(header, self.in_flight.all, self._request.preset)]


class TreeGrowth:
    """The tree of one task as it grows, layer by layer (TSLT algorithm 7). Feed the `newest` nodes,
    and `grow` by the distributions after them.

    Invariant: nodes are in layer order, the candidates of one node side by side, and all share the
    distribution they were drawn from. A layer is a position, and its i-th node has draw number i:
    no random number serves twice, and a tree of single candidates is the chain."""

    def __init__(self, task: DraftTask, rule: AcceptanceRule) -> None:
        self.nodes: list[Drafted] = []
        self.newest = range(0)
        self._task = task
        self._rule = rule
        self._layers = 0

    @property
    def width(self) -> int:
        """Number of candidates that each node of the last layer gets."""
        return self._task.expansion[self._layers]

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
        position = self._task.position + self._layers
        first = len(self.nodes)
        for parent, probs in zip(expanded, distributions, strict=True):
            if parent >= 0 and self.nodes[parent].token_id in self._task.ends:
                continue
            drawn = self._rule.candidates(probs, self.width, position, len(self.nodes) - first)
            self.nodes += [Drafted(token_id, probs, parent=parent) for token_id in drawn]
        self.newest = range(first, len(self.nodes))
        self._layers += 1
        return self._layers == len(self._task.expansion) or not self.newest


def with_remembered(probs: Array, remembered: Sequence[Proposed]) -> Array:
    """Return the draft model's distribution [V] after a node with the tokens that the memory
    proposes there, each by its chance: so they are most likely among the candidates. Candidates are
    drawn from it as from any other, so that every rule stays exact."""
    if not remembered:
        return probs
    together = sum(draft.chance for draft in remembered)
    weight = min(together, MOST_REMEMBERED)
    mixed: Array = probs * (1 - weight)
    for draft in remembered:
        mixed[draft.token_id] += weight * draft.chance / together
    return mixed


def layers(drafts: Sequence[Drafted]) -> int:
    """Return the depth of a tree of drafts."""
    return max(depths([drafted.parent for drafted in drafts]), default=-1) + 1


def tree_frame(header: FrameHeader, nodes: Sequence[Drafted], preset: Preset) -> Drafts:
    """Return a whole tree as a message, with one distribution per expanded node, in their order."""
    draft = draft_frame(header, nodes, preset)
    parents = tuple(drafted.parent for drafted in nodes)
    if draft.distributions is None:
        return replace(draft, parents=parents)
    first_candidates = [candidates[0] for candidates in children(parents).values()]
    return replace(draft, parents=parents, distributions=draft.distributions[first_candidates])
