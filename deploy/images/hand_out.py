"""Certificates and keys for docker-compose: makes or renews them and gives each side its own part.

    python hand_out.py --edge HOST… --cloud HOST…     (the flags of `tandem certs`)

It refuses an HTTP API that everybody who reaches this host may use, unless .env says so, and makes
Grafana's password where .env gives none.

Invariant: the authority's key stays in /handed-out/authority; a side gets its own certificate and
key, and of the other nothing but what it is checked by; it lets in its own callers alone. Files are
replaced whole, the private key before its certificate, so a service that looks in between keeps
what it has.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

OUT = Path("/handed-out")
AUTHORITY = OUT / "authority"


def main(flags: list[str]) -> int:
    if why := open_to_strangers(os.environ):
        print(why, file=sys.stderr)
        return 2
    command = [sys.executable, "-P", "-m", "tandem.cli", "certs", "--out", str(AUTHORITY), *flags]
    if (status := subprocess.run(command, check=False).returncode) != 0:
        return status
    if not (AUTHORITY / "http-key").exists():
        make_http_key()
    for side in ("edge", "cloud"):
        hand_out(side, OUT / side)
    for name in ("http-key", "http-keys"):
        put(AUTHORITY / name, OUT / "edge" / name)
    put(AUTHORITY / "edge.cloud-key", OUT / "edge" / "cloud-key")
    hand_out_password(os.environ.get("GRAFANA_PASSWORD", ""))
    return 0


def open_to_strangers(environment: Mapping[str, str]) -> str:
    """Why the HTTP API may not be served so: beyond this host, without keys, and nobody said that
    this is wanted. Empty where it may."""
    address = environment.get("BIND_ADDRESS", "127.0.0.1")
    said = environment.get("HTTP_OPEN") or environment.get("TANDEM_HTTP_KEYS_FILE")
    if said or is_loopback(address):
        return ""
    return (
        f"With BIND_ADDRESS={address} everybody who reaches this host could use the HTTP API. In"
        " .env, set TANDEM_HTTP_KEYS_FILE=/access/http-keys to ask for a key, or HTTP_OPEN=true to"
        " let everybody in."
    )


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address == "localhost"


def hand_out_password(given: str) -> None:
    """Grafana's for `admin`: what is given, or one that is drawn once."""
    kept = AUTHORITY / "grafana-password"
    if given or not kept.exists():
        kept.write_text(given or secrets.token_urlsafe(18))
    kept.chmod(0o644)  # Grafana runs as another user, and alone has this volume
    put(kept, OUT / "grafana" / "password")


def make_http_key() -> None:
    """For HTTP callers, should they be asked for one."""
    command = [sys.executable, "-P", "-m", "tandem.cli", "keys", "http", "--scope", "generate"]
    files = ("--file", str(AUTHORITY / "http-keys"), "--out", str(AUTHORITY / "http-key"))
    subprocess.run([*command, *files], check=True)


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
