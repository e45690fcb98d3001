"""The HTTP door to an aggregator's requests, beside its gRPC one.

Invariant: it opens after the gRPC door and closes after it has drained. Must not import torch.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from services.aggregator.config import AggregatorSettings
from services.aggregator.servicer import AggregatorServicer
from tandem.core.access_keys import KeyRing
from tandem.gateway.app import GatewaySettings, make_app
from tandem.gateway.asking import AskingLimits
from tandem.gateway.https import HttpsCertificate
from tandem.gateway.server import HttpServer
from tandem.rpc.auth import known_keys
from tandem.rpc.own_side import is_loopback
from tandem.rpc.reloaded import BadFile
from tandem.settings import SettingsError, variable_of
from tandem.telemetry.logging import get_logger
from tandem.telemetry.metrics import Metrics

log = get_logger(__name__)


@asynccontextmanager
async def http_door(
    settings: AggregatorSettings, metrics: Metrics, aggregator: AggregatorServicer
) -> AsyncIterator[str]:
    """Serves HTTP inside, if the settings say so; gives the line that says where. Raises
    SettingsError or PortInUse."""
    if not settings.http or settings.side != "device":
        yield ""
        return
    app = make_app(aggregator.requests, metrics, gateway_settings(settings))
    certificate = http_certificate(settings)
    if certificate is None and _shows_keys(settings):
        # Something before it may end TLS; this process cannot know.
        log.warning("http callers' keys come here in plain text", host=settings.http_host)
    async with HttpServer(app, settings.http_host, settings.http_port, certificate) as server:
        log.info("serving http", address=server.url)
        yield f"http {server.url}"


def gateway_settings(settings: AggregatorSettings) -> GatewaySettings:
    """The gateway's part of the settings. Raises SettingsError for keys that cannot be read, and
    for an open door that was not asked for."""
    return GatewaySettings(
        keys=_keys(settings),
        limits=AskingLimits(settings.http_max_tokens, settings.http_max_choices),
        max_body_bytes=settings.http_max_body_bytes,
        max_requests=settings.http_max_requests,
        timeout_s=settings.request_timeout_s,
    )


def http_certificate(settings: AggregatorSettings) -> HttpsCertificate | None:
    """None where HTTP is plain. Raises SettingsError naming the file that cannot be used."""
    certificate, key = settings.http_tls_certificate, settings.http_tls_key
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        names = ("http_tls_certificate", "http_tls_key")
        missing, there = names if certificate is None else reversed(names)
        raise SettingsError(f"{variable_of(missing)}: must be set beside {variable_of(there)}")
    try:
        return HttpsCertificate(certificate, key)
    except BadFile as error:
        field = "http_tls_key" if error.path == key else "http_tls_certificate"
        raise SettingsError(f"{variable_of(field)}: {error}") from None


def _shows_keys(settings: AggregatorSettings) -> bool:
    """Whether callers beyond this machine are to show keys, and nobody said that this is safe."""
    keys = settings.http_keys_file is not None and not settings.insecure
    return keys and not is_loopback(settings.http_host)


def _keys(settings: AggregatorSettings) -> Callable[[], KeyRing] | None:
    variable = variable_of("http_keys_file")
    if settings.http_keys_file is not None:
        try:
            return known_keys(settings.http_keys_file).current
        except BadFile as error:
            raise SettingsError(f"{variable}: {error}") from None
    if not settings.insecure:
        without = f"{variable_of('insecure')}=true lets every HTTP caller in"
        raise SettingsError(f"{variable}: must be set ('tandem keys' makes it); {without}")
    return None
