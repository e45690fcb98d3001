"""The HTTP API on a port, served by uvicorn on the running event loop. Invariant: nothing listens
and no handler runs once the server was left; the process's signals are left alone."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tandem.core.errors import listen_words
from tandem.gateway.caller_connection import Callers, ConnectionLimits
from tandem.net.certificates import load_pair
from tandem.net.lifecycle import PortInUse
from tandem.net.reloaded import Reloaded, read_file

BACKLOG = 1024
MAX_HEADERS_BYTES = 2**15
"""Of all headers together, and of a chunked body's trailers: each is parsed at once."""
CLOSE_S = 2
"""What the last answers get to reach their callers."""
_LENGTHS = frozenset({b"content-length", b"transfer-encoding"})


class HttpsCertificate:
    """Certificate of the HTTP server; callers identify themselves by a key and need none. Each
    handshake takes the files as they are then, and files that cannot be used change nothing."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Read two PEM files: the certificate with the chain to its authority, and the private key.
        Raises BadFile."""
        self._context = Reloaded((certificate, key), lambda: _context(certificate, key))

    def listening(self) -> ssl.SSLContext:
        """Create the limits of a listening port."""
        context = self._context.current()
        context.sni_callback = self._take_current
        return context

    def _take_current(
        self, connection: ssl.SSLObject, name: str | None, listening: ssl.SSLContext
    ) -> None:
        """Use the current files; called at each handshake, whether or not the caller names a
        host."""
        connection.context = self._context.current()


class HttpServer:
    """Use as an asynchronous context manager; port 0 takes a free one."""

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        port: int,
        certificate: HttpsCertificate | None = None,
        limits: ConnectionLimits | None = None,
    ) -> None:
        """Listen from now on, over TLS if there is a certificate. Raises PortInUse."""
        self._socket = _listen(host, port)
        self.host = host
        self.port = int(self._socket.getsockname()[1])
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{'http' if certificate is None else 'https'}://{shown}:{self.port}"
        self._callers = Callers(limits or ConnectionLimits())
        self._server = _Server(
            uvicorn.Config(
                self._callers.watched(_ended_quietly(_last_after_two_lengths(app))),
                http=self._callers.connection,  # type: ignore[arg-type]
                ws="none",
                h11_max_incomplete_event_size=MAX_HEADERS_BYTES,
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                # Nothing here asks who the caller is, or by which name it came.
                proxy_headers=False,
                timeout_graceful_shutdown=CLOSE_S + 1,
                backlog=BACKLOG,
                ssl_context_factory=(
                    None if certificate is None else lambda *_: certificate.listening()
                ),
            )
        )
        self._serving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        return self

    def stop_listening(self) -> None:
        """Refuse new connections; those there are go on."""
        for server in self._server.servers:
            server.close()

    async def __aexit__(self, *reason: object) -> None:
        """Stop the server. Answers under way get `CLOSE_S`; then their callers are cut off."""
        self._server.should_exit = True
        assert self._serving is not None
        cutting = asyncio.get_running_loop().call_later(CLOSE_S, self._callers.cut_off)
        await self._serving
        cutting.cancel()
        self._socket.close()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals: the service has its own handlers, which drain it."""
        yield


def _ended_quietly(app: ASGIApp) -> ASGIApp:
    """Wrap `app` so that it ends quietly if cancelled. When uvicorn stops, it cancels what still
    runs, and would log each as a failure of the application."""

    async def ended_quietly(scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await app(scope, receive, send)

    return ended_quietly


def _last_after_two_lengths(app: ASGIApp) -> ASGIApp:
    """Wrap `app` so that a request that states its length in two ways is the last of its connection
    (RFC 9112, 6.1): a proxy before this server may take what follows for a part of it."""

    async def last_after_two_lengths(scope: Scope, receive: Receive, send: Send) -> None:
        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), (b"connection", b"close")]
                message = {**message, "headers": headers}
            await send(message)

        ambiguous = _LENGTHS.issubset(name for name, _ in scope.get("headers", ()))
        await app(scope, receive, closing if ambiguous else send)

    return last_after_two_lengths


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise PortInUse(f"{listen_words(error, host, port)} (http)") from error


def _context(certificate: Path, key: Path) -> ssl.SSLContext:
    for path in (certificate, key):
        read_file(path)  # which says of the two what is not there
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_pair(context, certificate, key)
    return context
