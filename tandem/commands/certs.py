"""`tandem certs`: a local authority, certificates of both sides, and keys between them."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from tandem.commands.authority import Issued, Validity, expires, issue, new_authority
from tandem.commands.keys import PRIVATE, PUBLIC, add_key, replace_file
from tandem.commands.options import FOLDER, json_option
from tandem.core.errors import InvalidArgument, TandemError
from tandem.net.scopes import Scope

SIDES = ("edge", "cloud")
LOOPBACK = ("localhost", "127.0.0.1", "::1")
AUTHORITY_DAYS = 3650
CLOCKS_APART = timedelta(minutes=5)
"""A certificate is used at once, by machines whose clocks may be behind this one."""


@click.command()
@click.option(
    "--out", type=FOLDER, default=Path("certs"), help="Output folder; created if missing."
)
@click.option(
    "--edge",
    multiple=True,
    metavar="HOST",
    help="Host name or address of the edge's services, in addition to loopback; repeatable.",
)
@click.option(
    "--cloud",
    multiple=True,
    metavar="HOST",
    help="Host name or address of the cloud's services, in addition to loopback; repeatable.",
)
@click.option(
    "--days",
    type=click.IntRange(1, AUTHORITY_DAYS),
    default=90,
    help="Days that the certificates are valid.",
)
@json_option("Print one JSON object with the files and when the certificates expire.")
def certs(**options: Any) -> None:
    """Make what mutual TLS and keys between the services need, for a demonstration or two machines.

    The folder gets an authority (ca.crt, ca.key), a certificate of each side (edge.crt, edge.key,
    cloud.crt, cloud.key), the keys that each side shows among its own services (edge.call-key,
    cloud.call-key) and the edge to the cloud (edge.cloud-key), and whom the services of each side
    let in (edge.keys, cloud.keys), with no more scopes than these callers need. Called again, it
    makes new certificates for the hosts that are given, and keeps authority and keys; running
    services take them over by themselves. Keep ca.key off the machines that serve.
    """
    folder = options["out"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TandemError(f"{folder}: cannot be written: {error.strerror}") from error
    now = datetime.now(UTC)
    authority = _authority_in(folder, now)
    end = min(now + timedelta(days=options["days"]), expires(authority.certificate))
    for side in SIDES:
        hosts = tuple(dict.fromkeys((*LOOPBACK, *options[side])))
        _write(folder, side, issue(authority, side, hosts, Validity(now - CLOCKS_APART, end)))
    for key in CALL_KEYS:
        if not (shown := folder / key.shown).exists():
            made = add_key(folder / f"{key.at}.keys", key.holder, key.scopes)
            replace_file(shown, f"{made}\n".encode(), PRIVATE)
    _tell(folder, end, options["as_json"])


@dataclass(frozen=True, slots=True)
class _CallKey:
    """A key: `shown` is the file of whoever calls, `at` the side that lets it in."""

    holder: str
    shown: str
    at: str
    scopes: tuple[Scope, ...]


_DOCUMENTS = (Scope.DOCUMENTS_READ, Scope.DOCUMENTS_WRITE)
_EDGE_OWN = (Scope.GENERATE, Scope.DECODE, *_DOCUMENTS)
"""What an edge's services do with each other."""
_EDGE_AT_CLOUD = (Scope.GENERATE, Scope.VERIFY)
"""What they do with the cloud."""
CALL_KEYS = (
    _CallKey("edge", "edge.call-key", "edge", _EDGE_OWN),
    _CallKey("edge", "edge.cloud-key", "cloud", _EDGE_AT_CLOUD),
    _CallKey("cloud", "cloud.call-key", "cloud", (Scope.DECODE, *_DOCUMENTS)),
)


def _write(folder: Path, name: str, issued: Issued) -> None:
    """Write the key first: a service that reads in between keeps its old pair."""
    replace_file(folder / f"{name}.key", issued.key, PRIVATE)
    replace_file(folder / f"{name}.crt", issued.certificate, PUBLIC)


def _authority_in(folder: Path, now: datetime) -> Issued:
    """Return the folder's authority, or make one. Raises TandemError if it is incomplete or has
    expired."""
    certificate, key = folder / "ca.crt", folder / "ca.key"
    there = [path for path in (certificate, key) if path.exists()]
    if not there:
        end = now + timedelta(days=AUTHORITY_DAYS)
        authority = new_authority("Tandem local authority", Validity(now - CLOCKS_APART, end))
        _write(folder, "ca", authority)
        return authority
    if len(there) == 1:
        missing = key if there == [certificate] else certificate
        raise TandemError(f"{missing} is missing beside {there[0]}; restore it, or remove both")
    authority = Issued(certificate.read_bytes(), key.read_bytes())
    try:
        if expires(authority.certificate) <= now:
            raise TandemError(f"{certificate} has expired; remove it and {key}")
    except InvalidArgument as error:
        raise TandemError(f"{certificate}: {error.why}") from error
    return authority


def _tell(folder: Path, end: datetime, as_json: bool) -> None:
    files = sorted(str(path) for path in folder.iterdir() if not path.name.startswith("."))
    if as_json:
        click.echo(json.dumps({"folder": str(folder), "files": files, "expires": end.isoformat()}))
        return
    click.echo(f"{folder}: certificates of {' and '.join(SIDES)}, valid until {end:%Y-%m-%d}")
    for side in SIDES:
        click.echo(f"on the {side}:")
        click.echo(f"  export TANDEM_TLS_CA={folder}/ca.crt TANDEM_KEYS_FILE={folder}/{side}.keys")
        names = (("CERTIFICATE", "crt"), ("KEY", "key"))
        variables = [f"TANDEM_TLS_{name}={folder}/{side}.{ending}" for name, ending in names]
        click.echo(f"  export {' '.join(variables)} TANDEM_CALL_KEY_FILE={folder}/{side}.call-key")
        if side == "edge":
            click.echo(f"  export TANDEM_CLOUD_KEY_FILE={folder}/edge.cloud-key")
