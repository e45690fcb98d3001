"""Documents in a folder of this machine, in one SQLite database that one process owns.

Invariants: what `commit` returned from is in the database file, synced; no text or vector is served
whose checksum was not compared. Each commit goes through the write-ahead log and is folded into the
database file before it returns: SQLite takes a damaged frame of a log for the log's end, so a log
may hold only what nobody was told of. Opening reads no text: it takes as long for a million.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from tandem.core.errors import ResourceExhausted, Unavailable
from tandem.index import lexical, words
from tandem.index.folder import LOCK, FolderLock, make_private
from tandem.index.owners import (
    OPERATOR,
    OPERATORS,
    Collection,
    DocumentQuota,
    ListedDocument,
    OwnerUsage,
    check_quota,
    collection_of,
)
from tandem.index.records import (
    Content,
    FolderDamaged,
    FolderMismatch,
    IndexStats,
    RankingOutdated,
    StoredChunk,
    Vectors,
)
from tandem.index.sqlite_database import (
    check_structure,
    check_version,
    connect,
    connect_to_read,
    create_database,
    errors_of,
    fold_log,
    lacks_room,
    meta,
    open_database,
    set_meta,
    transaction,
)
from tandem.index.store import (
    Found,
    Manifest,
    check_owned,
    checked_content,
    document_checksum,
    numbered_chunks,
    room_of,
    text_row,
)
from tandem.telemetry.logging import get_logger

if TYPE_CHECKING:
    from tandem.index.vectors import VectorIndex

log = get_logger(__name__)

DATABASE = "documents.db"
VECTORS_AT_ONCE = 32_768
"""Read at a time."""
ERASED_AT_ONCE = 5_000
"""Chunks of an index up to which a commit erases the words of what it removes: some tenths of a
second. Beyond, `compact` does."""
_CONTENT_COLUMNS = "hash, title, text, spans, content.checksum"
_OWNED = "FROM document JOIN content ON content = first WHERE owner = :owner"
_SIZE = "length(title) + length(text)"
"""As quotas count a document; SQLite does not read a blob to tell its length."""


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest; None for a folder that is empty or not there. Raises FolderMismatch or
    FolderDamaged."""
    path = folder / DATABASE
    if path.exists():
        with errors_of(path), closing(_connect_somehow(path)) as database:
            check_version(database, path)
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


def verify_folder(folder: Path) -> IndexStats:
    """Compare everything that the folder holds; how much it is. Raises what opening it raises."""
    manifest = read_manifest(folder)
    if manifest is None:
        raise FolderMismatch(f"{folder}: is not an index")
    with closing(SqliteStore(folder, manifest)) as store:
        store.verify()
        return store.stats()


