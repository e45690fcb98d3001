"""Sessions as sequences of llama.cpp: rollback, forks and trees without copying keys or values.

Each branch of a pending tree is a sequence of its own; a node is in the sequences of all branches
through it. Invariant: outside of a pass, a session's main sequence holds its committed tokens at
positions 0…length-1, and of a pending tree only what one branch adds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.backends.interface import ForwardRequest
from tandem.backends.llamacpp.native import LlamaContext
from tandem.backends.request_checks import check_length
from tandem.core.errors import InvalidArgument, ResourceExhausted
from tandem.core.tree import check_path

ROOT = -1
"""The parent of a tree's first nodes: the last committed token."""


class SequencePool:
    """The sequences of a context, and the sessions that have some."""

    def __init__(self, context: LlamaContext) -> None:
        self.context = context
        self.sessions: set[LlamaSession] = set()
        self._free = list(reversed(range(context.sequences)))

    @property
    def cells_in_use(self) -> int:
        """Number of cells promised to sessions; a prefix that forks share counts once."""
        return sum(session.own_cells for session in self.sessions)

    def take(self, source: int | None = None, length: int = 0) -> int:
        """Return a free sequence that begins with the first `length` tokens of `source`. Raises
        ResourceExhausted where all are in use."""
        if not self._free:
            users = "sessions (raise kv_cells)" if self.context.apart else "sessions and branches"
            why = f"all {self.context.sequences} sequences are in use, by {users}"
            raise ResourceExhausted(f"llama.cpp: {why}")
        sequence = self._free.pop()
        if source is not None:
            self.context.copy(source, sequence, length)
        return sequence

    def release(self, sequence: int) -> None:
        self.context.forget(sequence)
        self._free.append(sequence)


@dataclass(frozen=True, slots=True)
class Placed:
    """Positions [n] of a request's tokens, and for each the sequences that it joins."""

    positions: list[int]
    sequences: list[list[int]]


class LlamaSession:
    """One sequence of committed tokens, and a pending tree."""

    def __init__(
        self, pool: SequencePool, sequence: int, capacity: int, length: int = 0, spare: int = 0
    ) -> None:
        self.capacity = capacity
        self.slots = capacity + spare
        self.length = length
        self.own_cells = self.slots - length
        self._pool = pool
        self._sequence = sequence
        self._tree: _Branches | None = None
        self._grown: _Branches | None = None
        pool.sessions.add(self)

    @property
    def sequence(self) -> int:
        """The sequence of its committed tokens."""
        return self._sequence

    @property
    def tree(self) -> tuple[int, ...] | None:
        return tuple(self._tree.parents) if self._tree else None

    def place(self, request: ForwardRequest) -> Placed:
        """Return where the tokens of a pass go, before it. `finish` or `undo` must follow. Raises
        ResourceExhausted where the branches of a tree outnumber the free sequences."""
        if not request.extends_tree:
            self._drop_tree()
        if request.parents is None:
            positions = list(range(self.length, self.length + len(request.token_ids)))
            return Placed(positions, [[self._sequence]] * len(positions))
        self._grown = (self._tree or _Branches(self._sequence, self.length)).copy()
        return self._grown.grow(self._pool, request.parents)

    def finish(self, request: ForwardRequest) -> None:
        """Commit a chain, or hold a tree, after a pass."""
        if request.parents is None:
            self.length += len(request.token_ids)
        else:
            self._tree, self._grown = self._grown, None

    def undo(self) -> None:
        """Return to the state before a pass that failed or was not made, without what it
        dropped."""
        kept = self._tree.sequences if self._tree else {self._sequence}
        for sequence in self._grown.sequences - kept if self._grown else ():
            self._pool.release(sequence)
        self._grown = None
        for sequence in kept:
            end = self._tree.end_of(sequence) if self._tree else self.length
            self._pool.context.forget(sequence, end)

    def rollback(self, length: int) -> None:
        self._check_open()
        check_length(length, self.length)
        self.length = length
        self._drop_tree()
        self._pool.context.forget(self._sequence, length)

    def keep_path(self, indices: Sequence[int]) -> None:
        self._check_open()
        check_path(self.tree, indices)
        assert self._tree is not None
        if indices:
            # The branch through the path's end becomes the main sequence; nothing is copied.
            self._sequence = self._tree.holders[indices[-1]]
        self.length += len(indices)
        self._drop_tree()

    def fork(self, length: int, capacity: int) -> "LlamaSession":
        sequence = self._pool.take(self._sequence, length)
        return LlamaSession(self._pool, sequence, capacity, length)

    def close(self) -> None:
        if self in self._pool.sessions:
            self._pool.sessions.discard(self)
            self._drop_tree()
            self._pool.release(self._sequence)

    def _drop_tree(self) -> None:
        if self._tree:
            for sequence in self._tree.sequences - {self._sequence}:
                self._pool.release(sequence)
            self._tree = None
            self._pool.context.forget(self._sequence, self.length)

    def _check_open(self) -> None:
        if self not in self._pool.sessions:
            raise InvalidArgument("session", "the session is closed")


class _Branches:
    """A pending tree: for each node its parent, its depth, and the sequence whose end it was."""

    def __init__(self, main: int, length: int) -> None:
        self._main = main
        self._length = length
        self.parents: list[int] = []
        self.depths: list[int] = []
        self.holders: list[int] = []
        self._ends = {main: ROOT}  # the last node of each sequence

    @property
    def sequences(self) -> set[int]:
        return set(self._ends)

    def copy(self) -> "_Branches":
        twin = _Branches(self._main, self._length)
        twin.parents = [*self.parents]
        twin.depths = [*self.depths]
        twin.holders = [*self.holders]
        twin._ends = {**self._ends}
        return twin

    def end_of(self, sequence: int) -> int:
        """Return the number of tokens in a sequence."""
        return self._length + self._depth(self._ends[sequence]) + 1

    def grow(self, pool: SequencePool, parents: Sequence[int]) -> Placed:
        """Add nodes; those that are there already lie in cells."""
        first = len(self.parents)
        joined: list[list[int]] = []
        for parent in parents:
            before = self.holders[parent] if parent != ROOT else self._main
            if self._ends[before] == parent:
                sequence = before
            else:
                path = self._path(parent)
                cached = sum(node < first for node in path)
                sequence = pool.take(before, self._length + cached)
                for node in path[cached:]:
                    joined[node - first].append(sequence)
            self._ends[sequence] = len(self.parents)
            self.parents.append(parent)
            self.depths.append(self._depth(parent) + 1)
            self.holders.append(sequence)
            joined.append([sequence])
        return Placed([self._length + depth for depth in self.depths[first:]], joined)

    def _depth(self, node: int) -> int:
        return self.depths[node] if node != ROOT else -1

    def _path(self, node: int) -> list[int]:
        """Return the nodes from the root to the node, which comes last."""
        path = []
        while node != ROOT:
            path.append(node)
            node = self.parents[node]
        return path[::-1]
