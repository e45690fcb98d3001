"""Keys and values of sessions, in preallocated blocks that forks share.

A session's tokens lie in a chain of blocks: blocks it only reads (the prefix it was forked from)
and, last, a tail block that it alone writes. Invariant: no slot that another session can read is
ever written. A session that goes back behind a shared position and writes again gets a new tail.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tandem.backends.request_checks import check_length
from tandem.backends.torch.image_embeddings import ImageEmbeddings
from tandem.backends.torch.products import ModelProducts
from tandem.core.errors import InvalidArgument
from tandem.core.tree import check_path


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Sizes that one attention layer stores per token, and how far back it looks (None:
    everything)."""

    kv_heads: int
    key_size: int
    value_size: int
    window: int | None


class KvBlock:
    """Slots for the tokens at positions `origin`, `origin + 1`, … of a sequence, in every layer.
    `keys[layer]` is [kv_heads, slots, key_size], `values[layer]` likewise. Positions before
    `shared_end` may be read by other sessions while `readers` > 1."""

    __slots__ = ("keys", "origin", "readers", "shared_end", "size", "values")

    def __init__(self, origin: int, keys: list[Tensor], values: list[Tensor], size: int) -> None:
        self.origin = origin
        self.size = size
        self.keys = keys
        self.values = values
        self.readers = 1
        self.shared_end = origin


class KvPool:
    """Allocates blocks for one model and counts their bytes."""

    def __init__(self, layers: Sequence[LayerShape], dtype: torch.dtype, device: torch.device):
        self.layers = tuple(layers)
        self.dtype = dtype
        self.bytes_in_use = 0
        self.sessions: set[KvSession] = set()
        self._device = device
        numbers = sum(layer.kv_heads * (layer.key_size + layer.value_size) for layer in layers)
        self.bytes_per_token = numbers * dtype.itemsize

    def open(self, capacity: int, spare: int = 0) -> "KvSession":
        slots = capacity + spare
        return KvSession(
            pool=self,
            prefix=[],
            tail=self.allocate(0, slots),
            capacity=capacity,
            length=0,
            slots=slots,
        )

    def fork(self, parent: "KvSession", length: int, capacity: int) -> "KvSession":
        """Return a session that reads the parent's first `length` tokens and writes its own
        tail."""
        tail = self.allocate(length, capacity - length)
        session = KvSession(
            pool=self,
            prefix=parent.share(length),
            tail=tail,
            capacity=capacity,
            length=length,
            slots=capacity,
        )
        session.image_embeddings = parent.image_embeddings
        session.products = parent.products
        return session

    def adopt(self, keys: list[Tensor], values: list[Tensor]) -> "KvSession":
        """Return a full session around given keys and values, [kv_heads, tokens, size] of each
        layer. They are not copied where they lie on the pool's device already."""
        length = keys[0].shape[1]
        size = length * self.bytes_per_token
        self.bytes_in_use += size
        keys, values = ([tensor.to(self._device) for tensor in some] for some in (keys, values))
        return KvSession(
            pool=self,
            prefix=[],
            tail=KvBlock(0, keys, values, size),
            capacity=length,
            length=length,
            slots=length,
        )

    def allocate(self, origin: int, slots: int) -> KvBlock:
        keys = [self._empty(layer.kv_heads, slots, layer.key_size) for layer in self.layers]
        values = [self._empty(layer.kv_heads, slots, layer.value_size) for layer in self.layers]
        size = slots * self.bytes_per_token
        self.bytes_in_use += size
        return KvBlock(origin, keys, values, size)

    def release(self, block: KvBlock) -> None:
        block.readers -= 1
        if block.readers == 0:
            self.bytes_in_use -= block.size

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self._device)


