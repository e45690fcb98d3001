"""`tandem join`: the edge on this machine, for a verifier on another."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from tandem.commands.demonstration import Part
from tandem.commands.help_groups import GroupedCommand
from tandem.commands.options import json_option, no_memory_option, side_options
from tandem.commands.up import check_ports, run_parts
from tandem.core.errors import InvalidArgument, os_words
from tandem.net.access import ClientAccess
from tandem.net.auth import own_key
from tandem.net.invitation import Invitation, fetch_certificate, model_at, parse_invitation
from tandem.net.process import run_loop
from tandem.net.tls import PinnedService
from tandem.runtime.private_files import (
    make_private_folder,
    replace_privately,
    user_state_folder,
)
from tandem.services.aggregator.config import DEFAULT_HTTP_PORT
from tandem.suite.local_processes import LocalSuiteSettings, RemoteCloud
from tandem.suite.models import choose_model, choose_target
from tandem.suite.requirements import require_packages
from tandem.telemetry.logging import configure_logging


@click.command(cls=GroupedCommand)
@click.argument("line", required=False)
@side_options("draft", "the best chat model here")
@click.option(
    "--target-tokenizer",
    metavar="MODEL",
    help="Tokenizer of the verifier's model, if the draft model has another: as for --draft.",
)
@click.option(
    "--http-port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_HTTP_PORT,
    help="Port of the OpenAI-compatible HTTP API. 0: choose a free port.",
)
@no_memory_option
@click.option("--verbose", is_flag=True, help="Write the services' logs to standard error.")
@json_option("Print one JSON object: addresses and process ids.")
def join(**options: Any) -> int:
    """Draft on this machine for the verifier on another, which printed a line: start drafter and
    aggregator, print their addresses, and run until Ctrl-C.

    LINE is a file that has the line, or "-" for standard input; without LINE it is asked for. Or it
    is the line itself, which other users of this machine then see among the arguments of programs.

    The line has the verifier's address, the hash of its certificate, and a key. A service that
    shows another certificate is refused, and is not sent the key. Where this machine reaches the
    verifier by another address, put that in the place of the one in the line. Certificate and key
    are kept in the user's state folder, also for the flags --cloud-certificate and --cloud-key-file
    of 'tandem serve drafter'.
    """
    invitation = parse_invitation(_line_of(options["line"]))
    configure_logging("critical")
    cloud, model = _let_in(invitation)
    device, dtype, engine = (options[f"{name}_draft"] for name in ("device", "dtype", "engine"))
    draft = choose_target(options["draft"], device=device, dtype=dtype, engine=engine)
    require_packages(draft, draft)
    spoken = options["target_tokenizer"]
    settings = LocalSuiteSettings(
        draft=draft,
        target=draft if spoken is None else choose_model(spoken),
        http_port=options["http_port"],
        verbose=options["verbose"],
        remembers=not options["no_memory"],
        cloud=cloud,
    )
    check_ports(settings)
    click.echo(f"joined {cloud.address}, which has the model {model}", err=True)
    exit_code: int = run_loop(run_parts((Part(settings, ()),), options["as_json"]))
    return exit_code


def _line_of(given: str | None) -> str:
    """Return the line that `given` is, or names. Raises InvalidArgument("line")."""
    if given is None and sys.stdin.isatty():
        asked: str = click.prompt("line of the verifier (not shown)", hide_input=True, err=True)
        return asked
    if given is None or given == "-":
        return sys.stdin.readline()
    path = Path(given)
    if "#sha256:" in given or not path.exists():
        return given
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeError) as error:
        why = os_words(error) if isinstance(error, OSError) else f"{path} is no text"
        raise InvalidArgument("line", why) from error


def _let_in(invitation: Invitation) -> tuple[RemoteCloud, str]:
    """Return the verifier that the line names, and its model's name. Certificate and key are kept
    once the verifier has shown the one and accepted the other. Raises TandemError."""
    certificate = fetch_certificate(invitation)
    with TemporaryDirectory(prefix="tandem-join-") as tried:
        cloud = _kept_in(Path(tried), invitation, certificate)
        access = ClientAccess(PinnedService(cloud.certificate), own_key(cloud.key_file))
        model = run_loop(model_at(cloud.address, access))
    folder = user_state_folder("joined") / str(invitation.endpoint)
    make_private_folder(folder)
    return _kept_in(folder, invitation, certificate), model


def _kept_in(folder: Path, invitation: Invitation, certificate: str) -> RemoteCloud:
    cloud = RemoteCloud(
        address=str(invitation.endpoint),
        certificate=folder / "cloud.crt",
        key_file=folder / "cloud.key",
    )
    replace_privately(cloud.certificate, certificate.encode())
    replace_privately(cloud.key_file, f"{invitation.key}\n".encode())
    return cloud
