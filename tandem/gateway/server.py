"""The HTTP API on a port, served by uvicorn on the running event loop.

Invariant: nothing listens and no handler runs once `close` has returned; the process's signals are
left alone. Must not import grpc or torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator
from typing import Any, Self
from weakref import WeakKeyDictionary

import uvicorn
from starlette.types import ASGIApp

from tandem.gateway.https import HttpsCertificate
from tandem.rpc.lifecycle import PortInUse

IDLE_S = 30.0
"""What a caller gets from connecting, or from its last answer, to the end of its next headers."""
CLOSE_S = 2
"""What the last answers get to reach their callers."""


class HttpServer:
    """Use as an asynchronous context manager; port 0 takes a free one."""

    def __init__(
        self, app: ASGIApp, host: str, port: int, certificate: HttpsCertificate | None = None
    ) -> None:
        """Listens from now on, over TLS with a certificate. Raises PortInUse."""
        self._socket = _listen(host, port)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{'http' if certificate is None else 'https'}://{shown}:{self.port}"
        self._server = _Server(
            uvicorn.Config(
                app,
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                # Nothing here asks who the caller is, or by which name it came.
                proxy_headers=False,
                timeout_graceful_shutdown=CLOSE_S,
                ssl_context_factory=(
                    None if certificate is None else lambda *_: certificate.listening()
                ),
            )
        )
        self._serving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        return self

    async def __aexit__(self, *reason: object) -> None:
        """Answers under way get `CLOSE_S`; then their callers are cut off."""
        self._server.should_exit = True
        assert self._serving is not None
        await self._serving
        self._socket.close()


class _Server(uvicorn.Server):
    """Closes connections that only take up room: opened, and no whole request begun in time."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._idle_since_s: WeakKeyDictionary[Any, float] = WeakKeyDictionary()

    async def on_tick(self, counter: int) -> bool:
        self._close_idle(time.monotonic())
        return await super().on_tick(counter)

    def _close_idle(self, now: float) -> None:
        for connection in list(self.server_state.connections):
            cycle = getattr(connection, "cycle", None)
            if cycle is not None and not cycle.response_complete:
                self._idle_since_s.pop(connection, None)
            elif now - self._idle_since_s.setdefault(connection, now) > IDLE_S:
                connection.transport.close()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The service has handlers of its own, which drain it."""
        yield


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        why = error.strerror or error
        raise PortInUse(f"http: {host}:{port} cannot be listened on: {why}") from error
