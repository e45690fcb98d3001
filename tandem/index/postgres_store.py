"""Documents on a PostgreSQL server, which several processes share.

Writers take turns behind an advisory lock, so chunk numbers and generations rise in the order of
commits; readers ask for what came after the last they have seen. Words are ranked by the server.
Invariant: no number is used twice, by any process.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
from psycopg_pool import ConnectionPool

from tandem.core.errors import InvalidArgument, TandemError
from tandem.index.known_texts import KnownTexts
from tandem.index.lexical import COMMON_SHARE, FEW_SCORED, MOST_SCORED, words_of
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
from tandem.index.postgres_database import (
    TIMEOUT_S,
    Connection,
    State,
    errors_of,
    place_of,
    read_state,
    settle,
    take_turn,
    write_state,
)
from tandem.index.records import Content, FolderDamaged
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

_CHANNEL = "tandem_documents"
_CONNECTIONS = 8
_POLL_S = 30.0
"""How often a watcher looks for changes that no notification told of."""
_LOOK_S = 0.5
"""How soon a watcher notices that it is to end."""
_RETRY_S = 2.0
"""How long a watcher waits before it connects again."""
_LOADED_TOGETHER = 256
_LONGEST_WORD = 256
_LAST_PLACE = 16_383
"""The last position of a word that a tsvector can hold."""
_MOST_PLACES = 255
"""The most positions of one word that a tsvector holds."""

_TEXT_COLUMNS = "hash, title, text, spans, text_checksum"
_CONTENT_COLUMNS = f"first, {_TEXT_COLUMNS}, vectors, vectors_checksum"
_OWNED = "FROM tandem_document JOIN tandem_content ON content = first WHERE owner = %(owner)s"
_SIZE = "octet_length(title) + octet_length(text)"
"""As quotas count a document."""
_TABLES = "'tandem_content', 'tandem_document', 'tandem_chunk', 'tandem_gone'"

_RANK = """
WITH counted AS MATERIALIZED (
    SELECT word, (
        SELECT count(*) FROM tandem_chunk
        WHERE words @@ word::tsquery AND collection = ANY(%(visible)s)
    ) AS frequency
    FROM unnest(%(words)s::text[]) AS word
), summed AS (
    SELECT word, frequency, sum(frequency) OVER rarest_first AS scored,
        row_number() OVER rarest_first AS place
    FROM counted WHERE frequency > 0
    WINDOW rarest_first AS (ORDER BY frequency, word)
), telling AS MATERIALIZED (
    SELECT word::tsquery AS word,
        ln(1 + (greatest(%(chunks)s, frequency) - frequency + 0.5) / (frequency + 0.5)) AS rarity
    FROM summed
    WHERE place = 1 OR scored <= %(few_scored)s
        OR (scored <= %(most_scored)s AND frequency <= %(common_share)s * %(chunks)s)
)
SELECT number, sum(rarity) / (
    (SELECT sum(rarity) FROM telling)
    + (SELECT count(*) FROM counted WHERE frequency = 0) * ln(1 + (%(chunks)s + 0.5) / 0.5)
)
FROM telling CROSS JOIN LATERAL (
    SELECT number, ts_rank(words, word, 1) AS weight FROM tandem_chunk
    WHERE words @@ word AND collection = ANY(%(visible)s)
) AS matching
GROUP BY number ORDER BY sum(weight * rarity) DESC, number LIMIT %(count)s
"""
"""A chunk's sum over the words of ts_rank, which grows with how often the word is there, times the
word's inverse document frequency, which PostgreSQL's own ranking leaves out. Chunks that the tenant
may not find are neither ranked nor counted. Common words are left
out as in a folder (`lexical`); how much of the query a chunk covers is counted as there."""
_LIMITS = {"few_scored": FEW_SCORED, "most_scored": MOST_SCORED, "common_share": COMMON_SHARE}


class PostgresStore:
    """See `IndexStore`."""

    def __init__(self, dsn: str, manifest: Manifest) -> None:
        """Open the store in the database at `dsn`. Raises FolderMismatch, FolderDamaged,
        Unavailable, or InvalidArgument("dsn")."""
        self.manifest = manifest
        self._dsn = dsn
        self._place = place_of(dsn)
        self._pool = ConnectionPool(
            dsn,
            min_size=1,
            max_size=_CONNECTIONS,
            timeout=TIMEOUT_S,
            configure=_configure,
            check=ConnectionPool.check_connection,
            kwargs={"autocommit": True, "connect_timeout": int(TIMEOUT_S)},
            open=True,
        )
        self._known = KnownTexts()  # that `changes` told of
        self._chunks: Counter[Collection] = Counter()
        self._bytes = 0
        self._seen = State()
        self._watcher: threading.Thread | None = None
        self._closing = threading.Event()
        try:
            with self._transaction() as database:
                settle(database, manifest, self._place)
        except BaseException:
            self._pool.close()
            raise

    def hashes(self, document_ids: Iterable[str], owner: str = OPERATOR) -> dict[str, str]:
        statement = f"SELECT id, hash {_OWNED} AND id = ANY(%(ids)s)"
        return dict(self._select(statement, {"owner": owner, "ids": _storable(document_ids)}))

    def sizes(self, document_ids: Iterable[str], owner: str = OPERATOR) -> dict[str, int]:
        statement = f"SELECT id, {_SIZE} {_OWNED} AND id = ANY(%(ids)s)"
        return dict(self._select(statement, {"owner": owner, "ids": _storable(document_ids)}))

    def holds(self, content_hashes: Iterable[str]) -> set[str]:
        statement = "SELECT hash FROM tandem_content WHERE hash = ANY(%s)"
        return {row[0] for row in self._select(statement, [list(content_hashes)])}

    def commit(
        self,
        puts: Mapping[str, str],
        contents: Sequence[Content],
        removed: Iterable[str],
        owner: str = OPERATOR,
        quota: DocumentQuota | None = None,
    ) -> bool:
        for document_id in puts:
            if "\0" in document_id:
                raise InvalidArgument("id", "contains a zero byte")
        leaving = list(dict.fromkeys([*_storable(removed), *puts]))
        with self._transaction() as database:
            take_turn(database)
            state = read_state(database, self._place)
            before = OwnerUsage() if quota is None else _usage(database, owner)
            statement = (
                "DELETE FROM tandem_document WHERE owner = %s AND id = ANY(%s) RETURNING content"
            )
            left = database.execute(statement, [owner, leaving]).fetchall()
            state = self._insert(database, state, contents)
            wanted = list(set(puts.values()))
            statement = "SELECT hash, first FROM tandem_content WHERE hash = ANY(%s)"
            first_of = dict(database.execute(statement, [wanted]).fetchall())
            if len(first_of) < len(wanted):
                raise psycopg.Rollback
            for key in wanted:
                check_owned(owner, key, self._place)
            _put_all(database, owner, {name: first_of[key] for name, key in puts.items()})
            if quota is not None:
                check_quota(owner, quota, before, _usage(database, owner))
            gone = _delete_unmeant(database, {row[0] for row in left}, state.generation + 1)
            state = State(
                next=state.next,
                generation=state.generation + 1,
                documents=state.documents + len(puts) - len(left),
                texts=state.texts - gone,
            )
            write_state(database, state)
            database.execute("SELECT pg_notify(%s, '')", [_CHANNEL])
            return True
        return False

    def changes(self) -> Iterator[Change]:
        with self._transaction() as database:
            # One snapshot, however long it takes to read it.
            database.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            state = read_state(database, self._place)
            if state == self._seen:
                return
            rows = database.execute(
                "SELECT first FROM tandem_gone WHERE generation > %s", [self._seen.generation]
            )
            known = {first: self._known.pop(first) for (first,) in rows}
            gone = {first: text for first, text in known.items() if text is not None}
            for collection, count in gone.values():
                self._chunks[collection] -= count
            # What is new first: a document that moves to another collection stays found.
            while group := self._contents_from(database, self._seen.next):
                for first, content in group:
                    self._known.add(first, content.collection, len(content.spans))
                    self._chunks[content.collection] += len(content.spans)
                self._seen = replace(self._seen, next=group[-1][0] + 1)
                yield from changes_of(group, {}, self.manifest.dimension)
            yield from changes_of([], gone, self.manifest.dimension)
            sizes = f"SELECT sum(pg_total_relation_size(t)) FROM unnest(ARRAY[{_TABLES}]) AS t"
            self._bytes = int(database.execute(sizes).fetchall()[0][0])
            self._seen = state

    def rank(self, query: str, count: int, tenant: str = OPERATOR) -> list[tuple[int, float]]:
        words = [f"'{word[:_LONGEST_WORD]}'" for word in dict.fromkeys(words_of(query))]
        if not words or count < 1:
            return []
        # What others shared is known from `changes`, which another thread may read meanwhile.
        seen = self._chunks.copy()
        always = {OPERATORS, Collection.of(tenant), Collection.of(tenant, shared=True)}
        visible = always | {collection for collection in seen if collection.visible_to(tenant)}
        values = {
            "words": words,
            "chunks": sum(seen[collection] for collection in visible),
            "visible": [collection.name for collection in visible],
            "count": count,
            **_LIMITS,
        }
        return [(number, float(covered)) for number, covered in self._select(_RANK, values)]

    def chunks(self, numbers: Iterable[int]) -> dict[int, StoredChunk]:
        statement = "SELECT number, content, collection FROM tandem_chunk WHERE number = ANY(%s)"
        hits = self._select(statement, [list(numbers)])
        rows = self._select(
            f"SELECT DISTINCT ON (first) first, owner, id, checksum, {_TEXT_COLUMNS}"
            " FROM tandem_content"
            " JOIN tandem_document ON content = first WHERE first = ANY(%s) ORDER BY first, seq",
            [list({content for _, content, _ in hits})],
        )
        texts: dict[int, StoredText] = {}
        collections: dict[int, str] = {}
        for first, owner, document_id, checksum, *row in rows:
            self._check_document(owner, document_id, first, checksum)
            title, text, spans = checked_text(row, self._place)
            check_owned(owner, row[0], self._place)
            texts[first] = StoredText(
                owner=owner, document_id=document_id, title=title, text=text, spans=spans
            )
            collections[first] = collection_of(row[0]).name
        chunks: dict[int, StoredChunk] = {}
        for number, first, collection in hits:
            if first in texts:
                if collection != collections[first]:
                    raise FolderDamaged(f"{self._place}: the chunk {number} has another owner")
                chunks[number] = texts[first].chunk(number - first)
        return chunks

    def documents(
        self, document_ids: Iterable[str] | None = None, owner: str | None = OPERATOR
    ) -> Iterator[tuple[str, Content]]:
        conditions = ["true"] if owner is None else ["owner = %(owner)s"]
        values: dict[str, object] = {"owner": owner}
        if document_ids is not None:
            conditions.append("id = ANY(%(ids)s)")
            values["ids"] = _storable(document_ids)
        statement = (
            "SELECT owner, id, content, checksum FROM tandem_document"
            f" WHERE {' AND '.join(conditions)} ORDER BY seq"
        )
        contents = f"SELECT {_CONTENT_COLUMNS} FROM tandem_content WHERE first = %s"
        for whose, document_id, first, checksum in self._select(statement, values):
            self._check_document(whose, document_id, first, checksum)
            for _, *row in self._select(contents, [first]):
                yield document_id, checked_content(row, self.manifest.dimension, self._place)

    def listed(self, owner: str, after: str, count: int) -> list[ListedDocument]:
        if "\0" in after:
            raise InvalidArgument("after", "contains a zero byte")
        statement = (
            f"SELECT id, {_SIZE}, hash {_OWNED}"
            ' AND id COLLATE "C" > %(after)s ORDER BY id COLLATE "C" LIMIT %(count)s'
        )
        rows = self._select(statement, {"owner": owner, "after": after, "count": count})
        return [ListedDocument(name, size, collection_of(key).shared) for name, size, key in rows]

    def usage(self, owner: str) -> OwnerUsage:
        with self._transaction() as database:
            return _usage(database, owner)

    def size(self) -> StoreSize:
        seen = self._seen
        return StoreSize(
            documents=seen.documents,
            texts=seen.texts,
            bytes=self._bytes,
            pending_bytes=0,
            generation=seen.generation,
        )

    def compact(self) -> None:
        with errors_of(self._place), self._pool.connection() as database:
            for table in ("tandem_content", "tandem_document", "tandem_chunk", "tandem_gone"):
                database.execute(f"VACUUM {table}")

    def watch(self, changed: Callable[[], None]) -> None:
        self._watcher = threading.Thread(
            target=self._watch, args=(changed,), name="documents-watch", daemon=True
        )
        self._watcher.start()

    def close(self) -> None:
        self._closing.set()
        if self._watcher is not None:
            self._watcher.join()
        self._pool.close()

    def _watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` on each announced commit, after a while without, and once reconnected."""
        while not self._closing.is_set():
            try:
                with psycopg.connect(self._dsn, autocommit=True) as database:
                    database.execute(f"LISTEN {_CHANNEL}")
                    self._watch_one(database, changed)
            except (psycopg.Error, TandemError) as error:
                log.warning("other writers are not followed", reason=str(error).strip())
                self._closing.wait(_RETRY_S)

    def _watch_one(self, database: Connection, changed: Callable[[], None]) -> None:
        changed()
        waited_s = 0.0
        while not self._closing.is_set():
            announced = list(database.notifies(timeout=_LOOK_S, stop_after=1))
            waited_s += _LOOK_S
            if announced or waited_s >= _POLL_S:
                changed()
                waited_s = 0.0

    def _insert(self, database: Connection, state: State, contents: Sequence[Content]) -> State:
        """Insert the contents that are not there yet, with their words."""
        for content in contents:
            first = state.next
            row = (first, *text_row(content), *vector_row(content, self.manifest.dimension))
            places = ", ".join(["%s"] * len(row))
            inserted = database.execute(
                f"INSERT INTO tandem_content ({_CONTENT_COLUMNS}) VALUES ({places})"
                " ON CONFLICT (hash) DO NOTHING",
                row,
            ).rowcount
            if inserted:
                state = replace(state, next=first + room_of(content), texts=state.texts + 1)
                chunks = [
                    (
                        first + chunk,
                        first,
                        content.collection.name,
                        _tsvector(content.indexed_chunk(chunk)),
                    )
                    for chunk in range(len(content.spans))
                ]
                database.cursor().executemany(
                    "INSERT INTO tandem_chunk (number, content, collection, words)"
                    " VALUES (%s, %s, %s, %s)",
                    chunks,
                )
        return state

    def _contents_from(self, database: Connection, first: int) -> list[Numbered]:
        rows = database.execute(
            f"SELECT {_CONTENT_COLUMNS} FROM tandem_content WHERE first >= %s"
            f" ORDER BY first LIMIT {_LOADED_TOGETHER}",
            [first],
        ).fetchall()
        place = self._place
        dimension = self.manifest.dimension
        return [(first, checked_content(row, dimension, place)) for first, *row in rows]

    def _check_document(self, owner: str, document_id: str, first: int, checksum: int) -> None:
        if document_checksum(owner, document_id, first) != checksum:
            raise FolderDamaged(f"{self._place}: the document {document_id!r} is damaged")

    def _select(self, statement: str, values: Sequence[object] | Mapping[str, object]) -> list[Any]:
        with errors_of(self._place), self._pool.connection() as database:
            return database.execute(statement, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with errors_of(self._place), self._pool.connection() as database, database.transaction():
            yield database


def _configure(database: Connection) -> None:
    """Turn off just-in-time compilation: searches take less time than compiling them would."""
    database.execute("SET jit = off")


def _put_all(database: Connection, owner: str, first_of: Mapping[str, int]) -> None:
    database.cursor().executemany(
        "INSERT INTO tandem_document (owner, id, content, checksum) VALUES (%s, %s, %s, %s)",
        [
            (owner, name, first, document_checksum(owner, name, first))
            for name, first in first_of.items()
        ],
    )


def _usage(database: Connection, owner: str) -> OwnerUsage:
    """Return what an owner has stored; `take_turn` keeps it from changing until the transaction
    ends."""
    statement = f"SELECT count(*), coalesce(sum({_SIZE}), 0)::bigint {_OWNED}"
    (row,) = database.execute(statement, {"owner": owner}).fetchall()
    return OwnerUsage(*row)


def _delete_unmeant(database: Connection, firsts: Iterable[int], generation: int) -> int:
    """Delete those of these contents that no document refers to any more. Return how many were
    deleted."""
    gone = database.execute(
        "DELETE FROM tandem_content WHERE first = ANY(%s)"
        " AND NOT EXISTS (SELECT 1 FROM tandem_document WHERE content = first) RETURNING first",
        [list(firsts)],
    ).fetchall()
    database.cursor().executemany(
        "INSERT INTO tandem_gone (first, generation) VALUES (%s, %s)",
        [(first, generation) for (first,) in gone],
    )
    return len(gone)


def _storable(document_ids: Iterable[str]) -> list[str]:
    """Return the ids that can be stored: PostgreSQL's text holds no zero byte."""
    return [name for name in document_ids if "\0" not in name]


def _tsvector(text: str) -> str:
    """Return the words of a text with their places, split here so that texts and queries are split
    alike."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, word in enumerate(words_of(text), 1):
        places[word[:_LONGEST_WORD]].append(min(place, _LAST_PLACE))
    kept = {word: ",".join(map(str, numbers[:_MOST_PLACES])) for word, numbers in places.items()}
    return " ".join(f"'{word}':{numbers}" for word, numbers in kept.items())
