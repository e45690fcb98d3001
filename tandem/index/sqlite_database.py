"""The SQLite database of a folder: made, opened, checked, its errors named.
Invariant: a database file exists only with its tables in it, so an empty one is a damaged one."""

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from tandem.core.errors import ResourceExhausted, Unavailable
from tandem.index import lexical, words
from tandem.index.folder import new_private_file, sync_folder
from tandem.index.records import FolderDamaged, FolderInUse, FolderMismatch
from tandem.index.store import Manifest, row_checksum

VERSION = 3
TABLES = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL, checksum INTEGER NOT NULL)",
    # The chunks of a content are numbered from `first` on.
    """CREATE TABLE content (
        first INTEGER PRIMARY KEY,
        hash TEXT NOT NULL UNIQUE,
        title BLOB NOT NULL,
        text BLOB NOT NULL,
        spans BLOB NOT NULL,
        checksum INTEGER NOT NULL
    )""",
    """CREATE TABLE document (
        seq INTEGER PRIMARY KEY,
        owner TEXT NOT NULL,
        id TEXT NOT NULL,
        content INTEGER NOT NULL REFERENCES content (first),
        checksum INTEGER NOT NULL,
        UNIQUE (owner, id)
    )""",
    "CREATE INDEX document_by_content ON document (content, seq)",
    """CREATE TABLE vector (
        number INTEGER PRIMARY KEY,
        collection INTEGER NOT NULL REFERENCES collection (id),
        vector BLOB NOT NULL,
        checksum INTEGER NOT NULL
    )""",
    "CREATE INDEX vector_by_collection ON vector (collection, number, checksum)",
    *lexical.TABLES,
)
"""What a database of this version has."""

_NO_ROOM = {
    sqlite3.SQLITE_FULL,
    # What a quota and a limit on file sizes look like. A failing disk does too.
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_SHMOPEN,
    sqlite3.SQLITE_IOERR_SHMSIZE,
    sqlite3.SQLITE_IOERR_TRUNCATE,
}
_NO_ROOM_OF_SYSTEM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_REFUSED = {
    *(sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM),
    sqlite3.SQLITE_IOERR,  # what is stored may be whole
}


def create_database(path: Path, manifest: Manifest) -> None:
    """Create a database under this name, or none: it gets its name once it is complete."""
    new = path.with_name(f"{path.name}.new")
    new.with_name(f"{new.name}-journal").unlink(missing_ok=True)
    new_private_file(new)
    with closing(connect(new, journal="DELETE")) as database:
        database.execute("PRAGMA auto_vacuum = INCREMENTAL")  # heeded before the first table only
        with transaction(database):
            _create_tables(database)
            set_meta(database, "manifest", manifest.to_json())
            set_meta(database, "generation", "0")
            set_meta(database, "next", "0")
            set_meta(database, "words", words.VERSION)
    new.replace(path)
    sync_folder(path.parent)


def open_database(path: Path, *, reading: bool = False) -> sqlite3.Connection:
    """Return a connection to a database whose tables are those of this version, with an empty
    write-ahead log; if it is for `reading` alone, as `connect_to_read`, the log is left as it is.
    Raises FolderDamaged, or FolderMismatch for another version."""
    database = connect_to_read(path) if reading else connect(path)
    try:
        check_version(database, path)
        if _schema(database) != _whole_schema():
            raise FolderDamaged(f"{path}: its tables are not those of version {VERSION}")
        if not reading:
            fold_log(database)
    except BaseException:
        database.close()
        raise
    return database


def check_structure(database: sqlite3.Connection, path: Path) -> None:
    """Check pages, indexes and references of the whole file, but not what is in the rows. Raises
    FolderDamaged."""
    problems = [row[0] for row in database.execute("PRAGMA integrity_check(1)").fetchall()]
    if problems == ["ok"]:
        problems = [
            f"{table} {row} refers to nothing"
            for table, row, *_ in database.execute("PRAGMA foreign_key_check").fetchall()
        ]
    if problems and problems != ["ok"]:
        raise FolderDamaged(f"{path}: is damaged: {problems[0]}; restore it from a copy")


