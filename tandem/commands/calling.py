"""How a command reaches a running service: options for TLS and the key. Invariant: what a command
sends leaves this machine over TLS, unless `--insecure` was given."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import click

from tandem.commands.options import FILE, Command, together
from tandem.core.errors import InvalidArgument
from tandem.net.endpoint import Endpoint, of_grpc
from tandem.settings import variable_of

if TYPE_CHECKING:  # commands that ask nobody must not wait for gRPC
    from tandem.net.access import ClientAccess
    from tandem.net.retriever_client import RetrieverClient

_FILES = {
    "tls_ca": "PEM certificates of the authorities that sign the certificate of --endpoint.",
    "tls_certificate": "PEM client certificate.",
    "tls_key": "PEM private key of the client certificate.",
    "call_key_file": "File with the API key to send to --endpoint.",
}


def file_option(name: str) -> Callable[[Command], Command]:
    """Return the option that names a file of the caller; the variable that services read can name
    it too."""
    flag = "--" + name.replace("_", "-")
    variable = variable_of(name)
    return click.option(flag, type=FILE, envvar=variable, show_envvar=True, help=_FILES[name])


access_options = together(
    *map(file_option, _FILES),
    click.option("--insecure", is_flag=True, help="Call --endpoint without TLS and without a key."),
)
"""TLS and key for --endpoint."""


def aggregator_of(options: dict[str, Any]) -> str:
    """Return HOST:PORT for calls to the aggregator at --endpoint, which is its port of gRPC or of
    HTTP. Raises InvalidArgument."""
    try:
        return str(of_grpc(options["endpoint"], options["tls_ca"]))
    except OSError as error:  # ssl's errors are among these
        raise InvalidArgument("endpoint", f"{options['endpoint']}: {error}") from error


def access_to(endpoint: Endpoint, options: dict[str, Any]) -> ClientAccess:
    """Return what the flags show to `endpoint`. Raises InvalidArgument naming the flag."""
    from tandem.api.access import client_access

    files = {name: options[name] for name in _FILES}
    return client_access(endpoint.host, **files, insecure=options["insecure"])


@asynccontextmanager
async def retriever_at(options: dict[str, Any]) -> AsyncIterator[RetrieverClient]:
    """Yield a client of the retriever at --endpoint. Its refusals become errors that say what to
    change."""
    from tandem.commands.ask_suite import explain
    from tandem.net.retriever_client import RetrieverClient
    from tandem.net.status import Rejected

    endpoint = str(options["endpoint"])
    try:
        async with RetrieverClient(endpoint, access_to(options["endpoint"], options)) as client:
            yield client
    except Rejected as error:
        raise explain(error, endpoint, options["timeout"]) from error
