"""The index of the kept blocks of keys and values, by tenant: found by content, the least recently
used forgotten first. Pure: what a block holds is its owner's matter.

A block is the KV_BLOCK tokens after those of the block before it; its key is a hash of all tokens
up to its end. It is its tenant's; the blocks of what an operator declared public are kept once, for
all tenants of a caller. Invariants: a block is found only with all blocks before it; a tenant finds
what it left itself, and what is public among its caller's; no more bytes are kept than the limits
say, which hold for callers: a caller gets no more by having many tenants.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from tandem.backends.interface import KV_BLOCK
from tandem.net.tenant import Tenant

Content = TypeVar("Content")


@dataclass(frozen=True, slots=True)
class _Public:
    """Stands for all tenants of a caller, in the place of one tenant."""

    caller: str


_Owner = Tenant | _Public
_OrderedBlocks = OrderedDict[bytes, "_Block[Content]"]


@dataclass(frozen=True, slots=True)
class _Block(Generic[Content]):
    content: Content
    size_bytes: int


class PrefixIndex(Generic[Content]):
    """Blocks in the order of their last use: of a text the last one is the oldest, so that its
    beginning stays longest. `public_tokens`: so many tokens a text begins with are public."""

    def __init__(self, caller_bytes: int = 0) -> None:
        """Start with no blocks. `caller_bytes`: the most that is kept for one caller; 0: as much as
        for all together."""
        self._caller_bytes = caller_bytes
        self.size_bytes = 0
        """Of all blocks."""
        self._blocks: dict[_Owner, _OrderedBlocks[Content]] = {}
        self._caller_sizes: dict[str, int] = {}
        self._owner_sizes: dict[str, dict[_Owner, int]] = {}
        """Of each owner, by its caller."""

    def find(
        self, tenant: Tenant, token_ids: Sequence[int], public_tokens: int = 0
    ) -> list[Content]:
        """Return the blocks that the text begins with, which count as used now."""
        hits = []
        for owner, key in _owned_keys(tenant, token_ids, public_tokens):
            if not self._has(owner, key):
                break
            hits.append((owner, key))
        self._touch(hits)
        return [self._blocks[owner][key].content for owner, key in hits]

    def put(
        self,
        tenant: Tenant,
        token_ids: Sequence[int],
        contents: Sequence[Content],
        block_bytes: int,
        public_tokens: int = 0,
    ) -> None:
        """Keep the last blocks of a text, of `block_bytes` each. Nothing happens if one before them
        has been forgotten meanwhile, or where the caller may not keep a single one."""
        owned = list(_owned_keys(tenant, token_ids, public_tokens))
        before = len(owned) - len(contents)
        if contents and all(self._has(owner, key) for owner, key in owned[:before]):
            for (owner, key), content in zip(owned[before:], contents, strict=True):
                if not self._has(owner, key):
                    self._keep(owner, key, _Block(content, block_bytes))
            self._touch(owned)
        most = self._caller_bytes
        while most and self._caller_sizes.get(tenant.caller, 0) > most:
            self._forget_oldest_of(tenant.caller)

    def shrink(self, most_bytes: int) -> None:
        """Forget the oldest blocks of those who keep the most, until all fit: of the callers, and
        of that caller's tenants."""
        while self.size_bytes > max(0, most_bytes):
            sizes = self._caller_sizes
            self._forget_oldest_of(max(sizes, key=lambda caller: sizes[caller]))

    def _has(self, owner: _Owner, key: bytes) -> bool:
        return key in self._blocks.get(owner, ())

    def _keep(self, owner: _Owner, key: bytes, block: _Block[Content]) -> None:
        self._blocks.setdefault(owner, OrderedDict())[key] = block
        self._grow(owner, block.size_bytes)

    def _grow(self, owner: _Owner, size_bytes: int) -> None:
        """Add `size_bytes` to an owner's size; negative for what is forgotten."""
        sizes = self._owner_sizes.setdefault(owner.caller, {})
        sizes[owner] = sizes.get(owner, 0) + size_bytes
        self._caller_sizes[owner.caller] = self._caller_sizes.get(owner.caller, 0) + size_bytes
        self.size_bytes += size_bytes

    def _touch(self, owned: Sequence[tuple[_Owner, bytes]]) -> None:
        for owner, key in reversed(owned):
            self._blocks[owner].move_to_end(key)

    def _forget_oldest_of(self, caller: str) -> None:
        sizes = self._owner_sizes[caller]
        owner = max(sizes, key=lambda user: sizes[user])
        _, block = self._blocks[owner].popitem(last=False)
        self._grow(owner, -block.size_bytes)
        if not self._blocks[owner]:
            del self._blocks[owner], sizes[owner]
        if not sizes:
            del self._owner_sizes[caller], self._caller_sizes[caller]


def _owned_keys(
    tenant: Tenant, token_ids: Sequence[int], public_tokens: int
) -> Iterator[tuple[_Owner, bytes]]:
    """Return owner and key of each whole block of a text, in order. A block is public as a whole or
    not at all: one with a single token of the tenant's is the tenant's."""
    hashed = hashlib.sha256()
    public = _Public(tenant.caller)
    for end in range(KV_BLOCK, len(token_ids) + 1, KV_BLOCK):
        hashed.update(np.array(token_ids[end - KV_BLOCK : end], dtype="<u4").tobytes())
        yield public if end <= public_tokens else tenant, hashed.digest()