def connect(path: Path, journal: str = "WAL") -> sqlite3.Connection:
    """Open a connection, for one thread at a time, not always the same. Each statement is a
    transaction by itself."""
    return _connected(
        path,
        f"journal_mode = {journal}",
        "synchronous = FULL",
        "wal_autocheckpoint = 0",
        "secure_delete = ON",  # zeros where a deleted text was
        "foreign_keys = ON",
    )


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Open the only connection there is to a database, which changes nothing. Unlike those of
    `connect` it needs no room: these share a file of memory, which a full disk has no place for."""
    return _connected(path, "locking_mode = EXCLUSIVE", "query_only = ON")


def lacks_room(error: sqlite3.Error) -> bool:
    """Return whether the disk is full, or what looks like it."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) in _NO_ROOM


def _connected(path: Path, *pragmas: str) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode=rw"
    database = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    try:
        for pragma in (*pragmas, "temp_store = MEMORY", "cell_size_check = ON"):
            database.execute(f"PRAGMA {pragma}")
    except BaseException:
        database.close()
        raise
    return database


def check_version(database: sqlite3.Connection, path: Path) -> None:
    """Raise FolderMismatch for a database of another version, FolderDamaged where there are no
    tables."""
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version < 1:
        raise FolderDamaged(f"{path}: has no tables; restore it from a copy")
    if version != VERSION:
        why = f"is of version {version}, this program reads version {VERSION}"
        raise FolderMismatch(f"{path}: {why}; put the documents into a new folder")


def fold_log(database: sqlite3.Connection) -> bool:
    """Bring the write-ahead log into the database file, sync that, and empty the log. False where
    a reader was in the way."""
    busy, _, _ = database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


def meta(database: sqlite3.Connection, key: str, path: Path) -> str:
    """Return what the database stores under `key`. Raises FolderDamaged if it is missing or
    damaged."""
    row = database.execute("SELECT value, checksum FROM meta WHERE key = ?", (key,)).fetchone()
    if row is None or row[1] != row_checksum(key, row[0]):
        raise FolderDamaged(f"{path}: its {key} is damaged; restore it from a copy")
    return str(row[0])


def set_meta(database: sqlite3.Connection, key: str, value: str) -> None:
    statement = "INSERT OR REPLACE INTO meta (key, value, checksum) VALUES (?, ?, ?)"
    database.execute(statement, (key, value, row_checksum(key, value)))


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Commit all that happens inside, durably, or nothing."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            if database.in_transaction:
                database.execute("ROLLBACK")
        raise


@contextmanager
def errors_of(path: Path) -> Iterator[None]:
    """Turn SQLite's errors, and the system's for lack of space, into those of a folder while the
    context is open."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise
    except OSError as error:
        if error.errno not in _NO_ROOM_OF_SYSTEM:
            raise
        raise ResourceExhausted(f"{path}: no room: {error.strerror}") from error
    except (sqlite3.Error, TypeError, ValueError, OverflowError) as error:
        # A damaged row has values of other types, a damaged schema names that are no text.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        if code in _NO_ROOM:
            raise ResourceExhausted(
                f"{path}: no room: {error}; this change was not made"
            ) from error
        if code & 0xFF in _BUSY:
            raise FolderInUse(f"{path}: another process uses it: {error}") from error
        if code & 0xFF in _REFUSED:
            raise Unavailable(f"{path}: the operating system refused access: {error}") from error
        raise FolderDamaged(f"{path}: is damaged: {error}; restore it from a copy") from error


def _create_tables(database: sqlite3.Connection) -> None:
    for statement in TABLES:
        database.execute(statement)
    database.execute(f"PRAGMA user_version = {VERSION}")


def _schema(database: sqlite3.Connection) -> set[tuple[object, ...]]:
    return set(database.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema").fetchall())


def _whole_schema() -> set[tuple[object, ...]]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        _create_tables(database)
        return _schema(database)
