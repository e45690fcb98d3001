"""The cache of documents' keys and values, in memory or on disk, computed once or imported. They
are a full, read-only engine session, from which sequences fork without copying. A document in use
is never evicted; together they stay within the budget, else they are refused. Invariant: an import
serves its importer alone, where it says that one may stand in; it never becomes the store's own
and never reaches the disk. Used on the event loop."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, takewhile
from typing import Any, Literal, TypeVar

from tandem.backends.interface import Session
from tandem.core.errors import ResourceExhausted, Unavailable
from tandem.net.tenant import Tenant
from tandem.runtime.engine_thread import EngineThread
from tandem.runtime.prefill_job import PrefillJob
from tandem.two_sided.decoding.document_files import DocumentFiles, document_hash
from tandem.two_sided.protocol.messages import ContextDocument

FORGOTTEN_FOR_S = 900.0
"""For how long a document that was forgotten is not kept again; longer than requests take."""

MAX_FORGOTTEN = 65_536
"""Hashes remembered for that: some 10 MB."""

Value = TypeVar("Value")

TakeIn = Callable[[Any], Awaitable[None]]
"""Given what `KvFiles.adopt` takes."""

Source = Literal["memory", "disk", "computed", "imported"]
"""Where a document's keys and values came from; computed for another request: memory."""


class ForgottenDocuments:
    """Hashes of documents that are not to be kept, each for `FORGOTTEN_FOR_S`; of more than
    `most`, every document counts as forgotten for as long, which gives nothing away."""

    def __init__(self, most: int = MAX_FORGOTTEN) -> None:
        self._most = most
        self._until_s: dict[str, float] = {}  # the first to be over first
        self._all_until_s = 0.0

    def add(self, hashes: Iterable[str], now: float) -> None:
        while self._until_s and next(iter(self._until_s.values())) <= now:
            del self._until_s[next(iter(self._until_s))]
        for document in hashes:
            self._until_s.pop(document, None)
            self._until_s[document] = now + FORGOTTEN_FOR_S
        if len(self._until_s) > self._most:
            self._until_s.clear()
            self._all_until_s = now + FORGOTTEN_FOR_S

    def has(self, document: str, now: float) -> bool:
        return now < max(self._all_until_s, self._until_s.get(document, 0.0))


@dataclass(frozen=True)
class StoredText:
    """A document as the model reads it, or several in one sequence.

    `importer`: whose import may stand in for it; None: nobody's. `owner`: whose document it is,
    which is computed and kept apart from the same text of others; empty: the operator's. `parts`:
    hashes of the documents that an import has, each as it is alone: it goes when one of them is
    forgotten."""

    token_ids: tuple[int, ...]
    importer: Tenant | None = None
    owner: str = ""
    parts: frozenset[str] = frozenset()

    @cached_property
    def hash(self) -> str:
        return document_hash(self.token_ids, self.owner)


def stored_text(token_ids: tuple[int, ...], document: ContextDocument, caller: str) -> StoredText:
    """Return a caller's document, which reads as these ids."""
    importer = Tenant(caller, document.imported_for) if document.imported else None
    return StoredText(token_ids, importer, document.owner)


def joined_ids(documents: Sequence[StoredText]) -> tuple[int, ...]:
    """Return the documents one after another, the first with what begins it."""
    return tuple(chain.from_iterable(document.token_ids for document in documents))


@dataclass(slots=True, eq=False)
class _Entry:
    """A text in memory, or on its way there. `users` hold it, who makes it too; `ready` brings its
    session."""

    text: StoredText
    importer: Tenant | None
    """Whose import it is; None: computed here."""
    size: int
    ready: asyncio.Future[Session]
    users: int = 0
    source: Source = "computed"

    @property
    def key(self) -> tuple[Tenant | None, str]:
        return self.importer, self.text.hash

    @property
    def hashes(self) -> frozenset[str]:
        """Its own, and those of its parts."""
        return self.text.parts | {self.text.hash}


