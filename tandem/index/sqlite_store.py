"""Documents in a folder of this machine, in one SQLite database that one process owns.

Invariants: what `commit` returned from is in the database file, synced; nothing is served whose
checksum was not compared. Each commit goes through the write-ahead log and is folded into the
database file before it returns: SQLite takes a damaged frame of a log for the log's end, so a log
may hold only what nobody was told of. Opening compares the structure, every checksum and every
reference, and refuses a folder that is not whole.
"""

import json
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from tandem.core.errors import ResourceExhausted, Unavailable
from tandem.index.folder import LOCK, FolderLock, make_private
from tandem.index.lexical import LexicalIndex
from tandem.index.owners import (
    OPERATOR,
    Collection,
    DocumentQuota,
    ListedDocument,
    OwnerUsage,
    check_quota,
    collection_of,
)
from tandem.index.records import Content, FolderDamaged, FolderMismatch
from tandem.index.sqlite_database import (
    connect,
    connect_to_read,
    create_database,
    errors_of,
    fold_log,
    lacks_room,
    meta,
    open_database,
    schema_version,
    set_meta,
    transaction,
)
from tandem.index.store import (
    Change,
    Manifest,
    Numbered,
    StoredChunk,
    StoredText,
    StoreSize,
    changes_of,
    check_owned,
    checked_content,
    checked_text,
    document_checksum,
    room_of,
    text_row,
    vector_row,
)
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

DATABASE = "documents.db"
_LOADED_TOGETHER = 256
_TEXT_COLUMNS = "hash, title, text, spans, text_checksum"
_CONTENT_COLUMNS = f"first, {_TEXT_COLUMNS}, vectors, vectors_checksum"
_OWNED = "FROM document JOIN content ON content = first WHERE owner = :owner"
_SIZE = "length(title) + length(text)"
"""As quotas count a document; SQLite does not read a blob to tell its length."""