class KvSession:
    """One sequence: `length` committed tokens, of at most `capacity`, and a pending tree."""

    def __init__(
        self,
        pool: KvPool,
        prefix: list[tuple[KvBlock, int]],
        tail: KvBlock,
        capacity: int,
        length: int,
        slots: int,
    ) -> None:
        self.capacity = capacity
        self.slots = slots
        self.length = length
        self.pool = pool
        self._prefix = prefix
        self._tail = tail
        self.tree: tuple[int, ...] | None = None
        self.image_embeddings: ImageEmbeddings | None = None
        self.products: ModelProducts | None = None
        """What passes multiply by, in the place of the model's own; chosen before the first."""
        pool.sessions.add(self)

    def rollback(self, length: int) -> None:
        self._check_open()
        check_length(length, self.length)
        self.length = length
        self.tree = None

    @torch.inference_mode()
    def keep_path(self, indices: Sequence[int]) -> None:
        self._check_open()
        check_path(self.tree, indices)
        if list(indices) != list(range(len(indices))):
            self._move_to_front(indices)
        self.length += len(indices)
        self.tree = None

    def close(self) -> None:
        if self not in self.pool.sessions:
            return
        self.pool.sessions.discard(self)
        for block, _ in self._prefix:
            self.pool.release(block)
        self.pool.release(self._tail)
        self._prefix = []

    @property
    def pending(self) -> int:
        """Number of pending tree nodes, whose slots follow those of the committed tokens."""
        return len(self.tree or ())

    def prepare(self, extends_tree: bool = False) -> None:
        """Drop a pending tree before a pass, unless it `extends_tree`; make new slots writable."""
        if extends_tree:
            return  # its own first pass made them so, and nobody can have shared them since
        self.tree = None
        shared_end = self._tail.shared_end if self._tail.readers > 1 else 0
        if self.length < max(self._tail.origin, shared_end):
            self._replace_tail()

    def finish(self, count: int, parents: tuple[int, ...] | None) -> None:
        """Commit a chain, or hold a tree, after a forward pass of `count` tokens."""
        if parents is None:
            self.length += count
        else:
            self.tree = (*(self.tree or ()), *parents)

    def share(self, length: int) -> list[tuple[KvBlock, int]]:
        """Return (block, end position) pairs that hold the first `length` tokens, with one more
        reader."""
        blocks = [*self._prefix, (self._tail, length)]
        chain = [(block, min(end, length)) for block, end in blocks if block.origin < length]
        for block, end in chain:
            block.readers += 1
            block.shared_end = max(block.shared_end, end)
        return chain

    def write(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Put key, value [kv_heads, count, size] into the slots after the tokens that are kept."""
        begin = self.length + self.pending - self._tail.origin
        end = begin + key.shape[1]
        self._tail.keys[layer][:, begin:end] = key
        self._tail.values[layer][:, begin:end] = value

    def export(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the keys and values of all committed tokens, [kv_heads, length, size] of each
        layer, in main memory, as `KvPool.adopt` takes them. Read only: most are views."""
        spans = [self.read(layer, 0, self.length) for layer in range(len(self.pool.layers))]
        joined = [[_joined(halves) for halves in zip(*layer, strict=True)] for layer in spans]
        return [key for key, _ in joined], [value for _, value in joined]

    def copy(self, start: int, end: int) -> tuple[list[Tensor], list[Tensor]]:
        """Export positions start..end-1, where they are; not views."""
        spans = [self.read(layer, start, end) for layer in range(len(self.pool.layers))]
        keys = [torch.cat([key for key, _ in halves], dim=1) for halves in spans]
        values = [torch.cat([value for _, value in halves], dim=1) for halves in spans]
        return keys, values

    def paste(self, keys: list[list[Tensor]], values: list[list[Tensor]], length: int) -> None:
        """Fill an empty session with copies: [piece][layer], in order."""
        for layer in range(len(self.pool.layers)):
            for pieces, slots in ((keys, self._tail.keys), (values, self._tail.values)):
                torch.cat([piece[layer] for piece in pieces], dim=1, out=slots[layer][:, :length])
        self.length = length

    def read(self, layer: int, start: int, end: int) -> list[tuple[Tensor, Tensor]]:
        """Return views [kv_heads, tokens, size] of the keys and values at positions start..end-1,
        in order."""
        views = []
        for block, block_end in [*self._prefix, (self._tail, end)]:
            if start < block_end:
                part = slice(max(start - block.origin, 0), block_end - block.origin)
                views.append((block.keys[layer][:, part], block.values[layer][:, part]))
        return views

    def _replace_tail(self) -> None:
        fresh = self.pool.allocate(self.length, self.slots - self.length)
        prefix = self.share(self.length)
        for block, _ in self._prefix:
            self.pool.release(block)
        self.pool.release(self._tail)
        self._prefix = prefix
        self._tail = fresh

    def _move_to_front(self, indices: Sequence[int]) -> None:
        begin = self.length - self._tail.origin
        kept = torch.tensor(indices, device=self._tail.keys[0].device) + begin
        for buffer in (*self._tail.keys, *self._tail.values):
            buffer[:, begin : begin + len(indices)] = buffer.index_select(1, kept)

    def _check_open(self) -> None:
        if self not in self.pool.sessions:
            raise InvalidArgument("session", "the session is closed")


def _joined(spans: tuple[Tensor, ...]) -> Tensor:
    return (torch.cat(spans, dim=1) if len(spans) > 1 else spans[0]).cpu()
