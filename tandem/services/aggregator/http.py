"""The HTTP door to an aggregator's requests, beside its gRPC one. Invariant: it opens after the
gRPC door and closes after it has drained."""

import asyncio
import os
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from tandem.core.host_names import ANY
from tandem.gateway.app import GatewaySettings, make_app
from tandem.gateway.caller_connection import ConnectionLimits
from tandem.gateway.known_names import KnownNames, names_in
from tandem.gateway.request_reading import RequestLimits
from tandem.gateway.server import HttpsCertificate, HttpServer
from tandem.net.auth import known_keys
from tandem.net.keys_file import KeysFile
from tandem.net.own_side import is_loopback
from tandem.net.reloaded import BadFile
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.aggregator.requests import Requests
from tandem.services.aggregator.servicer import AggregatorServicer
from tandem.settings import SettingsError, variable_of
from tandem.telemetry.logging import get_logger
from tandem.telemetry.metrics import Metrics

log = get_logger(__name__)

FILES_BESIDE = 24
"""Open files that callers over HTTP leave to others: gRPC, the services behind, reloaded files."""


@asynccontextmanager
async def serve_http(
    settings: AggregatorSettings, metrics: Metrics, aggregator: AggregatorServicer
) -> AsyncIterator[str]:
    """Serve HTTP while the context is open, and yield the line with its address. Raises
    SettingsError or PortInUse."""
    requests = aggregator.requests
    gateway = gateway_settings(settings)
    if settings.http_documents:
        gateway = replace(gateway, documents=requests.documents)
    if gateway.keys_state is not None:
        metrics.access().follow_keys_file("http_keys_file", gateway.keys_state)
    app = make_app(requests, metrics, gateway, requests.ending)
    certificate = http_certificate(settings)
    keys = settings.http_keys_file is not None and not settings.insecure
    if certificate is None and keys and not is_loopback(settings.http_host):
        # Something before it may end TLS; this process cannot know.
        log.warning("http callers send their keys unencrypted", host=settings.http_host)
    limits = ConnectionLimits(
        connection_limit(settings.http_max_connections), write_s=settings.http_write_timeout_s
    )
    async with HttpServer(
        app,
        settings.http_host,
        settings.http_port,
        certificate=certificate,
        limits=limits,
    ) as server:
        log.info("serving http", address=server.url)
        leaving = asyncio.create_task(_stop_listening(requests, server))
        try:
            yield f"http {server.url}"
        finally:
            leaving.cancel()


async def _stop_listening(requests: Requests, server: HttpServer) -> None:
    """Stop listening once the aggregator leaves: a caller who connected then would get no
    answer."""
    await requests.left.wait()
    server.stop_listening()


def connection_limit(wanted: int) -> int:
    """Return how many connections there may be, at most `wanted`: with each file that this process
    may open in use, all callers would be reset, whoever they are."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = max(1, most - len(os.listdir("/dev/fd")) - FILES_BESIDE)
    if most == resource.RLIM_INFINITY or wanted <= free:
        return wanted
    log.warning("few files may be open", open_files=most, http_connections=free)
    return free


def gateway_settings(settings: AggregatorSettings) -> GatewaySettings:
    """Return the gateway's settings. Raises SettingsError for unreadable keys, and for an open
    gateway that was not asked for."""
    keys = _keys(settings)
    return GatewaySettings(
        keys=None if keys is None else keys.current,
        keys_state=None if keys is None else keys.state,
        docs=settings.http_docs,
        names=known_names(settings),
        limits=RequestLimits(settings.http_max_tokens, settings.http_max_choices),
        max_body_bytes=settings.http_max_body_bytes,
        body_bytes_per_s=settings.http_body_bytes_per_s,
        max_requests=settings.http_max_requests,
        timeout_s=settings.request_timeout_s,
        page=settings.http_page,
        embedding_aliases=aliases_in(settings.http_embedding_aliases),
        model_defaults=settings.generation_config == "auto",
        grpc_port=settings.port or None,
    )


def aliases_in(text: str) -> tuple[str, ...]:
    """Return names of models as a setting has them: separated by commas."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def known_names(settings: AggregatorSettings) -> KnownNames:
    """Return the names that may call. Where a key is needed, a page that calls this server by a
    name of its own lacks it, so any name will do while none are set."""
    hosts = names_in(settings.http_hosts)
    if not hosts and settings.http_keys_file is not None:
        hosts = frozenset({ANY})
    hosts_here = names_in(f"{settings.http_host},{socket.gethostname()}")
    return KnownNames(hosts | hosts_here, names_in(settings.http_origins))


def http_certificate(settings: AggregatorSettings) -> HttpsCertificate | None:
    """Return the certificate to serve HTTPS with; None for plain HTTP. Raises SettingsError naming
    the file that cannot be used."""
    certificate = settings.http_tls_certificate
    key = settings.http_tls_key
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        names = ("http_tls_certificate", "http_tls_key")
        missing, there = names if certificate is None else reversed(names)
        raise SettingsError(
            f"{variable_of(missing)}: must be set together with {variable_of(there)}"
        )
    try:
        return HttpsCertificate(certificate, key)
    except BadFile as error:
        field = "http_tls_key" if error.path == key else "http_tls_certificate"
        raise SettingsError(f"{variable_of(field)}: {error}") from None


def _keys(settings: AggregatorSettings) -> KeysFile | None:
    variable = variable_of("http_keys_file")
    if settings.http_keys_file is not None:
        try:
            return known_keys(settings.http_keys_file)
        except BadFile as error:
            raise SettingsError(f"{variable}: {error}") from None
    if not settings.insecure:
        without = f"{variable_of('insecure')}=true accepts every HTTP caller"
        raise SettingsError(f"{variable}: must be set ('tandem keys' creates it); {without}")
    return None