@dataclass(frozen=True, slots=True)
class _DocumentRow:
    """A document, and the first number of the content that it means."""

    owner: str
    id: str
    first: int


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest; None for a folder that is empty or not there. Raises FolderMismatch or
    FolderDamaged."""
    path = folder / DATABASE
    if path.exists():
        with errors_of(path), closing(_connect_somehow(path)) as database:
            schema_version(database, path)
            return Manifest(**json.loads(meta(database, "manifest", path)))
    names = {entry.name for entry in folder.iterdir()} if folder.exists() else set()
    ours = (LOCK, f"{DATABASE}.new", f"{DATABASE}.new-journal")
    if strangers := sorted(names.difference(ours)):
        why = f"is not empty ({strangers[0]}) and has no {DATABASE}, so it is not an index"
        raise FolderMismatch(f"{folder}: {why}; choose another folder")
    return None


def _connect_somehow(path: Path) -> sqlite3.Connection:
    """Return a connection, without room on the disk one that only reads."""
    try:
        return connect(path)
    except sqlite3.Error as error:
        if not lacks_room(error):
            raise
        return connect_to_read(path)


def verify_folder(folder: Path) -> StoreSize:
    """Compare everything that the folder holds; how much it is. Raises what opening it raises."""
    manifest = read_manifest(folder)
    if manifest is None:
        raise FolderMismatch(f"{folder}: is not an index")
    with closing(SqliteStore(folder, manifest)) as store:
        for _ in store.changes():
            pass
        return store.size()


class SqliteStore:
    """See `IndexStore`. `commit`, `compact` and `close` are for one caller at a time. A folder that
    is opened on a full disk can be read; the first change for which there is room makes it as
    others."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """Open the store in a folder, which is created if there is none. Raises FolderInUse,
        FolderMismatch, FolderDamaged, ResourceExhausted, Unavailable or OSError."""
        read_manifest(folder)  # a folder of something else is left alone
        with errors_of(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            make_private(folder, 0o700)
            self._lock = FolderLock(folder)
        self.manifest = manifest
        self._path = folder / DATABASE
        self._lexical = LexicalIndex()
        self._idle: list[sqlite3.Connection] = []
        self._only_connection = threading.RLock()
        self._reads_only = False  # all share `_writer` then, one at a time
        self._documents = self._contents = self._generation = self._next = 0
        try:
            if (stored := read_manifest(folder)) is not None:
                stored.check_wanted(manifest, str(folder))
            with errors_of(self._path):
                if stored is None:
                    create_database(self._path, manifest)
                for file in folder.glob(f"{DATABASE}*"):
                    make_private(file, 0o600)
                self._writer = self._opened()
                self._count()
        except BaseException:
            self._lock.close()
            raise
        self._pending: deque[Iterator[Change]] = deque([self._load()])

    def hashes(self, document_ids: Iterable[str], owner: str = OPERATOR) -> dict[str, str]:
        statement = (
            "SELECT hash FROM document JOIN content ON content = first WHERE id = ? AND owner = ?"
        )
        return self._select_each(statement, document_ids, owner)

    def sizes(self, document_ids: Iterable[str], owner: str = OPERATOR) -> dict[str, int]:
        statement = f"SELECT {_SIZE} {_OWNED} AND id = :key"
        with errors_of(self._path), self._reading() as database:
            rows = {
                key: database.execute(statement, {"owner": owner, "key": key}).fetchone()
                for key in document_ids
            }
        return {key: int(row[0]) for key, row in rows.items() if row is not None}

    def holds(self, content_hashes: Iterable[str]) -> set[str]:
        return set(self._select_each("SELECT hash FROM content WHERE hash = ?", content_hashes))

    def commit(
        self,
        puts: Mapping[str, str],
        contents: Sequence[Content],
        removed: Iterable[str],
        owner: str = OPERATOR,
        quota: DocumentQuota | None = None,
    ) -> bool:
        firsts = np.cumsum([self._next, *map(room_of, contents)]).tolist()
        new = list(zip(firsts[:-1], contents, strict=True))
        self._allow_changes()
        with errors_of(self._path), transaction(self._writer):
            before = OwnerUsage() if quota is None else _usage(self._writer, owner)
            left = [self._remove(owner, document_id) for document_id in chain(removed, puts)]
            for first, content in new:
                self._insert(first, content)
            for document_id, content_hash in puts.items():
                self._put(owner, document_id, content_hash)
            if quota is not None:
                check_quota(owner, quota, before, _usage(self._writer, owner))
            gone = self._delete_unmeant({first for first in left if first is not None})
            set_meta(self._writer, "generation", str(self._generation + 1))
        self._generation += 1
        self._next = firsts[-1]
        self._documents += len(puts) - sum(first is not None for first in left)
        self._contents += len(new) - len(gone)
        self._pending.append(self._apply(new, gone))
        self._fold_log()
        return True

    def changes(self) -> Iterator[Change]:
        while self._pending:  # which another thread may add to meanwhile
            yield from self._pending.popleft()

    def rank(self, query: str, count: int, tenant: str = OPERATOR) -> list[tuple[int, float]]:
        return self._lexical.rank(query, count, tenant)

    def chunks(self, numbers: Iterable[int]) -> dict[int, StoredChunk]:
        chunks: dict[int, StoredChunk] = {}
        texts: dict[int, StoredText] = {}
        with errors_of(self._path), self._reading() as database:
            for number in numbers:
                first = max((first for first in texts if first <= number), default=None)
                if first is None or number - first >= len(texts[first].spans):
                    first = self._read_text(database, number, texts)
                if first is not None:
                    chunks[number] = texts[first].chunk(number - first)
        return chunks

    def documents(
        self, document_ids: Iterable[str] | None = None, owner: str | None = OPERATOR
    ) -> Iterator[tuple[str, Content]]:
        with errors_of(self._path), self._reading() as database:
            for row in self._checked_documents(database, document_ids, owner):
                for _, content in self._contents_where(database, "first = ?", row.first):
                    yield row.id, content

    def listed(self, owner: str, after: str, count: int) -> list[ListedDocument]:
        statement = f"SELECT id, {_SIZE}, hash {_OWNED} AND id > :after ORDER BY id LIMIT :count"
        arguments = {"owner": owner, "after": after, "count": count}
        with errors_of(self._path), self._reading() as database:
            rows = database.execute(statement, arguments).fetchall()
        return [ListedDocument(name, size, collection_of(key).shared) for name, size, key in rows]

    def usage(self, owner: str) -> OwnerUsage:
        with errors_of(self._path), self._reading() as database:
            return _usage(database, owner)

    def size(self) -> StoreSize:
        log_path = self._path.with_name(f"{DATABASE}-wal")
        pending = log_path.stat().st_size if log_path.exists() else 0
        return StoreSize(
            documents=self._documents,
            texts=self._contents,
            bytes=self._path.stat().st_size,
            pending_bytes=pending,
            generation=self._generation,
        )

    def compact(self) -> None:
        self._allow_changes()
        with errors_of(self._path):
            self._writer.execute("PRAGMA incremental_vacuum").fetchall()
        self._fold_log()

    def watch(self, changed: Callable[[], None]) -> None:
        """Do nothing: one process owns the folder, so nothing else changes it."""

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()
        self._writer.close()
        self._lexical.close()
        self._lock.close()

    def _opened(self) -> sqlite3.Connection:
        """Open the database, on a full disk for reading alone."""
        try:
            return open_database(self._path)
        except sqlite3.Error as error:
            if not lacks_room(error):
                raise
            log.warning("no room: documents can be read, but not changed", path=str(self._path))
            self._reads_only = True
            return open_database(self._path, reading=True)

    def _allow_changes(self) -> None:
        """Open the database for changes, if it was opened on a full disk. Raises ResourceExhausted
        while that still is."""
        if not self._reads_only:
            return
        with errors_of(self._path), self._only_connection:
            self._writer.close()
            try:
                self._writer = open_database(self._path)
            except BaseException:
                self._writer = open_database(self._path, reading=True)
                raise
            self._reads_only = False

    def _count(self) -> None:
        database = self._writer
        self._generation = int(meta(database, "generation", self._path))
        (self._documents,) = database.execute("SELECT count(*) FROM document").fetchone()
        (self._contents,) = database.execute("SELECT count(*) FROM content").fetchone()
        last = database.execute(
            "SELECT first + max(1, length(spans) / 8) FROM content ORDER BY first DESC LIMIT 1"
        ).fetchone()
        self._next = last[0] if last else 0

    def _load(self) -> Iterator[Change]:
        """Yield everything that is stored, checked against its checksums."""
        with errors_of(self._path), self._reading() as database:
            last = -1
            while group := self._contents_where(
                database, f"first > ? ORDER BY first LIMIT {_LOADED_TOGETHER}", last
            ):
                owner_of = self._owners_between(database, group[0][0], group[-1][0])
                if unmeant := [first for first, _ in group if first not in owner_of]:
                    raise FolderDamaged(f"{self._path}: no document means content {unmeant[0]}")
                for first, content in group:
                    check_owned(owner_of[first], content.content_hash, str(self._path))
                last = group[-1][0]
                yield from self._apply(group, [])

    def _apply(self, new: Sequence[Numbered], gone: Sequence[Numbered]) -> Iterator[Change]:
        """Let `rank` know of a change, and tell it."""
        for contents, added in ((new, True), (gone, False)):
            for collection, those in _by_collection(contents).items():
                chunks = _indexed_chunks(those)
                self._lexical.change(chunks if added else (), () if added else chunks, collection)
        left = {first: (content.collection, len(content.spans)) for first, content in gone}
        yield from changes_of(new, left, self.manifest.dimension)

    def _remove(self, owner: str, document_id: str) -> int | None:
        """Remove an id; return the content that it meant, None where there was no such id."""
        statement = "DELETE FROM document WHERE owner = ? AND id = ? RETURNING content"
        row = self._writer.execute(statement, (owner, document_id)).fetchone()
        return None if row is None else int(row[0])

    def _insert(self, first: int, content: Content) -> None:
        row = (first, *text_row(content), *vector_row(content, self.manifest.dimension))
        places = ", ".join("?" * len(row))
        statement = f"INSERT INTO content ({_CONTENT_COLUMNS}) VALUES ({places})"
        self._writer.execute(statement, row)

    def _put(self, owner: str, document_id: str, content_hash: str) -> None:
        check_owned(owner, content_hash, str(self._path))
        statement = "SELECT first FROM content WHERE hash = ?"
        row = self._writer.execute(statement, (content_hash,)).fetchone()
        if row is None:
            raise FolderDamaged(f"{self._path}: the text {content_hash} is missing")
        checksum = document_checksum(owner, document_id, row[0])
        statement = "INSERT INTO document (owner, id, content, checksum) VALUES (?, ?, ?, ?)"
        self._writer.execute(statement, (owner, document_id, row[0], checksum))

    def _delete_unmeant(self, firsts: Iterable[int]) -> list[Numbered]:
        """Delete and return those of these contents that no id means any more."""
        unmeant = "first = ? AND NOT EXISTS (SELECT 1 FROM document WHERE content = first)"
        contents = [self._contents_where(self._writer, unmeant, first) for first in firsts]
        gone = list(chain.from_iterable(contents))
        for first, _ in gone:
            self._writer.execute("DELETE FROM content WHERE first = ?", (first,))
        return gone

    def _contents_where(
        self, database: sqlite3.Connection, condition: str, value: object
    ) -> list[Numbered]:
        statement = f"SELECT {_CONTENT_COLUMNS} FROM content WHERE {condition}"
        place = str(self._path)
        dimension = self.manifest.dimension
        return [
            (first, checked_content(row, dimension, place))
            for first, *row in database.execute(statement, (value,)).fetchall()
        ]

    def _read_text(
        self, database: sqlite3.Connection, number: int, texts: dict[int, StoredText]
    ) -> int | None:
        """Add the content with this chunk, under its oldest id, to `texts`; its first number or
        None."""
        record = database.execute(
            f"SELECT first, owner, id, document.checksum, {_TEXT_COLUMNS} FROM content"
            " JOIN document ON content = first"
            " WHERE first = (SELECT max(first) FROM content WHERE first <= ?)"
            " ORDER BY seq LIMIT 1",
            (number,),
        ).fetchone()
        if record is None:
            return None
        first, owner, document_id, checksum, *row = record
        self._check_document(owner, document_id, first, checksum)
        title, whole, spans = checked_text(row, str(self._path))
        check_owned(owner, row[0], str(self._path))
        text = StoredText(
            owner=owner, document_id=document_id, title=title, text=whole, spans=spans
        )
        if number - first >= len(text.spans):
            return None
        texts[first] = text
        return int(first)

    def _checked_documents(
        self,
        database: sqlite3.Connection,
        document_ids: Iterable[str] | None,
        owner: str | None,
    ) -> list[_DocumentRow]:
        """Return the rows of these ids, or of all, of an owner or of everybody, in the order in
        which they were put. Raises FolderDamaged."""
        select = "SELECT seq, owner, id, content, checksum FROM document"
        whose, parameters = ("owner = ?", [owner]) if owner is not None else ("?", [True])
        if document_ids is None:
            rows = database.execute(f"{select} WHERE {whose} ORDER BY seq", parameters).fetchall()
        else:
            statement = f"{select} WHERE {whose} AND id = ?"
            cursors = (database.execute(statement, [*parameters, key]) for key in document_ids)
            rows = sorted(set(chain.from_iterable(cursors)))
        for _, stored_owner, document_id, first, checksum in rows:
            self._check_document(stored_owner, document_id, first, checksum)
        return [_DocumentRow(owner, document_id, first) for _, owner, document_id, first, _ in rows]

    def _check_document(self, owner: str, document_id: str, first: int, checksum: int) -> None:
        if document_checksum(owner, document_id, first) != checksum:
            why = f"the document {document_id!r} is damaged; restore it from a copy"
            raise FolderDamaged(f"{self._path}: {why}")

    def _owners_between(
        self, database: sqlite3.Connection, first: int, last: int
    ) -> dict[int, str]:
        """Return the owners of these contents, from documents that are compared with their
        checksums: no document means a content that is not there."""
        statement = (
            "SELECT owner, id, content, checksum FROM document WHERE content BETWEEN ? AND ?"
        )
        owner_of: dict[int, str] = {}
        for owner, document_id, content, checksum in database.execute(statement, (first, last)):
            self._check_document(owner, document_id, content, checksum)
            owner_of[content] = owner
        return owner_of

    def _select_each(self, statement: str, keys: Iterable[str], *more: str) -> dict[str, str]:
        """Return the one column that `statement` selects for each key, where it finds a row."""
        with errors_of(self._path), self._reading() as database:
            rows = [(key, database.execute(statement, (key, *more)).fetchone()) for key in keys]
        return {key: row[0] for key, row in rows if row is not None}

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection that no other thread uses meanwhile."""
        if self._reads_only:
            with self._only_connection:
                if self._reads_only:
                    yield self._writer
                    return
        try:
            database = self._idle.pop()
        except IndexError:
            database = connect(self._path)
        try:
            yield database
        finally:
            self._idle.append(database)

    def _fold_log(self) -> None:
        """Fold the log into the database. The log is durable, so a failure here takes nothing back;
        the next change tries again."""
        try:
            with errors_of(self._path):
                if not fold_log(self._writer):
                    log.warning("a reader kept changes in the write-ahead log")
        except (FolderDamaged, ResourceExhausted, Unavailable) as error:
            log.warning("changes stay in the write-ahead log", reason=str(error))


def _usage(database: sqlite3.Connection, owner: str) -> OwnerUsage:
    statement = f"SELECT count(*), coalesce(sum({_SIZE}), 0) {_OWNED}"
    return OwnerUsage(*database.execute(statement, {"owner": owner}).fetchone())


def _by_collection(contents: Sequence[Numbered]) -> dict[Collection, list[Numbered]]:
    groups: dict[Collection, list[Numbered]] = {}
    for first, content in contents:
        groups.setdefault(content.collection, []).append((first, content))
    return groups


def _indexed_chunks(contents: Sequence[Numbered]) -> Iterator[tuple[int, str]]:
    for first, content in contents:
        for chunk in range(len(content.spans)):
            yield first + chunk, content.indexed_chunk(chunk)
