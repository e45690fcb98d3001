"""Documents whose keys and values are at hand: computed once or sent, then in memory or on disk.

A document is a prefix of token ids. Its keys and values are a full session of the engine that
nobody writes to; sequences fork from it without copying. Invariants: what is held by anyone is
never evicted; all documents together stay within the budget, so what finds no room is refused; one
document is computed once however many ask for it. Lives on the event loop, models work on the
engine's thread, files on others. Must not import torch or grpc.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

from tandem.core.errors import ResourceExhausted, Unavailable
from tandem.engine.base import KvFiles, Session, kv_files_of
from tandem.engine.document_files import DocumentFiles, document_hash
from tandem.engine.document_jobs import PrefillJob
from tandem.engine.jobs import EngineThread

FORGOTTEN_FOR_S = 900.0
"""For how long a document that was forgotten is not kept again; longer than requests take."""

TakeIn = Callable[[Any], Awaitable[None]]
"""Given what `KvFiles.adopt` takes."""

Source = Literal["memory", "disk", "computed"]
"""Where a document's keys and values came from; another request's computation is memory."""


@dataclass(frozen=True, slots=True)
class HeldDocument:
    """A document to fork from, while it is held."""

    session: Session
    source: Source


class DocumentStore:
    """`on_lookup` is told the source of each document that is asked for."""

    def __init__(
        self,
        thread: EngineThread,
        budget_bytes: int,
        files: DocumentFiles | None = None,
        on_lookup: Callable[[Source], None] = lambda source: None,
    ) -> None:
        self.budget_bytes = budget_bytes
        self.bytes_in_use = 0
        self._thread = thread
        self._files = files
        self._on_lookup = on_lookup
        self._entries: dict[str, _Entry] = {}  # the least recently used first
        self._tasks: set[asyncio.Task[None]] = set()
        self._writing = asyncio.Lock()
        self._forgotten: dict[str, float] = {}

    @asynccontextmanager
    async def held(self, documents: Sequence[tuple[int, ...]]) -> AsyncIterator[list[HeldDocument]]:
        """The documents, in order, at hand until the context is left.

        Those that are not in memory are read, and those that are nowhere computed in one pass.
        Raises ResourceExhausted where they find no room beside what others hold.
        """
        taken: list[_Entry] = []
        try:
            fresh = self._take(documents, taken)
            if fresh:
                self._start(self._fill(fresh))
            sessions = [await asyncio.shield(entry.ready) for entry in taken]
            new = set(map(id, fresh))
            sources = [entry.source if id(entry) in new else "memory" for entry in taken]
            for source in sources:
                self._on_lookup(source)
            yield [HeldDocument(*pair) for pair in zip(sessions, sources, strict=True)]
        finally:
            for entry in taken:
                self._release(entry)

    async def forget(self, documents: Sequence[tuple[int, ...]]) -> int:
        """Keep nothing of these documents, in memory beyond those who use them now; how many there
        were. Requests under way may still bring one: until `FORGOTTEN_FOR_S` have passed, none of
        them is kept for others or written. Raises Unavailable where a file cannot be removed."""
        now = asyncio.get_running_loop().time()
        keys = set(map(document_hash, documents))
        kept = {key: until for key, until in self._forgotten.items() if until > now}
        self._forgotten = kept | dict.fromkeys(keys, now + FORGOTTEN_FOR_S)
        there = keys & self._entries.keys()
        for key in there:
            self._drop_forgotten(self._entries[key])
        if self._files is not None:
            async with self._writing:  # what is being written is there to be removed then
                try:
                    there |= await asyncio.to_thread(self._files.remove, documents)
                except OSError as error:
                    why = f"a document's keys and values stay on disk: {error.strerror or error}"
                    raise Unavailable(why) from error
        return len(there)

    @asynccontextmanager
    async def room(self, token_ids: tuple[int, ...]) -> AsyncIterator[TakeIn]:
        """Room for a document that was computed elsewhere, until the context is left or what is
        yielded has been called with its keys and values, which makes it one of those at hand.

        Raises ResourceExhausted as `held` does."""
        entry = self._reserve(document_hash(token_ids), token_ids)
        placing: list[asyncio.Task[None]] = []

        async def take_in(tensors: Any) -> None:
            placing.append(self._start(self._place(entry, tensors)))
            await asyncio.shield(placing[0])

        try:
            yield take_in
        finally:
            if not placing:
                self.bytes_in_use -= entry.size

    def has(self, token_ids: tuple[int, ...]) -> bool:
        """Whether a document need probably not be computed: its file may turn out to be torn."""
        if document_hash(token_ids) in self._entries:
            return True
        return self._files is not None and self._files.path(token_ids).exists()

    async def close(self) -> None:
        """Wait for what is being computed and written, then free everything."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.gather(*map(self._evict, list(self._entries.values())))

    def _take(self, documents: Sequence[tuple[int, ...]], taken: list[_Entry]) -> list[_Entry]:
        """Hold every document, and say which of them are to be made."""
        fresh: list[_Entry] = []
        try:
            for token_ids in documents:
                key = document_hash(token_ids)
                entry = self._entries.pop(key, None)
                if entry is None:
                    entry = self._reserve(key, token_ids)
                    fresh.append(entry)
                self._entries[key] = entry
                entry.users += 1
                taken.append(entry)
        except ResourceExhausted:
            for entry in fresh:
                self._forget(entry)
            raise
        return fresh

    def _reserve(self, key: str, token_ids: tuple[int, ...]) -> _Entry:
        size = len(token_ids) * self._thread.engine.kv_bytes_per_token
        for entry in list(self._entries.values()):
            if self.bytes_in_use + size <= self.budget_bytes:
                break
            if not entry.users and entry.ready.done():
                self._evict(entry)
        if self.bytes_in_use + size > self.budget_bytes:
            free = self.budget_bytes - self.bytes_in_use
            raise ResourceExhausted(
                f"document kv budget: {size} bytes wanted, {free} of {self.budget_bytes} free"
            )
        self.bytes_in_use += size
        return _Entry(key, token_ids, size, asyncio.get_running_loop().create_future())

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run it to its end, whoever still waits for it: another may."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _place(self, entry: _Entry, tensors: Any) -> None:
        """Put what came from elsewhere among the documents, unless it was computed meanwhile."""
        kept, thread = kv_files_of(self._thread.engine), self._thread
        assert kept is not None, "there are tensors"
        try:
            session = await thread.call(_adopting(kept, tensors))
        except BaseException:
            self.bytes_in_use -= entry.size
            raise
        if entry.key in self._entries:
            self.bytes_in_use -= entry.size
            await thread.call(session.close)
            return
        self._entries[entry.key] = entry
        self._ready(entry, session)
        self._drop_forgotten(entry)

    def _ready(self, entry: _Entry, session: Session) -> None:
        """A document that is not on disk yet is at hand."""
        entry.ready.set_result(session)
        if self._files is not None:
            entry.users += 1  # until it is written
            self._start(self._write(entry, self._files))

    async def _fill(self, fresh: list[_Entry]) -> None:
        try:
            missing = await self._read(fresh)
            if missing:
                await self._compute(missing)
        except Exception as error:
            for entry in fresh:
                if not entry.ready.done():
                    self._forget(entry)
                    entry.ready.set_exception(error)
                    entry.ready.exception()  # heard, even if nobody waits any more
        for entry in fresh:
            self._drop_forgotten(entry)

    async def _read(self, entries: list[_Entry]) -> list[_Entry]:
        """Take what is on disk; the others are returned."""
        kept, files = kv_files_of(self._thread.engine), self._files
        if kept is None or files is None:
            return entries
        missing = []
        for entry in entries:
            tensors = await asyncio.to_thread(files.read, entry.token_ids)
            if tensors is None:
                missing.append(entry)
            else:
                entry.source = "disk"
                entry.ready.set_result(await self._thread.call(_adopting(kept, tensors)))
        return missing

    async def _compute(self, entries: list[_Entry]) -> None:
        job = PrefillJob(self._thread.engine, [entry.token_ids for entry in entries])
        try:
            done = await self._thread.submit_group(job).future
        except BaseException:
            await self._thread.call(job.close)
            raise
        for entry, session in zip(entries, done.value, strict=True):
            self._ready(entry, session)

    async def _write(self, entry: _Entry, files: DocumentFiles) -> None:
        kept = kv_files_of(self._thread.engine)
        try:
            async with self._writing:
                if kept is not None and not self._is_forgotten(entry):
                    tensors = await self._thread.call(_exporting(kept, entry.ready.result()))
                    await asyncio.to_thread(files.write, entry.token_ids, tensors)
        finally:
            self._release(entry)

    def _release(self, entry: _Entry) -> None:
        entry.users -= 1
        self._drop_forgotten(entry)

    def _drop_forgotten(self, entry: _Entry) -> None:
        """Evict what was to be forgotten and is used by nobody."""
        idle = not entry.users and entry.ready.done() and self._entries.get(entry.key) is entry
        if idle and self._is_forgotten(entry):
            self._evict(entry)

    def _is_forgotten(self, entry: _Entry) -> bool:
        return asyncio.get_running_loop().time() < self._forgotten.get(entry.key, 0.0)

    def _evict(self, entry: _Entry) -> asyncio.Future[None]:
        self._forget(entry)
        return self._thread.call(entry.ready.result().close)

    def _forget(self, entry: _Entry) -> None:
        self.bytes_in_use -= entry.size
        self._entries.pop(entry.key, None)


@dataclass(slots=True, eq=False)
class _Entry:
    """A document in memory, or on its way there. `users` hold it; `ready` brings its session."""

    key: str
    token_ids: tuple[int, ...]
    size: int
    ready: asyncio.Future[Session]
    users: int = 0
    source: Source = "computed"


def _adopting(files: KvFiles, tensors: Any) -> Callable[[], Session]:
    return lambda: files.adopt(tensors)


def _exporting(files: KvFiles, session: Session) -> Callable[[], Any]:
    return lambda: files.export(session)
