"""One forward pass, laid out: the requests of all sessions side by side, and their masks.

Linear layers run over all tokens of the packed batch at once; attention runs per sequence against
the sequence's own session. Masks depend only on the layer's window, so they are made once per pass,
not per layer.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tandem.backends.interface import KV_BLOCK, ForwardCancelled, ForwardRequest, Logits
from tandem.backends.torch.kv_cache import KvSession
from tandem.backends.torch.linear import FEW_ROWS
from tandem.core.tree import ancestors, depths

_ROWS_PER_BLOCK = 256
"""Bounds the size of a mask and skips most of what lies above the diagonal. On a CPU blocks are
those of kept keys and values: how a row is rounded depends on how many rows its block has."""


@dataclass(frozen=True, slots=True)
class AttentionBlock:
    """Rows first..last-1 of a sequence attend to positions start..end-1. `mask` [(last - first) ·
    group, end - start] is added to the scores; None: everything is seen. Its rows repeat for each
    query head of a key head's group, as queries are folded."""

    first: int
    last: int
    start: int
    end: int
    mask: Tensor | None


class PackedSequence:
    """One request of the packed batch: `count` tokens after its session's `length` committed."""

    def __init__(
        self, request: ForwardRequest, session: KvSession, offset: int, like: Tensor
    ) -> None:
        self.session = session
        self.offset = offset
        self.count = len(request.token_ids)
        self.rows = slice(offset, offset + self.count)
        self.logits_to_keep = request.logits_to_keep
        self.exits = request.exits
        self.on_exit = request.on_exit
        self.length = session.length
        self.pending = session.pending
        tree = None if request.parents is None else (*(session.tree or ()), *request.parents)
        self.parents = tree  # of the pending nodes and of those this request feeds
        self.tree_positions = [self.length + step for step in depths(tree or ())]
        chain = list(range(self.length, self.length + self.count))
        self.positions = chain if tree is None else self.tree_positions[self.pending :]
        self._like = like
        self._blocks: dict[tuple[int | None, int], list[AttentionBlock]] = {}

    def blocks(self, window: int | None, group: int) -> list[AttentionBlock]:
        """Return how this sequence attends in a layer with that window and `group` heads per key
        head."""
        if (window, group) not in self._blocks:
            on_cpu = self._like.device.type == "cpu"
            size = KV_BLOCK if on_cpu else _ROWS_PER_BLOCK
            size = size if self.parents is None else self.count
            firsts = range(0, self.count, size)
            blocks = [
                self._block(row, min(row + size, self.count), window, group) for row in firsts
            ]
            self._blocks[window, group] = blocks
        return self._blocks[window, group]

    def _block(self, first: int, last: int, window: int | None, group: int) -> AttentionBlock:
        end = self.length + self.pending + last
        start = 0 if window is None else max(0, min(self.positions[first:last]) - window + 1)
        if self.parents is not None:
            start = min(start, self.length)
        if last - first == 1 and not self.pending:
            return AttentionBlock(first=first, last=last, start=start, end=end, mask=None)
        if self.parents is None and (window is None or end <= window):
            mask = self._triangle(last - first, end)
        else:
            mask = torch.zeros((last - first, end - start), dtype=self._like.dtype)
            seen = torch.from_numpy(
                self._seen(first=first, last=last, start=start, end=end, window=window)
            )
            mask = mask.masked_fill_(~seen, float("-inf")).to(self._like.device)
        return AttentionBlock(
            first=first,
            last=last,
            start=start,
            end=end,
            mask=mask.repeat(group, 1) if group > 1 else mask,
        )

    def _triangle(self, rows: int, end: int) -> Tensor:
        mask = self._like.new_zeros(rows, end)
        mask[:, end - rows :].fill_(float("-inf")).triu_(1)
        return mask

    def _seen(
        self, first: int, last: int, start: int, end: int, window: int | None
    ) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
        """Return which slots each fed token may look at: [rows, positions]."""
        at = np.array(self.positions[first:last])[:, None]
        slots = np.arange(start, end)[None]
        if self.parents is None:
            seen = slots <= at
        else:
            nodes = ancestors(self.parents)[self.pending + first : self.pending + last]
            committed = np.ones((last - first, self.length - start), dtype=np.bool_)
            seen = np.concatenate([committed, nodes], axis=1)
            slots = np.array([*range(start, self.length), *self.tree_positions])[None]
        if window is not None:
            seen &= slots > at - window
        return seen


