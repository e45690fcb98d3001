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
from typing import Any, Literal

from tandem.backends.interface import Session
from tandem.core.errors import ResourceExhausted, Unavailable
from tandem.net.tenant import Tenant
from tandem.runtime.engine_thread import EngineThread
from tandem.two_sided.decoding.document_files import DocumentFiles, document_hash
from tandem.two_sided.decoding.document_jobs import PrefillJob
from tandem.two_sided.protocol.decoder_messages import ContextDocument

FORGOTTEN_FOR_S = 900.0
"""For how long a document that was forgotten is not kept again; longer than requests take."""

MAX_FORGOTTEN = 65_536
"""Hashes remembered for that: some 10 MB."""

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

    def __len__(self) -> int:
        return len(self._until_s)

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
    hashes of the documents that it is joined of, each as it is alone; none: it is one. A joined
    text goes when one of them is forgotten, and unless it is an import with its last user; it is
    never on disk."""

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


@dataclass(frozen=True, slots=True)
class HeldDocument:
    """A document to fork from, while it is held."""

    session: Session
    source: Source


@dataclass(slots=True, eq=False)
class _Entry:
    """A text in memory, or on its way there. `users` hold it; `ready` brings its session."""

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
        self._tasks: set[asyncio.Task[None]] = set()
        self._writing = asyncio.Lock()
        self._forgotten = ForgottenDocuments()

    @asynccontextmanager
    async def held(self, texts: Sequence[StoredText]) -> AsyncIterator[list[HeldDocument]]:
        """Hold the texts, in order, in memory until the context is left: read from disk, or
        computed in one pass. Raises ResourceExhausted where they do not fit beside what others
        hold."""
        taken: list[_Entry] = []
        try:
            fresh = self._take(texts, taken)
            if fresh:
                self._start(self._fill(fresh))
            sessions = [await asyncio.shield(entry.ready) for entry in taken]
            new = set(map(id, fresh))
            sources = [
                entry.source if id(entry) in new or entry.importer is not None else "memory"
                for entry in taken
            ]
            for source in sources:
                self._on_lookup(source)
            held = zip(sessions, sources, strict=True)
            yield [HeldDocument(session, source) for session, source in held]
        finally:
            for entry in taken:
                self._release(entry)

    async def forget(self, documents: Sequence[tuple[int, ...]], owner: str = "") -> int:
        """Keep nothing of these documents of a owner's beyond their present users; how many there
        were. Requests
        under way may bring one again, which is not kept for `FORGOTTEN_FOR_S`. Raises
        Unavailable."""
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
        entry = self._reserve(text, text.importer)
        placement_policy: list[asyncio.Task[None]] = []

        async def take_in(tensors: Any) -> None:
            placement_policy.append(self._start(self._place(entry, tensors)))
            await asyncio.shield(placement_policy[0])

        try:
            yield take_in
        finally:
            if not placement_policy:
                self.bytes_in_use -= entry.size

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
        try:
            for text in texts:
                entry = self._cached_entry(text)
                if entry is None:
                    entry = self._reserve(text)
                    fresh.append(entry)
                self._entries.pop(entry.key, None)  # the most recently used one from now on
                self._entries[entry.key] = entry
                entry.users += 1
                taken.append(entry)
        except ResourceExhausted:
            for entry in fresh:
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

    def _reserve(self, text: StoredText, importer: Tenant | None = None) -> _Entry:
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
        ready: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
        return _Entry(text, importer, size, ready)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run it to its end even if its caller leaves: another may wait for it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _place(self, entry: _Entry, tensors: Any) -> None:
        """Add an imported document, unless it came or was computed meanwhile."""
        kept = self._thread.engine.kv_files
        thread = self._thread
        assert kept is not None, "there are tensors"
        try:
            session = await thread.opened(partial(kept.adopt, tensors))
        except BaseException:
            self.bytes_in_use -= entry.size
            raise
        if entry.key in self._entries or (None, entry.text.hash) in self._entries:
            self.bytes_in_use -= entry.size
            await thread.call(session.close)
            return
        self._entries[entry.key] = entry
        entry.source = "imported"
        entry.ready.set_result(session)
        self._drop_forgotten(entry)

    def _ready(self, entry: _Entry, session: Session) -> None:
        """Write a document that was computed to disk."""
        entry.ready.set_result(session)
        if self._files is not None and not entry.text.parts:
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
                    entry.ready.exception()  # retrieved, even if nobody waits any more
        for entry in fresh:
            self._drop_forgotten(entry)

    async def _read(self, entries: list[_Entry]) -> list[_Entry]:
        """Load what is on disk; returns the others."""
        kept = self._thread.engine.kv_files
        files = self._files
        if kept is None or files is None:
            return entries
        missing = []
        for entry in entries:
            tensors = await asyncio.to_thread(files.read, entry.text.token_ids, entry.text.owner)
            if tensors is None:
                missing.append(entry)
            else:
                entry.source = "disk"
                entry.ready.set_result(await self._thread.opened(partial(kept.adopt, tensors)))
        return missing

    async def _compute(self, entries: list[_Entry]) -> None:
        job = PrefillJob(self._thread.engine, [entry.text.token_ids for entry in entries])
        done = await self._thread.submit(job).future
        for entry, session in zip(entries, done.value, strict=True):
            self._ready(entry, session)

    async def _write(self, entry: _Entry, files: DocumentFiles) -> None:
        kept = self._thread.engine.kv_files
        try:
            async with self._writing:
                if kept is not None and not self._is_forgotten(entry):
                    tensors = await self._thread.call(partial(kept.export, entry.ready.result()))
                    await asyncio.to_thread(
                        files.write, entry.text.token_ids, tensors, entry.text.owner
                    )
        finally:
            self._release(entry)

    def _release(self, entry: _Entry) -> None:
        entry.users -= 1
        self._drop_forgotten(entry)

    def _drop_forgotten(self, entry: _Entry) -> None:
        idle = not entry.users and entry.ready.done() and self._entries.get(entry.key) is entry
        # What several documents were found together tells what was asked: it is for one request.
        passing = entry.text.parts and entry.importer is None
        if idle and (passing or self._is_forgotten(entry)):
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
