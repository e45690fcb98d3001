"""A PostgreSQL server for tests: made in a temporary folder, with the binaries of the distribution,
under an unprivileged user, since it refuses to run as root."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PLACES = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin")


def server_binaries() -> Path | None:
    """The folder with `initdb` and `pg_ctl`; None where no server is installed."""
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
