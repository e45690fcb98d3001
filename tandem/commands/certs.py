"""`tandem certs`: a local authority, certificates of both sides, and keys between them."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from tandem.commands.authority import Issued, Validity, expires, hosts_of, issue, new_authority
from tandem.commands.keys import PRIVATE, PUBLIC, add_key, let_in, replace_file
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
    """Make what mutual TLS and keys between the services need.

    The folder gets an authority (ca.crt, ca.key), a certificate of each side (edge.crt, edge.key,
    cloud.crt, cloud.key), the keys that each side shows among its own services (edge.call-key,
    cloud.call-key) and the edge to the cloud (edge.cloud-key), and whom the services of each side
    let in (edge.keys, cloud.keys), with no more scopes than these callers need. Called again,
    authority and keys stay and the certificates are renewed, with the same names unless others are
    given; running services take them over by themselves. Keep ca.key off the machines that serve.
    """
    folder = options["out"]
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC)
    authority = authority_in(folder, now)
    end = min(now + timedelta(days=options["days"]), expires(authority.certificate))
    for side in SIDES:
        pair = CertificateFiles(folder, side)
        hosts = hosts_for(pair, options[side])
        pair.write(issue(authority, side, hosts, Validity(now - CLOCKS_APART, end)))
    _make_keys(folder)
    _tell(folder, end, options["as_json"])


@dataclass(frozen=True, slots=True)
class _CallKey:
    """A key: `shown` is the file of whoever calls, `at` the side that lets it in."""

    holder: str
    shown: str
    at: str
    scopes: tuple[Scope, ...]


_DOCUMENTS = (Scope.DOCUMENTS_READ, Scope.DOCUMENTS_WRITE)
EDGE_OWN = (Scope.GENERATE, Scope.DECODE, *_DOCUMENTS)
"""What an edge's services do with each other."""
EDGE_AT_CLOUD = (Scope.GENERATE, Scope.VERIFY)
"""What they do with the cloud."""
CALL_KEYS = (
    _CallKey("edge", "edge.call-key", "edge", EDGE_OWN),
    _CallKey("edge", "edge.cloud-key", "cloud", EDGE_AT_CLOUD),
    _CallKey("cloud", "cloud.call-key", "cloud", (Scope.DECODE, *_DOCUMENTS)),
)


def _make_keys(folder: Path) -> None:
    """Make the keys that are missing. A file that lists keys stays as it is: somebody may have
    revoked a key. Only where that file is missing, as in a folder of an older release, are existing
    keys entered in a new one; but the edge gets a new key for itself, since it has shown the old
    one to the cloud."""
    unknown = {side for side in SIDES if not (folder / f"{side}.keys").exists()}
    if unknown and not (folder / "edge.cloud-key").exists():
        (folder / "edge.call-key").unlink(missing_ok=True)
    for key in CALL_KEYS:
        shown = folder / key.shown
        keys_file = folder / f"{key.at}.keys"
        if not shown.exists():
            made = add_key(keys_file, key.holder, key.scopes)
            replace_file(shown, f"{made}\n".encode(), PRIVATE)
        elif key.at in unknown:
            let_in(keys_file, key.holder, shown.read_text().strip(), key.scopes)


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """The files of a certificate and its key."""

    folder: Path
    name: str

    @property
    def certificate(self) -> Path:
        return self.folder / f"{self.name}.crt"

    @property
    def key(self) -> Path:
        return self.folder / f"{self.name}.key"

    def write(self, issued: Issued) -> None:
        """Write the key first: a service that reads in between keeps its old pair."""
        replace_file(self.key, issued.key, PRIVATE)
        replace_file(self.certificate, issued.certificate, PUBLIC)


def hosts_for(pair: CertificateFiles, given: tuple[str, ...]) -> tuple[str, ...]:
    """Return loopback and the given names; if there are none, those of the certificate to be
    renewed."""
    if not given and pair.certificate.exists():
        try:
            given = hosts_of(pair.certificate.read_bytes())
        except InvalidArgument as error:
            raise TandemError(f"{pair.certificate}: {error.why}; remove it") from error
    return tuple(dict.fromkeys((*LOOPBACK, *given)))


def authority_in(folder: Path, now: datetime) -> Issued:
    """Return the folder's authority, or make one. Raises TandemError if it is incomplete or has
    expired."""
    pair = CertificateFiles(folder, "ca")
    there = [path for path in (pair.certificate, pair.key) if path.exists()]
    if not there:
        end = now + timedelta(days=AUTHORITY_DAYS)
        authority = new_authority("Tandem local authority", Validity(now - CLOCKS_APART, end))
        pair.write(authority)
        return authority
    if len(there) == 1:
        missing = pair.key if there == [pair.certificate] else pair.certificate
        raise TandemError(f"{missing} is missing beside {there[0]}; restore it, or remove both")
    authority = Issued(pair.certificate.read_bytes(), pair.key.read_bytes())
    try:
        if expires(authority.certificate) <= now:
            raise TandemError(f"{pair.certificate} has expired; remove it and {pair.key}")
    except InvalidArgument as error:
        raise TandemError(f"{pair.certificate}: {error.why}") from error
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
    if (folder / "keys").exists():
        click.echo(
            f"{folder}/keys is of an older release: services need it no more, and the edge's"
        )
        click.echo("  call key is new; copy the files anew, then remove it")
