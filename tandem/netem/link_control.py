"""Runs a TCP link emulator as a process of its own, with a control socket.

Control is one JSON object per line on a localhost socket, each answered by one line:
`{"op": "cut"}`, `{"op": "restore"}`, `{"op": "drop"}`, `{"op": "stats"}`, and
`{"op": "set", "rtt_s": 0.02, "mbps": 20, "jitter_s": 0}`, where what is left out keeps its value,
and `mbps_up` and `mbps_down` hold for one direction. Answers are `{"ok": true, …}` with
the stats and settings in force, or `{"ok": false, "error": "field: why"}`. A line that is no JSON
object ends its connection without an answer: whoever sends one speaks another protocol, as a web
page does that asks this port over HTTP, and none of its further lines may count.

Invariant: a request either takes effect as a whole or changes nothing; a connection costs at most
one line of memory, and there are at most `MAX_CLIENTS`.
"""

import asyncio
import contextlib
import importlib.util
import json
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Self

from tandem.core.errors import InvalidArgument, listen_words
from tandem.netem.link_model import (
    INSTANT,
    LinkShape,
    bytes_per_s_from,
    settings_from,
)
from tandem.netem.tcp_emulator import Address, TcpLinkEmulator

_CONTROL_HOST = "127.0.0.1"
_LINE_BYTES = 64 << 10
MAX_CLIENTS = 16
FIRST_LINE_S = 5.0
"""What a client gets for its first line. One that has sent a request may then stay silent."""
_SET_FIELDS = frozenset({"op", "rtt_s", "mbps", "mbps_up", "mbps_down", "jitter_s"})


def serve_link(link: Coroutine[Any, Any, None]) -> None:
    """Run a `run_link(…)` on a new event loop (uvloop where installed) until SIGINT or SIGTERM."""
    uvloop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop

        uvloop_factory = uvloop.new_event_loop

    async def run_until_signalled() -> None:
        task = asyncio.ensure_future(link)
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    with asyncio.Runner(loop_factory=uvloop_factory) as runner:
        runner.run(run_until_signalled())


async def run_link(
    listen: Address,
    target: Address,
    *,
    shape: LinkShape = INSTANT,
    control_port: int | None = None,
    seed: int = 0,
    further: Sequence[tuple[Address, Address]] = (),
    on_ready: Callable[[Address, Address | None], None] | None = None,
) -> None:
    """Emulate a link between `listen` and `target` until cancelled.

    `further` are more pairs of listen and
    target, over the same link. `control_port` opens the control socket on localhost (0: any free
    port). `on_ready` is given the address listened on and that of the control socket. Raises
    OSError naming an address that cannot be listened on.
    """
    async with contextlib.AsyncExitStack() as stack:
        emulator = TcpLinkEmulator(listen, target, shape.up, shape.down, further=further, seed=seed)
        await stack.enter_async_context(emulator)
        control_address = None
        if control_port is not None:
            control = await stack.enter_async_context(LinkControl(emulator, control_port))
            control_address = control.address
        if on_ready is not None:
            on_ready(emulator.address, control_address)
        await asyncio.Event().wait()


class LinkControl:
    """The control socket of a link; an asynchronous context manager."""

    def __init__(self, emulator: TcpLinkEmulator, port: int = 0) -> None:
        """Prepare to listen, on localhost only; port 0 takes a free port."""
        self._emulator = emulator
        self._port = port
        self._clients: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Start to listen. Raises OSError naming the address if that is not possible."""
        try:
            self._server = await asyncio.start_server(
                self._accepted, _CONTROL_HOST, self._port, limit=_LINE_BYTES
            )
        except OSError as error:
            why = listen_words(error, _CONTROL_HOST, self._port)
            raise OSError(error.errno, f"{why} (control)") from error
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def address(self) -> Address:
        """Host and port of the control socket."""
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._clients) >= MAX_CLIENTS:
            writer.transport.abort()
            return
        client = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._clients.add(client)
        client.add_done_callback(self._clients.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A client that goes away, or sends a line without end, costs only its own connection.
        ended = contextlib.suppress(ConnectionError, ValueError, TimeoutError)
        with ended, contextlib.closing(writer):
            async with asyncio.timeout(FIRST_LINE_S):
                line = await reader.readline()
            while (request := _object_of(line)) is not None:
                answer = _answer(self._emulator, request)
                writer.write(json.dumps(answer).encode() + b"\n")
                async with asyncio.timeout(FIRST_LINE_S):
                    await writer.drain()
                line = await reader.readline()


def _object_of(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object on `line`; None for anything else."""
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return request if isinstance(request, dict) else None


def _answer(emulator: TcpLinkEmulator, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        _carry_out(emulator, request)
    except InvalidArgument as error:
        return {"ok": False, "error": str(error)}
    up, down = emulator.settings
    return {"ok": True, **asdict(emulator.stats()), "up": asdict(up), "down": asdict(down)}


def _carry_out(emulator: TcpLinkEmulator, request: Mapping[str, Any]) -> None:
    operation = request.get("op")
    if operation == "set":
        shape = _changed(LinkShape(*emulator.settings), request)
        emulator.configure(shape.up, shape.down)
        return
    plain: dict[str, Callable[[], None]] = {
        "cut": emulator.cut,
        "restore": emulator.restore,
        "drop": emulator.drop,
        "stats": lambda: None,
    }
    if not isinstance(operation, str) or operation not in plain:
        raise InvalidArgument("op", f"must be cut, restore, drop, set or stats, is {operation!r}")
    _reject_unknown(request, frozenset({"op"}))
    plain[operation]()


def _changed(shape: LinkShape, request: Mapping[str, Any]) -> LinkShape:
    """Return the link as it is after a `set` request."""
    _reject_unknown(request, _SET_FIELDS)
    common: dict[str, Any] = {}
    if "rtt_s" in request:
        common["delay_s"] = settings_from(_number("rtt_s", request["rtt_s"])).delay_s
    if "mbps" in request:
        common["bytes_per_s"] = _bandwidth(request, "mbps")
    if "jitter_s" in request:
        common |= {"jitter_s": _number("jitter_s", request["jitter_s"]), "jitter_trace": None}
    sides = {}
    for side, before in (("up", shape.up), ("down", shape.down)):
        sides[side] = replace(before, **common)
        if (field := f"mbps_{side}") in request:
            sides[side] = replace(sides[side], bytes_per_s=_bandwidth(request, field))
    return LinkShape(**sides)


def _bandwidth(request: Mapping[str, Any], field: str) -> float | None:
    """Return the bytes per second in a field; None for null, which is no limit."""
    return bytes_per_s_from(
        field, None if request[field] is None else _number(field, request[field])
    )


def _reject_unknown(request: Mapping[str, Any], known: frozenset[str]) -> None:
    for field in request:
        if field not in known:
            raise InvalidArgument(field, f"unknown; known: {', '.join(sorted(known))}")


def _number(field: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidArgument(field, f"must be a number, is {value!r}")
    try:
        return float(value)
    except OverflowError as error:
        raise InvalidArgument(field, "is too large") from error