class ExitCopies:
    """What early exits said in one pass, on its way to the host. Invariants: nothing waits for a
    copy before the pass is over; what is said first is handed over first."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[torch.cuda.Event, Tensor, Callable[[Logits], None]]] = deque()

    def add(self, said: Tensor, take: Callable[[Logits], None]) -> None:
        """Have `take` called with a copy; at once where it is in this memory already."""
        if said.device.type == "cpu":
            take(said.numpy())
            return
        there = torch.empty(said.shape, dtype=said.dtype, pin_memory=True)
        there.copy_(said, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()
        self._waiting.append((copied, there, take))

    def hand_over(self, wait: bool = False) -> None:
        """Hand over what has arrived; with `wait`, all of it."""
        while self._waiting:
            copied, there, take = self._waiting[0]
            if wait:
                copied.synchronize()
            elif not copied.query():
                return
            self._waiting.popleft()
            take(there.numpy())


class PackedBatch:
    """The sequences of one forward pass, and the callback that may cancel it."""

    def __init__(
        self,
        batch: Sequence[ForwardRequest],
        sessions: Sequence[KvSession],
        cancelled: Callable[[], bool],
        like: Tensor,
    ) -> None:
        """Pack the requests of `batch`, one for each of `sessions`. `like` has the dtype and the
        device of the model's activations."""
        self.sequences: list[PackedSequence] = []
        self._cancelled = cancelled
        offset = 0
        for request, session in zip(batch, sessions, strict=True):
            self.sequences.append(PackedSequence(request, session, offset, like))
            offset += len(request.token_ids)
        ids = [token for request in batch for token in request.token_ids]
        self.token_ids = torch.tensor(ids, device=like.device)
        self.first_layer = batch[0].first_layer if batch else 0
        """Before it nothing runs: `hidden` [tokens, size] is what these layers would put out."""
        self.hidden: Tensor | None = None
        given = [request.hidden for request in batch if request.hidden is not None]
        if given:
            self.hidden = torch.from_numpy(np.concatenate(given)).to(like)
        self.products = sessions[0].products if sessions else None
        """Of all its sessions."""
        self.logits_to_keep = sum(sequence.logits_to_keep for sequence in self.sequences)
        self.few = all(sequence.count <= FEW_ROWS for sequence in self.sequences)
        self.few_logits = all(sequence.logits_to_keep <= FEW_ROWS for sequence in self.sequences)
        self.last_position = max(max(sequence.positions) for sequence in self.sequences)
        self.exit_copies = ExitCopies()
        self.reads_exits = any(one.exits and one.logits_to_keep for one in self.sequences)

    def positions(self) -> Tensor:
        """Return the position of each token of the packed batch in its own sequence."""
        positions = [position for sequence in self.sequences for position in sequence.positions]
        return torch.tensor(positions, device=self.token_ids.device)

    def logit_rows(self) -> Tensor:
        """Return the rows of the packed batch whose logits are asked for, in order."""
        return self.rows_of(self.sequences)

    def rows_of(self, sequences: Sequence[PackedSequence]) -> Tensor:
        """Return the rows of some of its sequences whose logits are asked for, in order."""
        ends = [(sequence.rows.stop, sequence.logits_to_keep) for sequence in sequences]
        rows = [row for end, kept in ends for row in range(end - kept, end)]
        # A device waits for nothing before the copy only where that is said.
        return torch.tensor(rows, dtype=torch.long).to(self.token_ids.device, non_blocking=True)

    def check_cancelled(self) -> None:
        """Raise ForwardCancelled if the pass was cancelled; called before each layer."""
        if self._cancelled():
            raise ForwardCancelled("cancelled between two layers")
