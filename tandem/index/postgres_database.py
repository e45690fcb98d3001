"""The tables of documents on a PostgreSQL server: made, compared, their errors named."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import PoolTimeout

from tandem.core.errors import FailedPrecondition, InvalidArgument, ResourceExhausted, Unavailable
from tandem.index.records import FolderDamaged, FolderMismatch
from tandem.index.store import Manifest, row_checksum

Connection = psycopg.Connection[Any]

TIMEOUT_S = 10.0
_LOCK = 0x7464_6D31

VERSION = 3
_TABLES = (
    """CREATE TABLE tandem_content (
        first bigint PRIMARY KEY, hash text NOT NULL UNIQUE,
        title bytea NOT NULL, text bytea NOT NULL, spans bytea NOT NULL, checksum bigint NOT NULL
    )""",
    """CREATE TABLE tandem_document (
        seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, owner text NOT NULL, id text NOT NULL,
        content bigint NOT NULL REFERENCES tandem_content (first), checksum bigint NOT NULL,
        UNIQUE (owner, id)
    )""",
    "CREATE INDEX tandem_document_by_content ON tandem_document (content, seq)",
    # `collection`: who may find a chunk, as `Collection.name` has it.
    """CREATE TABLE tandem_chunk (
        number bigint PRIMARY KEY, collection text NOT NULL, words tsvector NOT NULL,
        content bigint NOT NULL REFERENCES tandem_content (first) ON DELETE CASCADE
    )""",
    "CREATE INDEX tandem_chunk_by_content ON tandem_chunk (content)",
    "CREATE INDEX tandem_chunk_by_collection ON tandem_chunk (collection)",
    "CREATE INDEX tandem_chunk_words ON tandem_chunk USING gin (words) WITH (fastupdate = off)",
    "CREATE TABLE tandem_collection (name text PRIMARY KEY, chunks bigint NOT NULL)",
)
MOST_INDEXED_NUMBERS = 2000
"""Numbers of a vector up to which pgvector's index takes it."""


@dataclass(frozen=True, slots=True)
class State:
    """The row of tandem_meta that every commit changes."""

    next: int = 0
    generation: int = 0
    documents: int = 0
    texts: int = 0


def place_of(dsn: str) -> str:
    """Return the server and database that a connection string names, without its password."""
    try:
        fields = conninfo_to_dict(dsn)
    except psycopg.Error as error:
        raise InvalidArgument(
            "dsn", f"is not a valid connection string: {str(error).strip()}"
        ) from None
    return f"postgresql://{fields.get('host', '')}/{fields.get('dbname', '')}"


def read_manifest(dsn: str) -> Manifest | None:
    """Return the manifest; None for a database without documents."""
    place = place_of(dsn)
    with errors_of(place), psycopg.connect(dsn, connect_timeout=int(TIMEOUT_S)) as database:
        if database.execute("SELECT to_regclass('tandem_meta')").fetchall()[0][0] is None:
            return None
        return Manifest(**json.loads(read_meta(database, "manifest", place)))


@contextmanager
def errors_of(place: str) -> Iterator[None]:
    """Turn PostgreSQL's errors into those of a store while the context is open."""
    try:
        yield
    except (psycopg.errors.DiskFull, psycopg.errors.OutOfMemory) as error:
        raise ResourceExhausted(f"{place}: no room: {error}; nothing was changed") from error
    except (psycopg.errors.DataCorrupted, psycopg.errors.IndexCorrupted) as error:
        raise FolderDamaged(f"{place}: is damaged: {error}") from error
    except (psycopg.OperationalError, PoolTimeout) as error:
        raise Unavailable(f"{place}: {str(error).strip()}") from error


def settle(database: Connection, manifest: Manifest, place: str) -> None:
    """Create the tables where there are none, and compare what they were made with."""
    take_turn(database)
    database.execute(
        "CREATE TABLE IF NOT EXISTS tandem_meta"
        " (key text PRIMARY KEY, value text NOT NULL, checksum bigint NOT NULL)"
    )
    if not database.execute("SELECT 1 FROM tandem_meta").fetchall():
        for statement in (*_TABLES, *_vector_statements(manifest.dimension, place, database)):
            database.execute(statement)
        write_meta(database, "version", str(VERSION))
        write_meta(database, "manifest", manifest.to_json())
        write_state(database, State())
    if (version := int(read_meta(database, "version", place))) != VERSION:
        why = f"is of version {version}, this program reads version {VERSION}"
        raise FolderMismatch(f"{place}: {why}; put the documents into another database")
    Manifest(**json.loads(read_meta(database, "manifest", place))).check_wanted(manifest, place)


def _vector_statements(dimension: int, place: str, database: Connection) -> list[str]:
    """Return what makes room for vectors. The operator's are found by pgvector's graph, in which
    are no others, so that no tenant's documents decide what it finds; those of a tenant are few,
    and all compared. Raises FailedPrecondition where the server has no pgvector."""
    if not dimension:
        return []
    known = "SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"
    if not database.execute(known).fetchall():
        why = "the server lacks the extension 'vector' (pgvector), which embeddings need"
        raise FailedPrecondition(f"{place}: {why}; install it, or use --embedding lexical")
    statements = [
        "CREATE EXTENSION IF NOT EXISTS vector",
        f"ALTER TABLE tandem_chunk ADD COLUMN vector vector({dimension}) NOT NULL",
    ]
    if dimension <= MOST_INDEXED_NUMBERS:
        statements.append(
            "CREATE INDEX tandem_chunk_vectors ON tandem_chunk"
            " USING hnsw (vector vector_ip_ops) WHERE collection = ''"
        )
    return statements


def take_turn(database: Connection) -> None:
    """Keep other processes from writing until the end of the transaction."""
    database.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])


def read_meta(database: Connection, key: str, place: str) -> str:
    rows = database.execute(
        "SELECT value, checksum FROM tandem_meta WHERE key = %s", [key]
    ).fetchall()
    if not rows or rows[0][1] != row_checksum(key, rows[0][0]):
        raise FolderDamaged(f"{place}: its {key} is damaged; restore it from a copy")
    return str(rows[0][0])


def write_meta(database: Connection, key: str, value: str) -> None:
    database.execute(
        "INSERT INTO tandem_meta (key, value, checksum) VALUES (%s, %s, %s)"
        " ON CONFLICT (key) DO UPDATE SET value = excluded.value, checksum = excluded.checksum",
        [key, value, row_checksum(key, value)],
    )


def read_state(database: Connection, place: str) -> State:
    return State(**json.loads(read_meta(database, "state", place)))


def write_state(database: Connection, state: State) -> None:
    write_meta(database, "state", json.dumps(asdict(state)))
