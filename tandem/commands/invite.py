"""What `tandem serve verifier` does where other machines are to call it and nothing says who they
are: it makes itself a certificate and a key, and names them in the line for `tandem join`."""

import socket
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path

import click

from tandem.commands.keys import PRIVATE, PUBLIC, add_key, replace_file
from tandem.core.errors import TandemError
from tandem.net.auth import known_keys
from tandem.net.endpoint import Endpoint
from tandem.net.invitation import Invitation, sha256_of
from tandem.net.own_side import is_loopback
from tandem.net.scopes import Scope
from tandem.net.tls import PINNED_NAME
from tandem.runtime.private_files import make_private_folder, user_state_folder
from tandem.services.verifier.config import VerifierSettings
from tandem.settings import SettingsError, load_settings, parse_flags

HOLDER = "joined"
"""Whose the key is. All machines that join by one line are one holder."""
VALID = timedelta(days=3650)
CLOCKS_APART = timedelta(days=1)
_ANY_ADDRESS = ("0.0.0.0", "::", "[::]")
_ELSEWHERE = ("192.0.2.1", 9)
"""An address of no network (RFC 5737): nothing is sent, but a way there has this machine's own."""


def with_invitation(flags: Sequence[str]) -> list[str]:
    """Return a verifier's flags, with a certificate and keys if other machines are to call it and
    it was given none; the line for them is then printed. Faulty flags are for the service to
    refuse, and so is a demand for callers' certificates without files to judge them by: who comes
    by the line has none."""
    try:
        settings = load_settings(VerifierSettings, parse_flags(VerifierSettings, flags))
    except SettingsError:
        return [*flags]
    given = (settings.tls_certificate, settings.tls_key, settings.tls_ca, settings.keys_file)
    # True by default too, where an invitation turns it off.
    demanded = settings.client_certificates and "client_certificates" in settings.model_fields_set
    wants_none = settings.insecure or is_loopback(settings.host) or not settings.port
    if wants_none or demanded or any(given) or find_spec("cryptography") is None:
        return [*flags]
    folder = user_state_folder("verifier")
    make_private_folder(folder)
    certificate, private_key, keys, shown = (
        folder / name for name in ("verifier.crt", "verifier.key", "verifier.keys", "joined.key")
    )
    if not (certificate.exists() and private_key.exists()):
        _make_certificate(certificate, private_key)
    if not (keys.exists() and shown.exists()):
        key = add_key(keys, HOLDER, [Scope.VERIFY])
        replace_file(shown, f"{key}\n".encode(), PRIVATE)
    try:
        invitation = Invitation(
            endpoint=Endpoint(_address_of(settings.host), settings.port),
            sha256=sha256_of(certificate.read_text("ascii")),
            key=shown.read_text("ascii").strip(),
        )
    except ValueError as error:  # Unicode's errors are among these
        why = f"{folder} has a file that is none of the verifier's ({error})"
        raise TandemError(f"{why}; without the folder the next start makes a new one") from error
    if known_keys(keys).current().caller(invitation.key) is None:
        click.echo(f"nobody is invited: {keys} has no key of {shown} any more", err=True)
    else:
        _tell(invitation, folder / "join")
    made = {"tls-certificate": certificate, "tls-key": private_key, "keys-file": keys}
    words = [f"--{name}={path}" for name, path in made.items()]
    return [*flags, *words, "--client-certificates=false"]


def _make_certificate(certificate: Path, private_key: Path) -> None:
    from tandem.commands.authority import Validity, self_signed

    now = datetime.now(UTC)
    made = self_signed("verifier", [PINNED_NAME], Validity(now - CLOCKS_APART, now + VALID))
    replace_file(private_key, made.key, PRIVATE)
    replace_file(certificate, made.certificate, PUBLIC)


def _address_of(host: str) -> str:
    """Return the address that other machines most likely have for a server that listens on
    `host`."""
    if host not in _ANY_ADDRESS:
        return host.strip("[]")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            way.connect(_ELSEWHERE)
            return str(way.getsockname()[0])
    except OSError:
        return socket.gethostname()


def _tell(invitation: Invitation, path: Path) -> None:
    """Print the line on a terminal; elsewhere, where it may become part of a log, the file that has
    it."""
    replace_file(path, f"{invitation}\n".encode(), PRIVATE)
    if sys.stderr.isatty():
        click.echo(
            f"on another machine run 'tandem join', and give it this line:\n{invitation}", err=True
        )
        click.echo(f"whoever has the line may use this verifier; it is in {path} too", err=True)
    else:
        click.echo(f"on another machine: tandem join FILE, with a copy of {path}", err=True)
