"""The tables of documents on a PostgreSQL server: made, brought to the newest version, their errors
named."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import PoolTimeout

from tandem.core.errors import InvalidArgument, ResourceExhausted, Unavailable
from tandem.index.records import FolderDamaged, FolderMismatch
from tandem.index.store import Manifest, row_checksum

Connection = psycopg.Connection[Any]

TIMEOUT_S = 10.0
_LOCK = 0x7464_6D31

MIGRATIONS: list[tuple[str, ...]] = [
    (
        """CREATE TABLE tandem_content (
            first bigint PRIMARY KEY, hash text NOT NULL UNIQUE,
            title bytea NOT NULL, text bytea NOT NULL, spans bytea NOT NULL,
            text_checksum bigint NOT NULL,
            vectors bytea NOT NULL, vectors_checksum bigint NOT NULL
        )""",
        """CREATE TABLE tandem_document (
            seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id text NOT NULL UNIQUE,
            content bigint NOT NULL REFERENCES tandem_content (first), checksum bigint NOT NULL
        )""",
        "CREATE INDEX tandem_document_by_content ON tandem_document (content, seq)",
        """CREATE TABLE tandem_chunk (
            number bigint PRIMARY KEY, words tsvector NOT NULL,
            content bigint NOT NULL REFERENCES tandem_content (first) ON DELETE CASCADE
        )""",
        "CREATE INDEX tandem_chunk_by_content ON tandem_chunk (content)",
        "CREATE INDEX tandem_chunk_words ON tandem_chunk USING gin (words) WITH (fastupdate = off)",
        # What processes that have it in memory are to forget.
        "CREATE TABLE tandem_gone (first bigint PRIMARY KEY, generation bigint NOT NULL)",
        "CREATE INDEX tandem_gone_by_generation ON tandem_gone (generation)",
    ),
    (
        # A name is unique with its owner.
        "ALTER TABLE tandem_document ADD COLUMN owner text NOT NULL DEFAULT ''",
        "ALTER TABLE tandem_document DROP CONSTRAINT tandem_document_id_key",
        "ALTER TABLE tandem_document ADD CONSTRAINT tandem_document_owned UNIQUE (owner, id)",
        # Who may find a chunk, as `Collection.name` has it.
        "ALTER TABLE tandem_chunk ADD COLUMN collection text NOT NULL DEFAULT ''",
    ),
]
"""What leads from each version of the schema to the next. Add to the end only."""


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
    """Bring the tables to the newest version, and compare what they were made with."""
    take_turn(database)
    database.execute(
        "CREATE TABLE IF NOT EXISTS tandem_meta"
        " (key text PRIMARY KEY, value text NOT NULL, checksum bigint NOT NULL)"
    )
    empty = not database.execute("SELECT 1 FROM tandem_meta").fetchall()
    version = 0 if empty else int(read_meta(database, "version", place))
    if version > len(MIGRATIONS):
        why = f"is of version {version}, this program supports up to {len(MIGRATIONS)}"
        raise FolderMismatch(f"{place}: {why}")
    for statement in (one for statements in MIGRATIONS[version:] for one in statements):
        database.execute(statement)
    write_meta(database, "version", str(len(MIGRATIONS)))
    if empty:
        write_meta(database, "manifest", manifest.to_json())
        write_state(database, State())
    Manifest(**json.loads(read_meta(database, "manifest", place))).check_wanted(manifest, place)


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
