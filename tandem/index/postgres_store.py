"""Documents on a PostgreSQL server, which several processes share.

The server has all of it, and finds chunks by words (`tsvector`) and by vectors (pgvector): no
process loads documents or follows others. Writers take turns behind an advisory lock, so chunk
numbers rise in the order of commits. Invariant: no number is used twice, by any process.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import psycopg
from psycopg_pool import ConnectionPool

from tandem.core.errors import InvalidArgument, Unavailable
from tandem.index.owners import (
    OPERATOR,
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
from tandem.index.records import (
    Content,
    FolderDamaged,
    IndexStats,
    RankingOutdated,
    StoredChunk,
    Vectors,
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
from tandem.index.words import (
    COMMON_SHARE,
    FEW_SCORED,
    MOST_SCORED,
    query_words,
    words_of,
)

_CONNECTIONS = 8
_STATS_TIMEOUT_S = 1.0
"""Metrics that are asked for meanwhile have others to tell."""
_NEAREST_IN_GRAPH = 200
"""Candidates that a search of the graph keeps: finds 0.95 and more of the true nearest."""
_LAST_PLACE = 16_383
"""The last position of a word that a tsvector can hold."""
_MOST_PLACES = 255
"""The most positions of one word that a tsvector holds."""

_TEXT_COLUMNS = "hash, title, text, spans, tandem_content.checksum"
_OWNED = "FROM tandem_document JOIN tandem_content ON content = first WHERE owner = %(owner)s"
_SIZE = "octet_length(title) + octet_length(text)"
"""As quotas count a document."""
_TABLES = "'tandem_content', 'tandem_document', 'tandem_chunk'"

_RANK = """
WITH counted AS MATERIALIZED (
    SELECT word, (
        SELECT count(*)::float8 FROM tandem_chunk
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
    + (SELECT count(*) FROM counted WHERE frequency = 0) * ln(1 + (%(chunks)s::float8 + 0.5) / 0.5)
)
FROM telling CROSS JOIN LATERAL (
    SELECT number, ts_rank(words, word, 1) AS weight FROM tandem_chunk
    WHERE words @@ word AND collection = ANY(%(visible)s)
) AS matching
GROUP BY number ORDER BY sum(weight * rarity) DESC, number LIMIT %(count)s
"""
"""A chunk's sum over the words of ts_rank, which grows with how often the word is there, times the
word's inverse document frequency, which PostgreSQL's own ranking leaves out. Chunks that the tenant
may not find are neither ranked nor counted. Common words are left out as in a folder
(`words.telling`); how much of the query a chunk covers is counted as there."""
_LIMITS = {"few_scored": FEW_SCORED, "most_scored": MOST_SCORED, "common_share": COMMON_SHARE}
_NEAREST = """
(
    SELECT number FROM tandem_chunk WHERE collection = '' AND '' = ANY(%(visible)s)
    ORDER BY vector <#> %(vector)s::real[]::vector LIMIT %(count)s
) UNION ALL (
    SELECT number FROM tandem_chunk WHERE collection <> '' AND collection = ANY(%(visible)s)
    ORDER BY (vector <#> %(vector)s::real[]::vector) + 0 LIMIT %(count)s
)
"""
"""pgvector's `<#>` is the negative inner product; a sum of it is in no index."""
_SIMILARITIES = """
SELECT number, -(vector <#> %(vector)s::real[]::vector) FROM tandem_chunk
WHERE number = ANY(%(numbers)s)
"""


class PostgresStore:
    """See `IndexStore`."""

    def __init__(self, dsn: str, manifest: Manifest) -> None:
        """Open the store in the database at `dsn`. Raises FolderMismatch, FolderDamaged,
        Unavailable, FailedPrecondition without pgvector, or InvalidArgument("dsn")."""
        self.manifest = manifest
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
        try:
            with self._transaction() as database:
                settle(database, manifest, self._place)
            self._stats = self._measured()
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
            gone = _delete_unmeant(database, {row[0] for row in left})
            state = State(
                next=state.next,
                generation=state.generation + 1,
                documents=state.documents + len(puts) - len(left),
                texts=state.texts - gone,
            )
            write_state(database, state)
            return True
        return False

    def find(self, query: str, vector: Vectors | None, count: int, tenant: str = OPERATOR) -> Found:
        with self._transaction() as database:
            database.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            visible = _visible(database, tenant)
            values: dict[str, Any] = {"count": count, "visible": list(visible)}
            nearest: list[int] = []
            similarity: dict[int, float] = {}
            words = query_words(query)
            coverage: dict[int, float] = {}
            if words:
                values |= {"words": list(map(_quoted, words)), "chunks": sum(visible.values())}
                coverage = dict(database.execute(_RANK, values | _LIMITS).fetchall())
            if vector is not None:
                values["vector"] = vector.tolist()
                kept = max(_NEAREST_IN_GRAPH, count)
                database.execute(f"SET LOCAL hnsw.ef_search = {min(1000, kept)}")
                proposed = [number for (number,) in database.execute(_NEAREST, values)]
                values["numbers"] = [*proposed, *coverage]
                similarity = dict(database.execute(_SIMILARITIES, values).fetchall())
                nearest = sorted(proposed, key=lambda each: (-similarity[each], each))[:count]
        return Found(nearest, similarity, coverage)

    def chunks(self, numbers: Iterable[int]) -> dict[int, StoredChunk]:
        wanted = list(numbers)
        rows = self._select(
            f"SELECT DISTINCT ON (number) number, collection, first, owner, id,"
            f" tandem_document.checksum, {_TEXT_COLUMNS} FROM tandem_chunk"
            " JOIN tandem_content ON tandem_chunk.content = first"
            " JOIN tandem_document ON tandem_document.content = first"
            " WHERE number = ANY(%s) ORDER BY number, seq",
            [wanted],
        )
        chunks: dict[int, StoredChunk] = {}
        for number, collection, first, owner, document_id, checksum, *row in rows:
            self._check_document(owner, document_id, first, checksum)
            content = checked_content(row, self.manifest.dimension, self._place)
            check_owned(owner, content.content_hash, self._place)
            if collection != content.collection.name:
                raise FolderDamaged(f"{self._place}: the chunk {number} has another owner")
            chunks[number] = content.stored_chunk(number - first, owner, document_id)
        if len(chunks) < len(wanted):
            raise RankingOutdated("a chunk is gone")
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
        contents = f"SELECT {_TEXT_COLUMNS} FROM tandem_content WHERE first = %s"
        for whose, document_id, first, checksum in self._select(statement, values):
            self._check_document(whose, document_id, first, checksum)
            for row in self._select(contents, [first]):
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

    def stats(self) -> IndexStats:
        """Return how much is stored now; while the server cannot be reached, what it was."""
        with suppress(Unavailable):
            self._stats = self._measured()
        return self._stats

    def compact(self) -> None:
        with errors_of(self._place), self._pool.connection() as database:
            for table in ("tandem_content", "tandem_document", "tandem_chunk"):
                database.execute(f"VACUUM {table}")

    def close(self) -> None:
        self._pool.close()

    def _measured(self) -> IndexStats:
        with self._transaction(_STATS_TIMEOUT_S) as database:
            state = read_state(database, self._place)
            chunks = "SELECT coalesce(sum(chunks), 0)::bigint FROM tandem_collection"
            sizes = "SELECT sum(pg_total_relation_size(t))::bigint"
            sizes += f" FROM unnest(ARRAY[{_TABLES}]) AS t"
            return IndexStats(
                documents=state.documents,
                texts=state.texts,
                chunks=database.execute(chunks).fetchall()[0][0],
                log_bytes=0,
                snapshot_bytes=database.execute(sizes).fetchall()[0][0],
                generation=state.generation,
                dense="hnsw" if self.manifest.dimension else "none",
            )

    def _insert(self, database: Connection, state: State, contents: Sequence[Content]) -> State:
        """Insert the contents that are not there yet, with their words and vectors."""
        for content in contents:
            first = state.next
            inserted = database.execute(
                "INSERT INTO tandem_content (first, hash, title, text, spans, checksum)"
                " VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (hash) DO NOTHING",
                [first, *text_row(content)],
            ).rowcount
            if inserted:
                state = replace(state, next=first + room_of(content), texts=state.texts + 1)
                _insert_chunks(database, first, content)
        return state

    def _check_document(self, owner: str, document_id: str, first: int, checksum: int) -> None:
        if document_checksum(owner, document_id, first) != checksum:
            raise FolderDamaged(f"{self._place}: the document {document_id!r} is damaged")

    def _select(self, statement: str, values: Sequence[object] | Mapping[str, object]) -> list[Any]:
        with errors_of(self._place), self._pool.connection() as database:
            return database.execute(statement, values).fetchall()

    @contextmanager
    def _transaction(self, timeout_s: float = TIMEOUT_S) -> Iterator[Connection]:
        connection = self._pool.connection(timeout_s)
        with errors_of(self._place), connection as database, database.transaction():
            yield database


def _configure(database: Connection) -> None:
    """Turn off just-in-time compilation: searches take less time than compiling them would."""
    database.execute("SET jit = off")


def _visible(database: Connection, tenant: str) -> dict[str, int]:
    """Return the names of the collections with chunks that `tenant` may find, and how many."""
    rows = database.execute("SELECT name, chunks FROM tandem_collection WHERE chunks > 0")
    return {name: count for name, count in rows if Collection.named(name).visible_to(tenant)}


def _insert_chunks(database: Connection, first: int, content: Content) -> None:
    collection = content.collection.name
    chunks = [
        (number, collection, _tsvector(text), first)
        for number, text in numbered_chunks(first, content)
    ]
    columns = "number, collection, words, content"
    places = "%s, %s, %s, %s"
    rows: list[tuple[object, ...]] = [*chunks]
    if content.vectors.shape[1]:
        columns += ", vector"
        places += ", %s::real[]::vector"
        vectors = content.vectors.tolist()
        rows = [(*row, vector) for row, vector in zip(chunks, vectors, strict=True)]
    statement = f"INSERT INTO tandem_chunk ({columns}) VALUES ({places})"
    database.cursor().executemany(statement, rows)
    _count(database, collection, len(rows))


def _count(database: Connection, collection: str, chunks: int) -> None:
    database.execute(
        "INSERT INTO tandem_collection AS counted (name, chunks) VALUES (%s, %s)"
        " ON CONFLICT (name) DO UPDATE SET chunks = counted.chunks + excluded.chunks",
        [collection, chunks],
    )


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


def _delete_unmeant(database: Connection, firsts: Iterable[int]) -> int:
    """Delete those of these contents that no document refers to any more. Return how many were
    deleted."""
    meant = "SELECT content FROM tandem_document WHERE content = ANY(%s)"
    wanted = {*firsts}
    gone = list(wanted - {row[0] for row in database.execute(meant, [list(wanted)])})
    chunks = database.execute(
        "DELETE FROM tandem_chunk WHERE content = ANY(%s) RETURNING collection", [gone]
    )
    for collection, count in Counter(name for (name,) in chunks).items():
        _count(database, collection, -count)
    database.execute("DELETE FROM tandem_content WHERE first = ANY(%s)", [gone])
    return len(gone)


def _storable(document_ids: Iterable[str]) -> list[str]:
    """Return the ids that can be stored: PostgreSQL's text holds no zero byte."""
    return [name for name in document_ids if "\0" not in name]


def _tsvector(text: str) -> str:
    """Return the words of a text with their places, split here so that texts and queries are split
    alike."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, word in enumerate(words_of(text), 1):
        places[word].append(min(place, _LAST_PLACE))
    kept = {word: ",".join(map(str, numbers[:_MOST_PLACES])) for word, numbers in places.items()}
    return " ".join(f"{_quoted(word)}:{numbers}" for word, numbers in kept.items())


def _quoted(word: str) -> str:
    return f"'{word}'"