class DocumentStore:
    """`on_lookup` is called with the source of each requested document."""

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
        self._entries: dict[tuple[Tenant | None, str], _Entry] = {}  # the least recently used first
        self._tasks: set[asyncio.Task[Any]] = set()
        self._writing = asyncio.Lock()
        self._forgotten = ForgottenDocuments()

    @asynccontextmanager
    async def held(self, texts: Sequence[StoredText]) -> AsyncIterator[list[Session]]:
        """Hold the texts, in order, in memory until the context is left: read from disk, or
        computed. Raises ResourceExhausted where they do not fit beside what others hold."""
        taken: list[_Entry] = []
        try:
            fresh = self._take(texts, taken)
            sessions = [await asyncio.shield(entry.ready) for entry in taken]
            for entry in taken:
                made = entry in fresh or entry.importer is not None
                self._on_lookup(entry.source if made else "memory")
            yield sessions
        finally:
            for entry in taken:
                self._release(entry)

    @asynccontextmanager
    async def joined(self, texts: Sequence[StoredText]) -> AsyncIterator[Session]:
        """Hold one sequence of several texts until the context is left. Its beginning is from the
        store; what follows is computed for this context alone, since which documents were found
        together tells what was asked. Raises as `held`."""
        # What is held is looked for and taken without a pause, in which it could be evicted.
        begun = self._cached_beginning(texts)
        async with self.held([begun]) as (begin,):
            rest = joined_ids(texts)[len(begun.token_ids) :]
            if not rest:
                yield begin
                return
            thread = self._thread
            length = begin.length + len(rest)
            session = await thread.opened(lambda: thread.engine.fork(begin, begin.length, length))
            handle = thread.submit(PrefillJob(session, begin.length, rest))
            try:
                await handle.future
                yield session
            finally:
                handle.cancel()
                await thread.close(session.close)

    def _cached_beginning(self, texts: Sequence[StoredText]) -> StoredText:
        """Return the imported texts that stand at the beginning, where their sequence is there,
        else the first."""
        imported = list(takewhile(lambda text: text.importer is not None, texts))
        while len(imported) > 1:
            together = StoredText(joined_ids(imported), imported[0].importer)
            if self.has(together):
                return together
            imported.pop()
        return texts[0]

    async def forget(self, documents: Sequence[tuple[int, ...]], owner: str = "") -> int:
        """Keep nothing of these documents of an owner's beyond their present users; how many there
        were. Requests under way may bring one again, which is not kept for `FORGOTTEN_FOR_S`.
        Raises Unavailable."""
        now = asyncio.get_running_loop().time()
        keys = {document_hash(token_ids, owner) for token_ids in documents}
        self._forgotten.add(keys, now)
        entries = [entry for entry in self._entries.values() if entry.hashes & keys]
        there = {key for entry in entries for key in entry.hashes & keys}
        for entry in entries:
            self._drop_forgotten(entry)
        if self._files is not None:
            async with self._writing:  # what is being written is there to be removed then
                try:
                    there |= await asyncio.to_thread(self._files.remove, documents, owner)
                except OSError as error:
                    why = f"a document's keys and values stay on disk: {error.strerror or error}"
                    raise Unavailable(why) from error
        return len(there)

    @asynccontextmanager
    async def room(self, text: StoredText) -> AsyncIterator[TakeIn]:
        """Hold room for a text that was computed elsewhere, until the context is left or what is
        yielded has been called with its keys and values. It then serves its importer alone. Raises
        ResourceExhausted as `held`."""
        size = self._reserve(text)

        async def take_in(tensors: Any) -> None:
            nonlocal size
            placed = self._start(self._place(text, tensors))
            size = 0  # the task's own from now on
            await asyncio.shield(placed)

        try:
            yield take_in
        finally:
            self.bytes_in_use -= size

    def has(self, text: StoredText) -> bool:
        """Return whether a text is probably cached, as the store's own or as an import of its
        importer: its file may turn out to be corrupt."""
        return self._cached_entry(text) is not None or self._on_disk(text)

    def _on_disk(self, text: StoredText) -> bool:
        files = self._files
        return files is not None and files.path(text.token_ids, text.owner).exists()

    async def close(self) -> None:
        """Wait for what is being computed and written, then free everything."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        with suppress(Unavailable):  # an engine that is stuck keeps them until the process ends
            await asyncio.gather(*map(self._evict, list(self._entries.values())))

    def _take(self, texts: Iterable[StoredText], taken: list[_Entry]) -> list[_Entry]:
        """Hold every text, and return those that are to be made."""
        fresh: list[_Entry] = []
        turn = asyncio.Lock()  # one after the other: the bits depend on no other of them
        try:
            for text in texts:
                entry = self._cached_entry(text)
                if entry is None:
                    size = self._reserve(text)
                    entry = _Entry(text, None, size, asyncio.Future(), users=1)
                    entry.ready = self._start(self._made(entry, turn))
                    entry.ready.add_done_callback(partial(self._release, entry))
                    fresh.append(entry)
                self._entries.pop(entry.key, None)  # the most recently used one from now on
                self._entries[entry.key] = entry
                entry.users += 1
                taken.append(entry)
        except ResourceExhausted:
            for entry in fresh:
                entry.ready.cancel()
                self._forget(entry)
            raise
        return fresh

    def _cached_entry(self, text: StoredText) -> _Entry | None:
        """Return the store's own entry, if any; an import only where there is none, not on disk
        either."""
        local = self._entries.get((None, text.hash))
        if local is not None or text.importer is None or self._on_disk(text):
            return local
        return self._entries.get((text.importer, text.hash))

    def _reserve(self, text: StoredText) -> int:
        """Take room for a text, of the least recently used ones if need be; returns its bytes."""
        size = len(text.token_ids) * self._thread.engine.kv_bytes_per_token
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
        return size

    def _start(self, work: Coroutine[Any, Any, Value]) -> asyncio.Task[Value]:
        """Run it to its end even if its caller leaves: another may wait for it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, even if nobody waits any more

    async def _place(self, text: StoredText, tensors: Any) -> None:
        """Add an imported document, unless it came or was computed meanwhile."""
        kept = self._thread.engine.kv_files
        assert kept is not None, "there are tensors"
        size = len(text.token_ids) * self._thread.engine.kv_bytes_per_token
        entry = _Entry(text, text.importer, size, asyncio.Future(), source="imported")
        try:
            session = await self._thread.opened(partial(kept.adopt, tensors))
        except BaseException:
            self.bytes_in_use -= size
            raise
        if entry.key in self._entries or (None, text.hash) in self._entries:
            self.bytes_in_use -= size
            await self._thread.call(session.close)
            return
        entry.ready.set_result(session)
        self._entries[entry.key] = entry
        self._drop_forgotten(entry)

    async def _made(self, entry: _Entry, turn: asyncio.Lock) -> Session:
        """Read a document from disk, or compute it in its turn and write it there."""
        try:
            session = await self._read(entry.text)
            if session is not None:
                entry.source = "disk"
                return session
            async with turn:
                session = await self._computed(entry.text.token_ids)
        except BaseException:
            self._forget(entry)
            raise
        entry.users += 1  # until it is written
        self._start(self._write(entry, session))
        return session

    async def _read(self, text: StoredText) -> Session | None:
        kept = self._thread.engine.kv_files
        if kept is None or self._files is None:
            return None
        tensors = await asyncio.to_thread(self._files.read, text.token_ids, text.owner)
        return None if tensors is None else await self._thread.opened(partial(kept.adopt, tensors))

    async def _computed(self, token_ids: tuple[int, ...]) -> Session:
        thread = self._thread
        session = await thread.opened(lambda: thread.engine.open(len(token_ids)))
        try:
            await thread.submit(PrefillJob(session, 0, token_ids)).future
        except BaseException:
            await thread.close(session.close)
            raise
        return session

    async def _write(self, entry: _Entry, session: Session) -> None:
        kept = self._thread.engine.kv_files
        try:
            if kept is not None and self._files is not None:
                async with self._writing:
                    if not self._is_forgotten(entry):
                        tensors = await self._thread.call(partial(kept.export, session))
                        text = entry.text
                        write = self._files.write
                        await asyncio.to_thread(write, text.token_ids, tensors, text.owner)
        finally:
            self._release(entry)

    def _release(self, entry: _Entry, made: object = None) -> None:
        """Hold an entry no more, as one of its users or once it was `made`."""
        entry.users -= 1
        self._drop_forgotten(entry)

    def _drop_forgotten(self, entry: _Entry) -> None:
        idle = not entry.users and entry.ready.done() and self._entries.get(entry.key) is entry
        if idle and self._is_forgotten(entry):
            self._evict(entry)

    def _is_forgotten(self, entry: _Entry) -> bool:
        now = asyncio.get_running_loop().time()
        return any(self._forgotten.has(each, now) for each in entry.hashes)

    def _evict(self, entry: _Entry) -> asyncio.Future[None]:
        self._forget(entry)
        return self._thread.call(entry.ready.result().close)

    def _forget(self, entry: _Entry) -> None:
        self.bytes_in_use -= entry.size
        self._entries.pop(entry.key, None)
