"""Keys and values that outlive their session: a chat's next turn, and another chat with the same
system prompt, compute only what is new.

A session leaves whole blocks of its text to its tenant, as copies: those that it began with as soon
as they are computed, the others when it ends. A new session of the same tenant begins with copies
of them; for one of another tenant nothing is kept but what an operator declared public. Invariants:
no session finds, or waits for, what another tenant's computes; sessions go first, and what is kept
has only what they leave of the KV budget; no session writes another's keys and values; where the
engine promises the same bits, a session that found a prefix has those that it would have computed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from tandem.backends.interface import KV_BLOCK, Session
from tandem.core.errors import Unavailable
from tandem.core.sharing import NOBODY_SHARES, Sharing, parse_sharing
from tandem.net.tenant import Tenant
from tandem.runtime.engine_thread import EngineThread
from tandem.runtime.prefix_index import PrefixIndex
from tandem.settings import ModelSettings
from tandem.telemetry.engine_series import EngineSeries


@dataclass(frozen=True, slots=True)
class PrefixLimits:
    """Limits of the prefix cache, in bytes; 0 of all: nothing, 0 of one caller: no limit of its
    own. `sharing`: which callers find what the others among them left, and can then tell by the
    time of an answer that one of them had asked that."""

    kv_bytes: int = 2**28
    caller_bytes: int = 0
    sharing: Sharing = NOBODY_SHARES


def prefix_limits(settings: ModelSettings) -> PrefixLimits:
    """Return the prefix limits in a service's settings."""
    return PrefixLimits(
        settings.prefix_kv_bytes,
        settings.prefix_kv_holder_bytes,
        parse_sharing(settings.share_prefixes),
    )


@dataclass(frozen=True, slots=True)
class KeptText:
    """Identity of a session's text in the prefix cache. `public_tokens`: so many of the first are
    of a text that the operator declared public. Without `keeps`, where token ids do not say all,
    nothing is found or kept."""

    tenant: Tenant
    token_ids: Sequence[int]
    public_tokens: int = 0
    keeps: bool = True


@dataclass(slots=True)
class _Block:
    """`copy` comes from the engine thread, before anything that is asked of that thread later."""

    copy: Any = None


