"""What a service remembers of its tenants' texts: which of them a request may be drafted from, and
what is learned when it ends. Reading, sorting and writing run on a thread; the event loop only
hands over.

Invariants: a request is drafted from its own tenant's texts alone, and those that share prefixes do
not share these; nothing leaves the machine; what cannot be written is remembered until the process
ends, and fails no request."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tandem.backends.interface import Engine
from tandem.net.tenant import Tenant
from tandem.runtime.memory_files import MemoryFile, MemoryFolder
from tandem.specdec.recalled_text import RecallTally, Recollection
from tandem.specdec.text_memory import TextMemory
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

MOST_TENANTS = 4096
MOST_WAITING = 64
"""Texts that wait to be learned; more are forgotten."""
LONG_PROMPT = 8192
"""Tokens that are sorted in about a millisecond; longer prompts are sorted on a thread."""
_FILE_BYTES_PER_TOKEN = 8
"""Of a file before it is written anew: its texts, and those that were put out meanwhile."""
_FILE_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """Tokens that are remembered of one tenant, and of all together; with a `folder` also after the
    process has ended."""

    tokens: int = 2**18
    total_tokens: int = 2**20
    folder: Path | None = None


@dataclass(slots=True, eq=False)
class _Remembered:
    """Of one tenant; `loaded` once its file, if there is one, was read."""

    file: MemoryFile | None
    memory: TextMemory
    tally: RecallTally = field(default_factory=RecallTally)
    loaded: asyncio.Task[None] | None = None


class TenantMemories:
    """The memories of all tenants of a drafter, or of a verifier. Used on one event loop.
    `fingerprint`: of the vocabulary."""

    def __init__(self, limits: MemoryLimits, fingerprint: str, vocabulary_size: int) -> None:
        self._limits = limits
        self._fingerprint = fingerprint
        self._vocabulary_size = vocabulary_size
        self._tenants: OrderedDict[Tenant, _Remembered] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="memory")
        self._learning: set[asyncio.Task[None]] = set()
        self._folder = _folder(limits.folder)

    @classmethod
    def of(cls, limits: MemoryLimits | None, engine: Engine) -> TenantMemories | None:
        """Return the memory in the vocabulary of an engine; None without limits."""
        if limits is None:
            return None
        return cls(limits, engine.vocabulary_hash, engine.vocabulary_size)

    async def recollection(self, tenant: Tenant, prompt_ids: Sequence[int]) -> Recollection:
        """Return what an answer to this prompt may be drafted from."""
        known = await self._of(tenant)
        blocks = known.memory.blocks
        size = self._vocabulary_size
        if len(prompt_ids) <= LONG_PROMPT:
            return Recollection.of(prompt_ids, size, blocks, known.tally)
        return await asyncio.to_thread(Recollection.of, prompt_ids, size, blocks, known.tally)

    def learn(self, tenant: Tenant, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> None:
        """Remember a text that ended; returns at once."""
        if len(self._learning) >= MOST_WAITING:
            return
        learning = asyncio.create_task(self._learn(tenant, prompt_ids, answer_ids))
        self._learning.add(learning)
        learning.add_done_callback(self._learning.discard)

    async def learned(self) -> None:
        """Wait until every text that has ended is remembered."""
        if self._learning:
            await asyncio.wait(tuple(self._learning))

    async def close(self) -> None:
        await self.learned()
        await asyncio.to_thread(self._thread.shutdown)
        if self._folder is not None:
            self._folder.close()

    async def _of(self, tenant: Tenant) -> _Remembered:
        known = self._tenants.get(tenant)
        if known is not None and known.file is not None and known.file.deleted:
            known = None  # by `tandem memory clear`
        if known is None:
            known = _Remembered(self._file(tenant), TextMemory(self._limits.tokens))
            known.loaded = asyncio.create_task(self._load(known))
            self._tenants[tenant] = known
        self._tenants.move_to_end(tenant)
        while len(self._tenants) > MOST_TENANTS:
            self._tenants.popitem(last=False)
        if known.loaded is not None:
            await asyncio.shield(known.loaded)
        return known

    def _file(self, tenant: Tenant) -> MemoryFile | None:
        if self._folder is None:
            return None
        return MemoryFile(self._folder.folder, tenant.key, self._fingerprint)

    async def _load(self, known: _Remembered) -> None:
        if known.file is not None:
            loop = asyncio.get_running_loop()
            known.memory = await loop.run_in_executor(self._thread, self._read, known.file)
        known.loaded = None

    def _read(self, file: MemoryFile) -> TextMemory:
        assert self._folder is not None, "there is a file"
        most_bytes = _FILE_BYTES + 2 * _FILE_BYTES_PER_TOKEN * self._limits.tokens
        try:
            texts = file.read(most_bytes, repair=self._folder.writable)
        except OSError as error:
            log.warning("remembered texts cannot be read", error=str(error))
            texts = []
        size = self._vocabulary_size
        fitting = [text for text in texts if not text.token_ids or max(text.token_ids) < size]
        return TextMemory(self._limits.tokens, fitting)

    async def _learn(
        self, tenant: Tenant, prompt_ids: Sequence[int], answer_ids: Sequence[int]
    ) -> None:
        known = await self._of(tenant)
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(
                self._thread, self._add, known, tuple(prompt_ids), tuple(answer_ids)
            )
        except OSError as error:
            log.warning("a text is remembered until this process ends only", error=str(error))
        self._put_out()

    def _add(
        self, known: _Remembered, prompt_ids: Sequence[int], answer_ids: Sequence[int]
    ) -> None:
        text, put_out = known.memory.learn(prompt_ids, answer_ids)
        if known.file is None or self._folder is None or not self._folder.writable:
            return
        if put_out:
            known.file.write(known.memory.texts())
            self._folder.remove_oldest(_FILE_BYTES_PER_TOKEN * self._limits.total_tokens)
        elif text is not None:
            known.file.append(text)

    def _put_out(self) -> None:
        """Forget tenants that were longest not here, until the others have few enough tokens."""
        total = sum(len(known.memory) for known in self._tenants.values())
        while total > self._limits.total_tokens and len(self._tenants) > 1:
            _, known = self._tenants.popitem(last=False)
            total -= len(known.memory)


def _folder(place: Path | None) -> MemoryFolder | None:
    if place is None:
        return None
    try:
        folder = MemoryFolder(place)
    except OSError as error:
        log.warning("texts are remembered until this process ends only", error=str(error))
        return None
    if not folder.writable:
        log.warning("another process remembers texts in this folder: new ones are not kept there")
    return folder
