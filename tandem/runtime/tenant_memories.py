"""What a service remembers of its tenants' texts: which of them a request may be drafted from, and
what is learned when it ends. Sorting runs on a thread; the event loop only hands over.

Invariants: a request is drafted from its own tenant's texts alone, and those that share prefixes do
not share these; nothing leaves the process, and all is forgotten when it ends."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from tandem.backends.interface import Engine
from tandem.net.tenant import Tenant
from tandem.specdec.ngram_proposer import HitRates, NgramTexts
from tandem.specdec.text_memory import TextMemory

MOST_TENANTS = 4096
MOST_WAITING = 64
"""Texts that wait to be learned; more are forgotten."""
LONG_PROMPT = 8192
"""Tokens that are sorted in about a millisecond; longer prompts are sorted on a thread."""


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """Tokens that are remembered of one tenant, and of all together."""

    tokens: int = 2**18
    total_tokens: int = 2**20


@dataclass(slots=True, eq=False)
class _Remembered:
    """Of one tenant."""

    memory: TextMemory
    hit_rates: HitRates = field(default_factory=HitRates)


class TenantMemories:
    """The memories of all tenants of a drafter, or of a verifier. Used on one event loop."""

    def __init__(self, limits: MemoryLimits, vocabulary_size: int) -> None:
        self._limits = limits
        self._vocabulary_size = vocabulary_size
        self._tenants: OrderedDict[Tenant, _Remembered] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="memory")
        self._learning: set[asyncio.Task[None]] = set()

    @classmethod
    def of(cls, limits: MemoryLimits | None, engine: Engine) -> TenantMemories | None:
        """Return the memory in the vocabulary of an engine; None without limits."""
        if limits is None:
            return None
        return cls(limits, engine.vocabulary_size)

    async def texts_for(self, tenant: Tenant, prompt_ids: Sequence[int]) -> NgramTexts:
        """Return what an answer to this prompt may be drafted from."""
        known = self._of(tenant)
        begun = partial(
            NgramTexts, prompt_ids, self._vocabulary_size, known.memory.index, known.hit_rates
        )
        if len(prompt_ids) <= LONG_PROMPT:
            return begun()
        return await asyncio.to_thread(begun)

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

    def _of(self, tenant: Tenant) -> _Remembered:
        known = self._tenants.get(tenant)
        if known is None:
            known = self._tenants[tenant] = _Remembered(TextMemory(self._limits.tokens))
        self._tenants.move_to_end(tenant)
        while len(self._tenants) > MOST_TENANTS:
            self._tenants.popitem(last=False)
        return known

    async def _learn(
        self, tenant: Tenant, prompt_ids: Sequence[int], answer_ids: Sequence[int]
    ) -> None:
        known = self._of(tenant)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(
            self._thread, known.memory.learn, tuple(prompt_ids), tuple(answer_ids)
        )
        self._evict()

    def _evict(self) -> None:
        """Forget tenants that were longest not here, until the others have few enough tokens."""
        total = sum(len(known.memory) for known in self._tenants.values())
        while total > self._limits.total_tokens and len(self._tenants) > 1:
            _, known = self._tenants.popitem(last=False)
            total -= len(known.memory)
