"""A service from start to last byte: server, health, reflection, signals, drain. Drain: health says
NOT_SERVING, new requests are refused, sessions are told GoingAway, open requests get `drain_s`;
then the server stops, then the engine, then telemetry. Health is answered until the server stops,
so that who asks learns that it is leaving. Before that, health follows the service's `fault`, and
that of its keys file. A second signal exits at once."""

import asyncio
import os
import resource
import signal
import socket
from contextlib import suppress
from typing import Any, Protocol

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from tandem.core.errors import TandemError, listen_words
from tandem.net.access import ServerAccess
from tandem.net.channels import Options, server_options
from tandem.net.status import WholeMessages
from tandem.net.tls import TlsIdentity
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

POLL_S = 0.02
FAULT_POLL_S = 0.2
HANDSHAKE_MS = 10_000
"""What a caller gets from connecting to the end of its handshake; gRPC's own is two minutes."""
DESCRIPTORS = 65_536
"""File descriptors that a process asks for, where its own limit can be raised so far."""
HEALTH_MESSAGE_BYTES = 2**16
HEALTH_CONNECTIONS = 128
HEALTH_HANDSHAKE_MS = 2_000
HEALTH_IDLE_MS = 5_000
HEALTH_AGE_MS = 60_000
"""A probe connects, asks and leaves. Whoever stays is sent away, so that strangers at a port that
asks nobody for a key take no descriptors from the other ports."""
FLUSH_S = 0.2
"""What the last answers get to reach their callers."""
RELEASE_S = 2.0
"""What handlers get, whose calls have ended, to free what they hold: the engine frees it for them,
so it must not stop before."""


class PortInUse(TandemError):
    """The address cannot be listened on."""


class Service(Protocol):
    """The service behind a server."""

    @property
    def full_name(self) -> str:
        """The service's full protobuf name, for health and reflection."""

    def register(self, server: grpc.aio.Server) -> None:
        """Add the handlers."""

    @property
    def open_requests(self) -> int:
        """Requests or sessions being served now."""

    def going_away(self, grace_s: float) -> None:
        """Refuse new requests, and ask every open session to finish its round and leave."""

    async def close(self) -> None:
        """Free what the handlers used; called after the last of them ended."""


def served_names(service: Service) -> tuple[str, ...]:
    """Return the service's own name, and those in its attribute `also_serves` if it has one."""
    return (service.full_name, *getattr(service, "also_serves", ()))


def fault_of(service: Service) -> str:
    """Return the reason why the service does not work, its attribute `fault` if it has one; empty
    if it works."""
    return str(getattr(service, "fault", ""))


class _Health(health.aio.HealthServicer):
    async def List(self, request: Any, context: Any) -> None:  # noqa: N802  # the RPC's name
        """Refuse the call: the library does not implement it, and would log an error for whoever
        calls."""
        await context.abort(
            grpc.StatusCode.UNIMPLEMENTED, "not supported; use Check with the name of a service"
        )


class RunningService:
    """A started server; `port` is the one it listens on."""

    def __init__(
        self,
        service: Service,
        host: str,
        port: int,
        max_message_bytes: int,
        access: ServerAccess,
        health_port: int | None = None,
    ) -> None:
        """Set up a server for the service. `health_port` serves health checks alone, without
        encryption or keys; 0 takes a free port, None serves none."""
        self.service = service
        self._access = access
        self._names = served_names(service)
        self._health = _Health()
        options = [*server_options(max_message_bytes), *_connection_limits()]
        guards = [*access.interceptors(), WholeMessages()]
        self._server = grpc.aio.server(interceptors=guards, options=options)
        service.register(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if access.reflection:
            names = (*self._names, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self._server)
        self.port = _listen(self._server, f"{host}:{port}", access.identity)
        self.target = f"{host}:{self.port}"
        self.health_target = ""
        self._following: asyncio.Task[None] | None = None
        self._probed: grpc.aio.Server | None = None
        if health_port is not None:
            self._probed = grpc.aio.server(
                interceptors=[WholeMessages()], options=_health_options()
            )
            health_pb2_grpc.add_HealthServicer_to_server(self._health, self._probed)
            self.health_target = f"{host}:{_listen(self._probed, f'{host}:{health_port}', None)}"

    async def start(self) -> None:
        await self._server.start()
        if self._probed is not None:
            await self._probed.start()
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)
        self._following = asyncio.create_task(self._follow_fault())
        log.info("serving", service=self.service.full_name, address=self.target)

    async def drain(self, drain_s: float) -> None:
        """Let open sessions finish, then stop. The service is closed when this returns."""
        log.info("draining", service=self.service.full_name, drain_s=drain_s)
        if self._following is not None:
            self._following.cancel()
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        self.service.going_away(drain_s)
        await self._requests_end(drain_s)
        await self._server.stop(grace=min(FLUSH_S, drain_s))
        await self._requests_end(RELEASE_S)
        if self._probed is not None:
            await self._probed.stop(grace=0)
        await self.service.close()
        log.info("stopped", service=self.service.full_name)

    async def _requests_end(self, most_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                while self.service.open_requests:
                    await asyncio.sleep(POLL_S)

    async def _follow_fault(self) -> None:
        known = ""
        while True:
            await asyncio.sleep(FAULT_POLL_S)
            fault = fault_of(self.service) or self._access.fault
            if fault and not known:
                log.error("not serving", service=self.service.full_name, fault=fault)
                await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
            elif known and not fault:
                log.warning("serving again", service=self.service.full_name)
                await self._set_health(health_pb2.HealthCheckResponse.SERVING)
            known = fault

    async def _set_health(self, status: int) -> None:
        for name in ("", *self._names):
            await self._health.set(name, status)


def raise_descriptor_limit() -> None:
    """Raise the limit as far as this process may, up to `DESCRIPTORS`: many systems begin with
    1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _connection_limits() -> Options:
    """Return the limits of the main port: half of the descriptors, since each connection has
    one."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = DESCRIPTORS if soft == resource.RLIM_INFINITY else min(soft, DESCRIPTORS)
    return [
        ("grpc.max_allowed_incoming_connections", descriptors // 2),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
    ]


def _health_options() -> Options:
    return [
        *server_options(HEALTH_MESSAGE_BYTES),
        ("grpc.max_allowed_incoming_connections", HEALTH_CONNECTIONS),
        ("grpc.server_handshake_timeout_ms", HEALTH_HANDSHAKE_MS),
        ("grpc.max_connection_idle_ms", HEALTH_IDLE_MS),
        ("grpc.max_connection_age_ms", HEALTH_AGE_MS),
        ("grpc.max_connection_age_grace_ms", HEALTH_HANDSHAKE_MS),
        ("grpc.max_concurrent_streams", 8),
    ]


def _listen(server: grpc.aio.Server, address: str, identity: TlsIdentity | None) -> int:
    try:
        if identity is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, identity.server_credentials())
    except RuntimeError:
        port = 0
    if port == 0:
        host, _, wanted = address.rpartition(":")
        why = port_fault(host.strip("[]"), int(wanted))
        raise PortInUse(why or f"{address} cannot be listened on")
    return port


def port_fault(host: str, port: int) -> str:
    """Return why a server cannot listen there; empty if it can. gRPC does not say why."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        return listen_words(error, host, port)
    return ""


def stop_signal() -> asyncio.Event:
    """Set by SIGTERM or SIGINT from now on; a second signal exits at once with 130."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            os._exit(130)
        stop.set()

    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, on_signal)
    return stop