class PrefixCache:
    """Prefix cache of one engine; used on the event loop."""

    def __init__(
        self,
        thread: EngineThread,
        limits: PrefixLimits,
        room: Callable[[], int],
        series: EngineSeries,
    ) -> None:
        """Start with nothing kept. `room` returns the bytes of the KV budget that no session
        holds."""
        self._thread = thread
        self._limits = limits
        self._room = room
        self._series = series
        self.copies = thread.engine.kv_copies if limits.kv_bytes else None
        self.index: PrefixIndex[_Block] = PrefixIndex(limits.caller_bytes)
        self._computing: dict[tuple[Tenant, tuple[int, ...]], asyncio.Event] = {}
        series.prefix_kv_budget_bytes.set(limits.kv_bytes if self.copies else 0)
        series.prefix_kv_bytes.set_function(lambda: self.index.size_bytes)

    def find(self, text: KeptText) -> KeptPrefix:
        """Find the cached blocks of a session's text, except for its last token: a pass needs
        one."""
        blocks: list[_Block] = []
        if text.keeps and self.copies is not None:
            but_last = text.token_ids[: len(text.token_ids) - 1]
            blocks = self.index.find(text.tenant, but_last, text.public_tokens)
            self._series.looked_up(len(text.token_ids), len(blocks) * KV_BLOCK)
        return KeptPrefix(self, self._thread, text, blocks)

    def unread(self, text: KeptText) -> KeptPrefix:
        """Find nothing, for a session that has to compute all of its text, and keeps it then."""
        return KeptPrefix(self, self._thread, text, [])

    async def found(self, text: KeptText) -> KeptPrefix:
        """Find like `find`, once no session of the tenant computes the same text. If one leaves it
        uncomputed, the first of those that waited computes it, and the others wait for that one."""
        whole = tuple(text.token_ids[: (len(text.token_ids) - 1) // KV_BLOCK * KV_BLOCK])
        # Of one tenant alone: who waits learns that somebody asks the same.
        key = text.tenant, whole
        if not (text.keeps and whole) or self.copies is None:
            return self.find(text)
        while (computing := self._computing.get(key)) is not None:
            await computing.wait()
        prefix = self.find(text)
        if prefix.tokens < len(whole) and key not in self._computing:
            self._computing[key] = asyncio.Event()
            prefix.on_left = lambda: self._computing.pop(key).set()
        return prefix

    def make_room(self) -> None:
        """Forget what the sessions leave no room for."""
        self.index.shrink(min(self._limits.kv_bytes, self._room()))

    def put(self, text: KeptText, blocks: Sequence[_Block], gives_back: int) -> None:
        """Keep a text's last blocks, of a session that gives back so many bytes at once."""
        self.index.put(
            text.tenant,
            text.token_ids,
            blocks,
            block_bytes=KV_BLOCK * self._thread.engine.kv_bytes_per_token,
            public_tokens=text.public_tokens,
        )
        self.index.shrink(min(self._limits.kv_bytes, self._room() + gives_back))

    def copied(self, copying: asyncio.Future[None]) -> None:
        """Forget everything if a copy failed: an engine that could not copy does not work, so
        nothing kept of it is of use."""
        if copying.cancelled() or copying.exception() is not None:
            self.index.shrink(0)

    def has(self, text: KeptText) -> int:
        """Return how many blocks of the text are kept."""
        return len(self.index.find(text.tenant, text.token_ids, text.public_tokens))


class KeptPrefix:
    """The kept prefix of one session: the blocks of `text` that were cached, and those that it
    leaves."""

    def __init__(
        self, kept: PrefixCache, thread: EngineThread, text: KeptText, blocks: list[_Block]
    ) -> None:
        self._kept = kept
        self._thread = thread
        self._text = text
        self._blocks = blocks
        self.tokens = len(blocks) * KV_BLOCK
        self.on_left: Callable[[], None] | None = None
        """Called once something was left, or there is nothing to leave."""

    async def show(self, session: Session) -> None:
        """Replace what a session holds by what was found, once: a draft that was given up may have
        been computed in it."""
        blocks, self._blocks = self._blocks, []
        copies = self._kept.copies

        def paste() -> None:
            assert copies is not None
            session.rollback(0)
            copies.paste(session, _copies(blocks))

        if blocks and copies is not None:
            await self._thread.call(paste)

    def leave(
        self, session: Session, token_ids: Sequence[int], ends: bool = True, gives_back: int = 0
    ) -> None:
        """Keep what the session holds of `token_ids`, before it closes, or before it goes on. Where
        the engine promises the same bits, only of the text that it began with: passes over a few
        tokens round differently from those over many, as which a later session would compute
        them."""
        self._leave(session, token_ids, ends, gives_back)
        on_left, self.on_left = self.on_left, None
        if on_left is not None:
            on_left()

    def _leave(
        self, session: Session, token_ids: Sequence[int], ends: bool, gives_back: int
    ) -> None:
        copies = self._kept.copies
        if copies is None or not self._text.keeps:
            return
        if not ends or self._thread.engine.capabilities.same_bits:
            token_ids = token_ids[: len(self._text.token_ids)]
        token_ids = tuple(token_ids[: len(token_ids) // KV_BLOCK * KV_BLOCK])
        left = replace(self._text, token_ids=token_ids)
        first = self._kept.has(left) * KV_BLOCK
        if first == len(token_ids):
            return
        blocks = [_Block() for _ in range(first, len(token_ids), KV_BLOCK)]

        def copy() -> None:
            made = copies.copy(session, first, len(token_ids))
            for block, content in zip(blocks, made, strict=True):
                block.copy = content

        with suppress(Unavailable):  # nothing is kept of an engine that does not work
            copying = self._thread.call(copy)
            self._kept.put(left, blocks, gives_back)
            copying.add_done_callback(self._kept.copied)


def _copies(blocks: Sequence[_Block]) -> list[Any]:
    if any(block.copy is None for block in blocks):
        raise Unavailable("a cached prefix could not be copied")
    return [block.copy for block in blocks]
