"""`tandem certs`: a local authority, certificates of both sides, and keys between them.

Must not import grpc or torch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from tandem.commands.authority import Issued, Validity, expires, hosts_of, issue, new_authority
from tandem.commands.keys import add_key
from tandem.commands.options import json_option
from tandem.commands.whole_files import PRIVATE, PUBLIC, replace_file
from tandem.core.errors import InvalidArgument, TandemError

SIDES = ("edge", "cloud")
LOOPBACK = ("localhost", "127.0.0.1", "::1")
AUTHORITY_DAYS = 3650
CLOCKS_APART = timedelta(minutes=5)
"""A certificate is used at once, by machines whose clocks may be behind this one."""


@click.command()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("certs"),
    show_default=True,
    help="Folder of the files; made if need be.",
)
@click.option(
    "--edge",
    multiple=True,
    metavar="HOST",
    help="A name or address that the edge's services are called by, beside loopback; repeatable.",
)
@click.option("--cloud", multiple=True, metavar="HOST", help="The same of the cloud's services.")
@click.option(
    "--days",
    type=click.IntRange(1, AUTHORITY_DAYS),
    default=90,
    show_default=True,
    help="How long the certificates are valid.",
)
@json_option("Print one JSON object with the files and when the certificates expire.")
def certs(**options: Any) -> None:
    """Make what mutual TLS and keys between the services need.

    The folder gets an authority (ca.crt, ca.key), a certificate of each side (edge.crt, edge.key,
    cloud.crt, cloud.key), the key that each side shows (edge.call-key, cloud.call-key), and what
    services know of them (keys). Called again, authority and keys stay and the certificates are
    renewed, with the same names unless others are given; running services take them over by
    themselves. Keep ca.key off the machines that serve.
    """
    folder = options["out"]
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC)
    authority = _authority(folder, now)
    end = min(now + timedelta(days=options["days"]), expires(authority.certificate))
    for side in SIDES:
        pair = _Pair(folder, side)
        hosts = _hosts(pair, options[side])
        pair.write(issue(authority, side, hosts, Validity(now - CLOCKS_APART, end)))
    for side in SIDES:
        path = folder / f"{side}.call-key"
        if not path.exists():
            replace_file(path, f"{add_key(folder / 'keys', side)}\n".encode(), PRIVATE)
    _tell(folder, end, options["as_json"])


@dataclass(frozen=True, slots=True)
class _Pair:
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
        """One after the other: a service that looks in between keeps what it has."""
        replace_file(self.key, issued.key, PRIVATE)
        replace_file(self.certificate, issued.certificate, PUBLIC)


def _hosts(pair: _Pair, given: tuple[str, ...]) -> tuple[str, ...]:
    """Loopback and the names that were given; where none were, those of the certificate renewed."""
    if not given and pair.certificate.exists():
        try:
            given = hosts_of(pair.certificate.read_bytes())
        except InvalidArgument as error:
            raise TandemError(f"{pair.certificate}: {error.why}; remove it") from error
    return tuple(dict.fromkeys((*LOOPBACK, *given)))


def _authority(folder: Path, now: datetime) -> Issued:
    """The folder's own, or a new one where it has none."""
    pair = _Pair(folder, "ca")
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
        click.echo(f"  export TANDEM_TLS_CA={folder}/ca.crt TANDEM_KEYS_FILE={folder}/keys")
        names = (("CERTIFICATE", "crt"), ("KEY", "key"))
        variables = [f"TANDEM_TLS_{name}={folder}/{side}.{ending}" for name, ending in names]
        click.echo(f"  export {' '.join(variables)} TANDEM_CALL_KEY_FILE={folder}/{side}.call-key")
