"""One forward pass, laid out: the segments of all sessions side by side, and what each token sees.

Linear layers run over all tokens of the pack at once; attention runs per part against the part's
own session. Masks depend only on the layer's window, so they are made once per pass, not per layer.
Must not import grpc.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tandem.core.tree import ancestors, depths
from tandem.engine.base import ForwardCancelled, Segment
from tandem.engine.kv import KvSession
from tandem.engine.linear import FEW_ROWS

_ROWS_PER_PIECE = 256  # bounds the size of a mask and skips most of what lies above the diagonal


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows first..last-1 of a part attend to positions start..end-1.

    `mask` [(last - first) · group, end - start] is added to the scores; None: everything is seen.
    Its rows repeat for each query head of a key head's group, as queries are folded.
    """

    first: int
    last: int
    start: int
    end: int
    mask: Tensor | None


class Part:
    """One segment of the pack: `count` tokens after its session's `length` committed ones."""

    def __init__(self, segment: Segment, session: KvSession, offset: int, like: Tensor) -> None:
        self.session = session
        self.offset = offset
        self.count = len(segment.token_ids)
        self.wanted = segment.wanted
        self.exits = segment.exits
        self.on_exit = segment.on_exit
        self.length = session.length
        self.pending = session.pending
        self.parents = self._whole_tree(segment)
        self.tree_positions = [self.length + step for step in depths(self.parents or ())]
        self.positions = (
            list(range(self.length, self.length + self.count))
            if self.parents is None
            else self.tree_positions[self.pending :]
        )
        self._like = like
        self._pieces: dict[tuple[int | None, int], list[Piece]] = {}

    def _whole_tree(self, segment: Segment) -> tuple[int, ...] | None:
        """Parents of the pending nodes and of those this segment feeds; None for a chain."""
        if segment.parents is None:
            return None
        return (*(self.session.tree or ()), *segment.parents)

    def pieces(self, window: int | None, group: int) -> list[Piece]:
        """How this part attends in a layer with that window and that many heads per key head."""
        found = self._pieces.get((window, group))
        if found is None:
            size = _ROWS_PER_PIECE if self.parents is None else self.count
            firsts = range(0, self.count, size)
            found = [self._piece(row, min(row + size, self.count), window, group) for row in firsts]
            self._pieces[window, group] = found
        return found

    def _piece(self, first: int, last: int, window: int | None, group: int) -> Piece:
        end = self.length + self.pending + last
        start = 0 if window is None else max(0, min(self.positions[first:last]) - window + 1)
        if self.parents is not None:
            start = min(start, self.length)
        if last - first == 1 and not self.pending:
            return Piece(first, last, start, end, None)
        if self.parents is None and (window is None or end <= window):
            mask = self._triangle(last - first, end)
        else:
            mask = torch.zeros((last - first, end - start), dtype=self._like.dtype)
            seen = torch.from_numpy(self._seen(first, last, start, end, window))
            mask = mask.masked_fill_(~seen, float("-inf")).to(self._like.device)
        return Piece(first, last, start, end, mask.repeat(group, 1) if group > 1 else mask)

    def _triangle(self, rows: int, end: int) -> Tensor:
        """The mask of the last `rows` of `end` tokens, each seeing all before it."""
        mask = self._like.new_zeros(rows, end)
        mask[:, end - rows :].fill_(float("-inf")).triu_(1)
        return mask

    def _seen(
        self, first: int, last: int, start: int, end: int, window: int | None
    ) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
        """[rows, positions]: which slots each fed token may look at."""
        at = np.array(self.positions[first:last])[:, None]
        slots = np.arange(start, end)[None]
        if self.parents is None:
            seen = slots <= at
        else:
            nodes = ancestors(self.parents)[self.pending + first : self.pending + last]
            committed = np.ones((last - first, self.length - start), dtype=np.bool_)
            seen = np.concatenate([committed, nodes], axis=1)
            of = np.arange(start, self.length).tolist() + self.tree_positions
            slots = np.array(of)[None]
        if window is not None:
            seen &= slots > at - window
        return seen


class Pack:
    """The parts of one forward pass, and the callback that may cancel it."""

    def __init__(
        self,
        batch: Sequence[Segment],
        sessions: Sequence[KvSession],
        cancelled: Callable[[], bool],
        like: Tensor,
    ) -> None:
        """`like` has the dtype and the device of the model's activations."""
        self.parts: list[Part] = []
        self._cancelled = cancelled
        offset = 0
        for segment, session in zip(batch, sessions, strict=True):
            self.parts.append(Part(segment, session, offset, like))
            offset += len(segment.token_ids)
        ids = [token for segment in batch for token in segment.token_ids]
        self.token_ids = torch.tensor(ids, device=like.device)
        self.wanted = sum(part.wanted for part in self.parts)
        self.few = all(part.count <= FEW_ROWS for part in self.parts)
        self.few_wanted = all(part.wanted <= FEW_ROWS for part in self.parts)
        self.last_position = max(max(part.positions) for part in self.parts)
        self.reads_exits = any(part.exits and part.wanted for part in self.parts)

    def positions(self) -> Tensor:
        """Position of each token of the pack in its own sequence."""
        found = [position for part in self.parts for position in part.positions]
        return torch.tensor(found, device=self.token_ids.device)

    def wanted_rows(self) -> Tensor:
        """Rows of the pack whose logits are asked for, in order."""
        return self.rows_of(self.parts)

    def rows_of(self, parts: Sequence[Part]) -> Tensor:
        """Rows of some of its parts whose logits are asked for, in order."""
        rows: list[int] = []
        for part in parts:
            end = part.offset + part.count
            rows.extend(range(end - part.wanted, end))
        return torch.tensor(rows, dtype=torch.long, device=self.token_ids.device)

    def check_cancelled(self) -> None:
        """Raise ForwardCancelled if the caller has lost interest. Called before each layer."""
        if self._cancelled():
            raise ForwardCancelled("cancelled between two layers")
