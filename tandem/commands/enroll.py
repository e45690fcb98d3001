"""`tandem enroll`: all that a new edge needs, in one folder, and its key let in by the cloud."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from tandem.commands.authority import Issued, Validity, expires, issue
from tandem.commands.certs import (
    AUTHORITY_DAYS,
    CLOCKS_APART,
    EDGE_AT_CLOUD,
    EDGE_OWN,
    CertificateFiles,
    authority_in,
    hosts_for,
)
from tandem.commands.keys import PRIVATE, PUBLIC, add_key, holds_key, replace_file, revoke
from tandem.commands.options import FOLDER, json_option
from tandem.core.errors import InvalidArgument, TandemError
from tandem.net.quotas import Quota

VARIABLES = {
    "TANDEM_TLS_CA": "ca.crt",
    "TANDEM_TLS_CERTIFICATE": "edge.crt",
    "TANDEM_TLS_KEY": "edge.key",
    "TANDEM_KEYS_FILE": "edge.keys",
    "TANDEM_CALL_KEY_FILE": "edge.call-key",
    "TANDEM_CLOUD_KEY_FILE": "edge.cloud-key",
}
"""What every service of an edge reads, and the file that it names."""
_quota = click.IntRange(min=0)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option(
    "--authority",
    type=FOLDER,
    default=Path("certs"),
    help="The folder that 'tandem certs' made, with ca.key and cloud.keys.",
)
@click.option(
    "--out",
    type=FOLDER,
    default=Path("edges"),
    help="Output folder; each edge gets a folder in it.",
)
@click.option(
    "--at",
    type=FOLDER,
    default=Path("/etc/tandem"),
    help="Folder of the files on the edge. It is written into edge.env.",
)
@click.option(
    "--host",
    multiple=True,
    metavar="HOST",
    help="Host name or address of the edge, in addition to loopback.",
)
@click.option(
    "--days",
    type=click.IntRange(1, AUTHORITY_DAYS),
    default=90,
    help="Days that the certificate is valid.",
)
@click.option("--sessions", type=_quota, default=0, help="Maximum open sessions. 0: a fair share.")
@click.option(
    "--kv-bytes", type=_quota, default=0, help="Maximum KV cache in bytes. 0: a fair share."
)
@click.option("--requests-per-minute", type=_quota, default=0, help="0: any number.")
@click.option("--tokens-per-minute", type=_quota, default=0, help="0: any number.")
@click.option("--revoke", "revoked", is_flag=True, help="Revoke the keys of these edges.")
@json_option("Print one JSON object: folders, or how many keys were revoked, by name.")
def enroll(**options: Any) -> None:
    """Make a certificate and keys for each edge NAME, and add its key to the cloud's keys file.

    The folder OUT/NAME gets the edge's certificate, its keys and edge.env, the variables that name
    them for 'tandem install-service' and 'tandem serve'. AUTHORITY/cloud.keys gets a line with the
    hash of the key that it shows to the cloud, good for 'generate' and 'verify' within these
    quotas; bring that file to the cloud's services, which take it over by themselves. Called again
    for the same folder, it renews the certificate and keeps the keys. Copy OUT/NAME to the edge.
    """
    folder = options["authority"]
    quota = _quota_of(options)
    keys_file = folder / "cloud.keys"
    if not keys_file.exists():
        raise TandemError(f"{keys_file} is missing; 'tandem certs --out {folder}' makes it")
    if options["revoked"]:
        _tell_revoked({name: revoke(keys_file, name) for name in options["names"]}, options)
        return
    now = datetime.now(UTC)
    authority = authority_in(folder, now)
    end = min(now + timedelta(days=options["days"]), expires(authority.certificate))
    made = {}
    for name in options["names"]:
        made[name] = out = options["out"] / name
        _enroll(name, keys_file, out, quota)
        _certify(
            name=name,
            authority=authority,
            out=out,
            hosts=options["host"],
            validity=Validity(now - CLOCKS_APART, end),
        )
        lines = (f"{variable}={options['at'] / file}\n" for variable, file in VARIABLES.items())
        replace_file(out / "edge.env", "".join(lines).encode(), PUBLIC)
    _tell_made(made, keys_file, end, options)


def _enroll(name: str, known: Path, out: Path, quota: Quota) -> None:
    """Make the keys that an edge lacks. An edge that has its folder but was revoked stays out, and
    another edge of the same name is refused."""
    shown = out / "edge.cloud-key"
    if shown.exists():
        if not holds_key(known, name, shown.read_text().strip()):
            why = f"its key in {shown} is not in {known}: it was revoked; remove {out}"
            raise InvalidArgument("names", why)
    else:
        # A name that cannot be one, or has a key, is refused here.
        key = add_key(known, name, EDGE_AT_CLOUD, quota, first=True)
        out.mkdir(parents=True, mode=0o700, exist_ok=True)
        replace_file(shown, f"{key}\n".encode(), PRIVATE)
    called = out / "edge.call-key"
    if not called.exists():
        line = add_key(out / "edge.keys", "edge", EDGE_OWN)
        replace_file(called, f"{line}\n".encode(), PRIVATE)


def _certify(
    name: str, authority: Issued, out: Path, hosts: tuple[str, ...], validity: Validity
) -> None:
    pair = CertificateFiles(out, "edge")
    pair.write(issue(authority, name, hosts_for(pair, hosts), validity))
    replace_file(out / "ca.crt", authority.certificate, PUBLIC)


def _quota_of(options: dict[str, Any]) -> Quota:
    names = ("sessions", "kv_bytes", "requests_per_minute", "tokens_per_minute")
    return Quota(**{name: options[name] for name in names})


def _tell_made(made: dict[str, Path], known: Path, end: datetime, options: dict[str, Any]) -> None:
    folders = {name: str(folder) for name, folder in made.items()}
    if options["as_json"]:
        click.echo(json.dumps({"folders": folders, "keys": str(known), "expires": end.isoformat()}))
        return
    for name, folder in folders.items():
        click.echo(f"{name}: {folder}, to lie at {options['at']}; valid until {end:%Y-%m-%d}")
    click.echo(f"bring {known} to the cloud's services; then, on an edge:")
    click.echo(
        f"  tandem install-service --environment-file {options['at']}/edge.env drafter"
        " --verifier HOST:PORT"
    )


def _tell_revoked(counts: dict[str, int], options: dict[str, Any]) -> None:
    if options["as_json"]:
        click.echo(json.dumps({"revoked": counts}))
        return
    for name, count in counts.items():
        click.echo(f"{name}: {count} keys taken back")
