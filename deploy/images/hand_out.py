"""Certificates and keys for docker-compose: makes or renews them and gives each side its own part.

    python hand_out.py --edge HOST… --cloud HOST…     (the flags of `tandem certs`)

Invariant: the authority's key stays in /handed-out/authority; a side gets its own certificate and
key, and of the other nothing but what it is checked by; it lets in its own callers alone. Files are
replaced whole, the private key before its certificate, so a service that looks in between keeps
what it has.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

OUT = Path("/handed-out")
AUTHORITY = OUT / "authority"


def main(flags: list[str]) -> int:
    command = [sys.executable, "-P", "-m", "tandem.cli", "certs", "--out", str(AUTHORITY), *flags]
    if (status := subprocess.run(command, check=False).returncode) != 0:
        return status
    if not (AUTHORITY / "http-key").exists():
        make_http_key()
    elif " scopes=" not in (AUTHORITY / "http-keys").read_text():  # of an older release
        http_keys("--same-key")
    for side in ("edge", "cloud"):
        hand_out(side, OUT / side)
    for name in ("http-key", "http-keys"):
        put(AUTHORITY / name, OUT / "edge" / name)
    put(AUTHORITY / "edge.cloud-key", OUT / "edge" / "cloud-key")
    return 0


def make_http_key() -> None:
    """For HTTP callers, should they be asked for one."""
    http_keys("--out", str(AUTHORITY / "http-key"))


def http_keys(*flags: str) -> None:
    where = ("--file", str(AUTHORITY / "http-keys"), "--scope", "generate")
    subprocess.run(
        [sys.executable, "-P", "-m", "tandem.cli", "keys", "http", *where, *flags], check=True
    )


def hand_out(side: str, folder: Path) -> None:
    """The files of `side`, under the names that every service is told."""
    names = {
        "ca.crt": "ca.crt",
        f"{side}.keys": "keys",
        f"{side}.call-key": "call-key",
        f"{side}.key": "tls.key",
        f"{side}.crt": "tls.crt",
    }
    for source, name in names.items():
        put(AUTHORITY / source, folder / name)


def put(source: Path, place: Path) -> None:
    """`source` at `place`, with its mode."""
    unfinished = place.with_name(f".{place.name}.new")
    shutil.copy(source, unfinished)
    os.replace(unfinished, place)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
