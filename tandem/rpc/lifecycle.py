"""A service from start to last byte: server, health, reflection, signals, drain.

Drain: health says NOT_SERVING, new requests are refused, sessions are told GoingAway, open requests
get `drain_s`; then the server stops, then the engine, then telemetry. Health is answered until the
server stops, so that who asks learns that it is leaving. A second signal exits at once.
Must not import torch.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from typing import Protocol

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from tandem.core.errors import TandemError
from tandem.rpc.access import ServerAccess
from tandem.rpc.channels import server_options
from tandem.rpc.tls import TlsIdentity
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

POLL_S = 0.02
HEALTH_MESSAGE_BYTES = 2**16
FLUSH_S = 0.2
"""What the last answers get to reach their callers."""


class PortInUse(TandemError):
    """The address cannot be listened on."""


class Service(Protocol):
    """What runs behind a server."""

    @property
    def full_name(self) -> str:
        """The service's full protobuf name, for health and reflection."""

    def register(self, server: grpc.aio.Server) -> None:
        """Add the handlers."""

    @property
    def open_requests(self) -> int:
        """Requests or sessions being served now."""

    def going_away(self, grace_s: float) -> None:
        """Refuse new requests, and tell every open session to finish its round and leave."""

    async def close(self) -> None:
        """Free what the handlers used; called after the last of them ended."""


def served_names(service: Service) -> tuple[str, ...]:
    """The service's own name, and those in its attribute `also_serves` if it has one."""
    return (service.full_name, *getattr(service, "also_serves", ()))


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
        """`health_port` serves health alone, plain and open; 0 takes a free one, None has none."""
        self.service = service
        self._names = served_names(service)
        self._health = health.aio.HealthServicer()
        options = server_options(max_message_bytes)
        self._server = grpc.aio.server(interceptors=access.interceptors(), options=options)
        service.register(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if access.reflection:
            names = (*self._names, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self._server)
        self.port = _listen(self._server, f"{host}:{port}", access.identity)
        self.target = f"{host}:{self.port}"
        self.health_target = ""
        self._probed: grpc.aio.Server | None = None
        if health_port is not None:
            self._probed = grpc.aio.server(options=server_options(HEALTH_MESSAGE_BYTES))
            health_pb2_grpc.add_HealthServicer_to_server(self._health, self._probed)
            self.health_target = f"{host}:{_listen(self._probed, f'{host}:{health_port}', None)}"

    async def start(self) -> None:
        await self._server.start()
        if self._probed is not None:
            await self._probed.start()
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)
        log.info("serving", service=self.service.full_name, address=self.target)

    async def drain(self, drain_s: float) -> None:
        """Let open sessions finish, then stop. The service is closed when this returns."""
        log.info("draining", service=self.service.full_name, drain_s=drain_s)
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        self.service.going_away(drain_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(drain_s):
                while self.service.open_requests:
                    await asyncio.sleep(POLL_S)
        await self._server.stop(grace=min(FLUSH_S, drain_s))
        if self._probed is not None:
            await self._probed.stop(grace=0)
        await self.service.close()
        log.info("stopped", service=self.service.full_name)

    async def _set_health(self, status: int) -> None:
        for name in ("", *self._names):
            await self._health.set(name, status)


def _listen(server: grpc.aio.Server, address: str, identity: TlsIdentity | None) -> int:
    """The port; raises PortInUse."""
    try:
        if identity is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, identity.server_credentials())
    except RuntimeError as error:
        raise PortInUse(f"{address} cannot be listened on; is the port in use?") from error
    if port == 0:
        raise PortInUse(f"{address} cannot be listened on; is the port in use?")
    return port


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
