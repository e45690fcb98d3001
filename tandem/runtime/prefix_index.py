"""Which blocks of keys and values are kept, and for whom: found by content, the least recently used
forgotten first. Pure: what a block holds is its owner's matter.

A block is the KV_BLOCK tokens after those of the block before it; its key is a hash of all tokens
up to its end. Invariants: a block is kept only with all blocks before it; a holder finds what it
left itself and nothing else; no more bytes are kept than the limits say.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from tandem.backends.interface import KV_BLOCK

Content = TypeVar("Content")

_OrderedBlocks = OrderedDict[bytes, "_Block[Content]"]


@dataclass(frozen=True, slots=True)
class _Block(Generic[Content]):
    content: Content
    size_bytes: int


class PrefixIndex(Generic[Content]):
    """Blocks in the order of their last use: of a text the last one is the oldest, so that its
    beginning stays longest."""

    def __init__(self, holder_bytes: int = 0) -> None:
        """`holder_bytes`: most that one holder may keep; 0: as much as all together."""
        self._holder_bytes = holder_bytes
        self._blocks: dict[str, _OrderedBlocks[Content]] = {}
        self._sizes: dict[str, int] = {}

    @property
    def size_bytes(self) -> int:
        """Of all blocks."""
        return sum(self._sizes.values())

    def find(self, holder: str, token_ids: Sequence[int]) -> list[Content]:
        """The blocks that the text begins with, which count as used now."""
        mine = self._blocks.get(holder, OrderedDict())
        found = []
        for key in _keys(token_ids):
            if key not in mine:
                break
            found.append(key)
        self._touch(mine, found)
        return [mine[key].content for key in found]

    def put(
        self, holder: str, token_ids: Sequence[int], contents: Sequence[Content], block_bytes: int
    ) -> None:
        """Keep the last blocks of a text, of `block_bytes` each. Nothing happens if one before them
        has been forgotten meanwhile, or where the holder may not keep a single one."""
        keys = _keys(token_ids)
        mine: _OrderedBlocks[Content] = self._blocks.get(holder, OrderedDict())
        before = keys[: len(keys) - len(contents)]
        if contents and all(key in mine for key in before):
            self._blocks[holder] = mine
            for key, content in zip(keys[len(before) :], contents, strict=True):
                if key not in mine:
                    mine[key] = _Block(content, block_bytes)
                    self._sizes[holder] = self._sizes.get(holder, 0) + block_bytes
            self._touch(mine, keys)
        while self._holder_bytes and self._sizes.get(holder, 0) > self._holder_bytes:
            self._forget_oldest(holder)

    def shrink(self, most_bytes: int) -> None:
        """Forget the oldest blocks of those who keep the most, until all fit."""
        while self.size_bytes > max(0, most_bytes):
            self._forget_oldest(max(self._sizes, key=lambda holder: self._sizes[holder]))

    def _touch(self, mine: _OrderedBlocks[Content], keys: Sequence[bytes]) -> None:
        for key in reversed(keys):
            mine.move_to_end(key)

    def _forget_oldest(self, holder: str) -> None:
        _, block = self._blocks[holder].popitem(last=False)
        self._sizes[holder] -= block.size_bytes
        if not self._blocks[holder]:
            del self._blocks[holder], self._sizes[holder]


def _keys(token_ids: Sequence[int]) -> list[bytes]:
    """Of the whole blocks of a text, in order."""
    hashed, keys = hashlib.sha256(), []
    for end in range(KV_BLOCK, len(token_ids) + 1, KV_BLOCK):
        hashed.update(np.array(token_ids[end - KV_BLOCK : end], dtype="<u4").tobytes())
        keys.append(hashed.digest())
    return keys
