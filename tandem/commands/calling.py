"""How a command reaches a running service: flags for TLS and the key, and what they come to.

Invariant: what a command sends leaves this machine over TLS, unless `--insecure` was given. Must
not import grpc or torch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tandem.core.errors import InvalidArgument
from tandem.settings import variable_of

if TYPE_CHECKING:  # commands that ask nobody must not wait for gRPC
    from tandem.rpc.access import ClientAccess

Command = TypeVar("Command", bound=Callable[..., Any])

_FILES = {
    "tls_ca": "PEM certificates of the authorities that --endpoint is checked by.",
    "tls_certificate": "PEM certificate of this caller.",
    "tls_key": "Its private key, PEM.",
    "call_key_file": "File with the key that is shown to --endpoint.",
}


def access_options(command: Command) -> Command:
    """TLS and key for --endpoint; each may stand in the variable that services read too."""
    insecure = click.option(
        "--insecure", is_flag=True, help="Call --endpoint plainly, without TLS and key."
    )
    command = insecure(command)
    for name, words in reversed(_FILES.items()):
        command = click.option(
            "--" + name.replace("_", "-"),
            type=click.Path(dir_okay=False, path_type=Path),
            envvar=variable_of(name),
            show_envvar=True,
            help=words,
        )(command)
    return command


def access_to(endpoint: tuple[str, int], options: dict[str, Any]) -> ClientAccess:
    """What the flags show to `endpoint`. Raises InvalidArgument naming the flag."""
    from tandem.rpc.access import ClientAccess
    from tandem.rpc.auth import own_key
    from tandem.rpc.own_side import is_loopback
    from tandem.rpc.reloaded import BadFile
    from tandem.rpc.tls import TlsFiles, TlsIdentity

    ca, certificate, key, call_key = (options[name] for name in _FILES)
    missing = [name for name in _FILES if name != "call_key_file" and options[name] is None]
    if options["insecure"] or (len(missing) == 3 and call_key is None and is_loopback(endpoint[0])):
        return ClientAccess()
    if missing:
        why = "is needed to call beyond this machine; --insecure calls without TLS"
        raise InvalidArgument(missing[0], why)
    try:
        identity = TlsIdentity(TlsFiles(certificate, key, ca))
        return ClientAccess(identity, None if call_key is None else own_key(call_key))
    except BadFile as error:
        field = next((name for name in _FILES if options[name] == error.path), "tls_certificate")
        raise InvalidArgument(field, str(error)) from error