class SqliteStore:
    """See `IndexStore`. `commit`, `compact` and `close` are for one caller at a time. A folder that
    is opened on a full disk can be read; the first change for which there is room makes it as
    others."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """Open the store in a folder, which is created if there is none. Raises FolderInUse,
        FolderMismatch, FolderDamaged, ResourceExhausted, Unavailable or OSError."""
        read_manifest(folder)  # a folder of something else is left alone
        self.manifest = manifest
        self._folder = folder
        self._path = folder / DATABASE
        self._idle: list[sqlite3.Connection] = []  # append and pop are atomic
        self._only_connection = threading.Lock()
        self._reads_only = False  # all share `_writer` then, one at a time
        self._vectors: dict[int, VectorIndex] = {}
        self._changing = threading.Lock()  # what `_vectors` are opened from
        with errors_of(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            make_private(folder, 0o700)
            self._lock = FolderLock(folder)
        try:
            if (stored := read_manifest(folder)) is not None:
                stored.check_wanted(manifest, str(folder))
            with errors_of(self._path):
                if stored is None:
                    create_database(self._path, manifest)
                for file in folder.glob(f"{DATABASE}*"):
                    make_private(file, 0o600)
                self._writer = self._opened()
        except BaseException:
            self._lock.close()
            raise
        try:
            with errors_of(self._path):
                database = self._writer
                if not self._reads_only:
                    self._settle_words()
                self._generation = int(meta(database, "generation", self._path))
                self._next = int(meta(database, "next", self._path))
                self._documents = _count(database, "document")
                self._texts = _count(database, "content")
                for each in lexical.every(database):
                    if each.collection == OPERATORS and manifest.dimension:
                        self._vector_index(each.id)  # which every search reads
        except BaseException:
            self.close()
            raise

    def hashes(self, document_ids: Iterable[str], owner: str = OPERATOR) -> dict[str, str]:
        statement = (
            "SELECT hash FROM document JOIN content ON content = first WHERE id = ? AND owner = ?"
        )
        return self._select_each(statement, document_ids, owner)

    def sizes(self, document_ids: Iterable[str], owner: str = OPERATOR) -> dict[str, int]:
        statement = (
            f"SELECT {_SIZE} FROM document JOIN content ON content = first"
            " WHERE id = ? AND owner = ?"
        )
        sizes = self._select_each(statement, document_ids, owner)
        return {document_id: int(size) for document_id, size in sizes.items()}

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
        self._allow_changes()
        with ExitStack() as changing:
            firsts = np.cumsum([self._next, *map(room_of, contents)]).tolist()
            change = _VectorChange()
            with errors_of(self._path), transaction(self._writer):
                before = OwnerUsage() if quota is None else _usage(self._writer, owner)
                left = [self._remove(owner, document_id) for document_id in chain(removed, puts)]
                for first, content in zip(firsts, contents, strict=False):
                    self._insert(first, content, change)
                for document_id, content_hash in puts.items():
                    self._put(owner, document_id, content_hash)
                if quota is not None:
                    check_quota(owner, quota, before, _usage(self._writer, owner))
                gone = self._delete_unmeant({first for first in left if first is not None}, change)
                set_meta(self._writer, "generation", str(self._generation + 1))
                set_meta(self._writer, "next", str(firsts[-1]))
                changing.enter_context(self._changing)  # a search may open vectors until now
            self._generation += 1
            self._next = firsts[-1]
            self._documents += len(puts) - sum(first is not None for first in left)
            self._texts += len(contents) - gone
            for collection in {*change.added, *change.gone}:
                if (index := self._vectors.get(collection)) is not None:
                    change.apply(collection, index)
        self._fold_log()
        return True

    def find(self, query: str, vector: Vectors | None, count: int, tenant: str = OPERATOR) -> Found:
        proposed: list[int] = []
        if vector is not None:
            with errors_of(self._path), self.reading() as database:
                searched = [each.id for each in lexical.visible(database, tenant)]
            with errors_of(self._path):
                for collection in searched:
                    proposed += self._vector_index(collection).search(vector, count)
        similarity: dict[int, float] = {}
        with errors_of(self._path), self.reading() as database:
            coverage = lexical.rank(database, query, count, tenant) if query else {}
            if vector is not None:
                similarity = self._similarities(database, [*proposed, *coverage], vector)
        if not similarity.keys() >= {*proposed}:
            raise RankingOutdated("a chunk is gone")
        if vector is not None and not similarity.keys() >= coverage.keys():
            self._damaged("a chunk has no vector; restore it from a copy")
        nearest = sorted({*proposed}, key=lambda number: (-similarity[number], number))[:count]
        return Found(nearest, similarity, coverage)

    def chunks(self, numbers: Iterable[int]) -> dict[int, StoredChunk]:
        chunks: dict[int, StoredChunk] = {}
        texts: dict[int, _Meant] = {}
        with errors_of(self._path), self.reading() as database:
            for number in numbers:
                first = max((each for each in texts if each <= number), default=-1)
                if first < 0 or number - first >= len(texts[first].content.spans):
                    first, texts[first] = self._read_meant(database, number)
                meant = texts[first]
                chunks[number] = meant.content.stored_chunk(
                    number - first, meant.owner, meant.document_id
                )
        return chunks

    def documents(
        self, document_ids: Iterable[str] | None = None, owner: str | None = OPERATOR
    ) -> Iterator[tuple[str, Content]]:
        with errors_of(self._path), self.reading() as database:
            rows = list(self._rows(database, document_ids, owner))
        for stored_owner, document_id, first in rows:
            with errors_of(self._path), self.reading() as database:
                content = self._content(database, first)
            if content is not None:  # else it was deleted meanwhile
                check_owned(stored_owner, content.content_hash, str(self._path))
                yield document_id, content

    def listed(self, owner: str, after: str, count: int) -> list[ListedDocument]:
        statement = f"SELECT id, {_SIZE}, hash {_OWNED} AND id > :after ORDER BY id LIMIT :count"
        arguments = {"owner": owner, "after": after, "count": count}
        with errors_of(self._path), self.reading() as database:
            rows = database.execute(statement, arguments).fetchall()
        return [ListedDocument(name, size, collection_of(key).shared) for name, size, key in rows]

    def usage(self, owner: str) -> OwnerUsage:
        with errors_of(self._path), self.reading() as database:
            return _usage(database, owner)

    def stats(self) -> IndexStats:
        log_path = self._path.with_name(f"{DATABASE}-wal")
        with errors_of(self._path), self.reading() as database:
            chunks = lexical.chunk_count(database)
        return IndexStats(
            documents=self._documents,
            texts=self._texts,
            chunks=chunks,
            log_bytes=log_path.stat().st_size if log_path.exists() else 0,
            snapshot_bytes=self._path.stat().st_size,
            generation=self._generation,
            dense="flat" if self.manifest.dimension else "none",
        )

    def compact(self) -> None:
        self._allow_changes()
        with errors_of(self._path):
            with transaction(self._writer):
                lexical.erase(self._writer, self._kept(self._writer))
            self._fold_log()
            self._writer.execute("PRAGMA incremental_vacuum").fetchall()
        self._fold_log()

    def verify(self) -> None:
        """Compare all that is stored with its checksums, and the words with the texts. Raises
        FolderDamaged."""
        with errors_of(self._path), self.reading() as database:
            check_structure(database, self._path)
            keys = {each.collection: each.id for each in lexical.every(database)}
            digest = 0
            owner_of = {first: owner for owner, _, first in self._rows(database, None, None)}
            for (first,) in database.execute("SELECT first FROM content"):
                content = self._content(database, first)
                if content is None or first not in owner_of:
                    self._damaged(f"no document means the text {first}")
                check_owned(owner_of[first], content.content_hash, str(self._path))
                key = keys.get(content.collection, -1)
                digest += lexical.digest_of(numbered_chunks(first, content), key)
            if lexical.digest(database) != digest % lexical.DIGESTS:
                self._damaged("the index of words is damaged; restore it from a copy")
            for (number,) in database.execute("SELECT number FROM vector"):
                self._stored_rows(database, [number])

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()
        self._writer.close()
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
            self._settle_words()
            self._reads_only = False

    def _settle_words(self) -> None:
        """Index all words anew if they were split by another version: to remove a text's words
        FTS5 is told which they were."""
        database = self._writer
        statement = "SELECT value FROM meta WHERE key = 'words'"
        if database.execute(statement).fetchone() == (words.VERSION,):
            return
        log.info("indexing words anew, as they are split otherwise now", path=str(self._path))
        with transaction(database):
            lexical.rebuild(database, self._kept(database))
            set_meta(database, "words", words.VERSION)
        fold_log(database)

    def _vector_index(self, collection: int) -> VectorIndex:
        """Return the index of a collection, which is read when it is first asked for, as the last
        commit left it."""
        from tandem.index.vectors import VectorIndex  # not for words alone

        if (known := self._vectors.get(collection)) is not None:
            return known
        with self._changing, self.reading() as database:
            if collection not in self._vectors:
                index = VectorIndex(self.manifest.dimension)
                statement = "SELECT number FROM vector WHERE collection = ? ORDER BY number"
                rows = database.execute(statement, (collection,))
                while numbers := [number for (number,) in rows.fetchmany(VECTORS_AT_ONCE)]:
                    held, vectors = self._stored_rows(database, numbers)
                    index.change(np.array(held), vectors, np.empty(0, np.int64))
                self._vectors[collection] = index
            return self._vectors[collection]

    def _remove(self, owner: str, document_id: str) -> int | None:
        """Remove an id; return the content that it meant, None where there was no such id."""
        statement = "DELETE FROM document WHERE owner = ? AND id = ? RETURNING content"
        row = self._writer.execute(statement, (owner, document_id)).fetchone()
        return None if row is None else int(row[0])

    def _insert(self, first: int, content: Content, change: _VectorChange) -> None:
        statement = (
            "INSERT INTO content (first, hash, title, text, spans, checksum)"
            " VALUES (?, ?, ?, ?, ?, ?)"
        )
        self._writer.execute(statement, (first, *text_row(content)))
        if not content.spans:
            return
        chunks = numbered_chunks(first, content)
        collection = lexical.add(self._writer, chunks, content.collection)
        if not self.manifest.dimension:
            return
        assert content.vectors.shape == (len(content.spans), self.manifest.dimension)
        statement = "INSERT INTO vector (number, collection, vector, checksum) VALUES (?, ?, ?, ?)"
        for (number, _), row in zip(chunks, content.vectors.astype("<f2"), strict=True):
            raw = row.tobytes()
            self._writer.execute(statement, (number, collection, raw, zlib.crc32(raw)))
            change.added[collection].append((number, row.astype(np.float32)))

    def _put(self, owner: str, document_id: str, content_hash: str) -> None:
        check_owned(owner, content_hash, str(self._path))
        statement = "SELECT first FROM content WHERE hash = ?"
        row = self._writer.execute(statement, (content_hash,)).fetchone()
        if row is None:
            self._damaged(f"the text {content_hash} is missing")
        checksum = document_checksum(owner, document_id, row[0])
        statement = "INSERT INTO document (owner, id, content, checksum) VALUES (?, ?, ?, ?)"
        self._writer.execute(statement, (owner, document_id, row[0], checksum))

    def _delete_unmeant(self, firsts: Iterable[int], change: _VectorChange) -> int:
        """Delete those of these contents that no id means any more; return how many."""
        database = self._writer
        meant = "SELECT 1 FROM document WHERE content = ?"
        gone = [first for first in firsts if database.execute(meant, (first,)).fetchone() is None]
        statement = (
            "DELETE FROM vector WHERE number >= ? AND number < ? RETURNING collection, number"
        )
        for first in gone:
            if (content := self._content(database, first)) is None:
                self._damaged(f"the text {first} is missing")
            if content.spans:
                lexical.remove(database, numbered_chunks(first, content), content.collection)
            between = (first, first + len(content.spans))
            for collection, number in database.execute(statement, between).fetchall():
                change.gone[collection].append(number)
            database.execute("DELETE FROM content WHERE first = ?", (first,))
        if gone and lexical.chunk_count(database) <= ERASED_AT_ONCE:
            lexical.erase(database, self._kept(database))
        return len(gone)

    def _kept(self, database: sqlite3.Connection) -> Iterator[tuple[lexical.Chunks, Collection]]:
        """Yield the chunks of every content, one after the other."""
        for (first,) in database.execute("SELECT first FROM content ORDER BY first"):
            content = self._content(database, first)
            if content is not None and content.spans:
                yield numbered_chunks(first, content), content.collection

    def _content(self, database: sqlite3.Connection, first: int) -> Content | None:
        statement = f"SELECT {_CONTENT_COLUMNS} FROM content WHERE first = ?"
        row = database.execute(statement, (first,)).fetchone()
        if row is None:
            return None
        return checked_content(row, self.manifest.dimension, str(self._path))

    def _read_meant(self, database: sqlite3.Connection, number: int) -> tuple[int, _Meant]:
        """Return the first number of the content with this chunk, and it under its oldest id.
        Raises RankingOutdated where there is none any more."""
        record = database.execute(
            f"SELECT first, owner, id, document.checksum, {_CONTENT_COLUMNS} FROM content"
            " JOIN document ON content = first"
            " WHERE first = (SELECT max(first) FROM content WHERE first <= ?)"
            " ORDER BY seq LIMIT 1",
            (number,),
        ).fetchone()
        if record is None:
            raise RankingOutdated("a chunk is gone")
        first, owner, document_id, checksum, *row = record
        self._check_document(owner, document_id, first, checksum)
        content = checked_content(row, self.manifest.dimension, str(self._path))
        check_owned(owner, content.content_hash, str(self._path))
        if number - first >= len(content.spans):
            raise RankingOutdated("a chunk is gone")
        return first, _Meant(content, owner, document_id)

    def _rows(
        self,
        database: sqlite3.Connection,
        document_ids: Iterable[str] | None,
        owner: str | None,
    ) -> Iterator[tuple[str, str, int]]:
        """Yield owner, id and first number of these documents, or of all, of an owner or of
        everybody, in the order in which they were put. Raises FolderDamaged."""
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
            yield stored_owner, document_id, first

    def _check_document(self, owner: str, document_id: str, first: int, checksum: int) -> None:
        if document_checksum(owner, document_id, first) != checksum:
            self._damaged(f"the document {document_id!r} is damaged; restore it from a copy")

    def _damaged(self, why: str) -> NoReturn:
        raise FolderDamaged(f"{self._path}: {why}")

    def _similarities(
        self, database: sqlite3.Connection, numbers: Iterable[int], vector: Vectors
    ) -> dict[int, float]:
        """Return the inner product of `vector` with those of these chunks' that are stored."""
        held, rows = self._stored_rows(database, numbers)
        products = (rows * vector).sum(axis=1)  # BLAS would round by a row's place among others
        return dict(zip(held, products.tolist(), strict=True))

    def _stored_rows(
        self, database: sqlite3.Connection, numbers: Iterable[int]
    ) -> tuple[list[int], Vectors]:
        """Return those of these chunks that have vectors, and their vectors, compared with their
        checksums."""
        statement = (
            "SELECT number, vector, checksum FROM json_each(?) AS wanted"
            " CROSS JOIN vector ON number = wanted.value"
        )
        rows = database.execute(statement, (json.dumps(sorted({*numbers})),)).fetchall()
        size = 2 * self.manifest.dimension
        for number, vector, checksum in rows:
            if len(vector) != size or zlib.crc32(vector) != checksum:
                self._damaged(f"the vector of chunk {number} is damaged; restore it from a copy")
        whole = np.frombuffer(b"".join(vector for _, vector, _ in rows), "<f2")
        vectors = whole.reshape(-1, max(1, self.manifest.dimension)).astype(np.float32)
        return [number for number, _, _ in rows], vectors

    def _select_each(self, statement: str, keys: Iterable[str], *more: str) -> dict[str, str]:
        """Return the one column that `statement` selects for each key, where it finds a row."""
        with errors_of(self._path), self.reading() as database:
            rows = [(key, database.execute(statement, (key, *more)).fetchone()) for key in keys]
        return {key: row[0] for key, row in rows if row is not None}

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection that no other thread uses meanwhile, and that sees one state of the
        database."""
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
            database.execute("BEGIN")
            try:
                yield database
            finally:
                database.execute("ROLLBACK")
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


@dataclass(frozen=True, slots=True)
class _Meant:
    """A content under its oldest id."""

    content: Content
    owner: str
    document_id: str


@dataclass(slots=True)
class _VectorChange:
    """What a commit changes in the vectors of each collection."""

    added: dict[int, list[tuple[int, Vectors]]] = field(default_factory=lambda: defaultdict(list))
    """Number and vector."""
    gone: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    def apply(self, collection: int, index: VectorIndex) -> None:
        added = self.added.get(collection, [])
        vectors = np.array([vector for _, vector in added], np.float32)
        numbers = np.array([number for number, _ in added], np.int64)
        index.change(numbers, vectors, np.array(self.gone.get(collection, []), np.int64))


def _usage(database: sqlite3.Connection, owner: str) -> OwnerUsage:
    statement = f"SELECT count(*), coalesce(sum({_SIZE}), 0) {_OWNED}"
    return OwnerUsage(*database.execute(statement, {"owner": owner}).fetchone())


def _count(database: sqlite3.Connection, table: str) -> int:
    (count,) = database.execute(f"SELECT count(*) FROM {table}").fetchone()
    return int(count)
