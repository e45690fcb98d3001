"""Where documents are kept: a folder of this machine (a path), or a PostgreSQL server (a connection
string). What either needs is imported when it is used."""

from pathlib import Path

from tandem.core.errors import InvalidArgument
from tandem.index.store import IndexStore, Manifest

Place = Path | str
"""A folder, or a connection string as libpq takes it."""


def open_store(place: Place, manifest: Manifest) -> IndexStore:
    """The store there, which is made if need be."""
    if isinstance(place, Path):
        from tandem.index.sqlite_store import SqliteStore

        return SqliteStore(place, manifest)
    from tandem.index.postgres_store import PostgresStore

    return PostgresStore(place, manifest)


def stored_manifest(place: Place) -> Manifest | None:
    """What the store there was made with; None where there is none. Raises what opening would."""
    if isinstance(place, Path):
        from tandem.index import sqlite_store

        return sqlite_store.read_manifest(place)
    try:
        from tandem.index import postgres_database
    except ImportError as error:
        why = f"needs psycopg: install the extra 'postgres' ({error})"
        raise InvalidArgument("dsn", why) from error
    return postgres_database.read_manifest(place)
