"""The control socket's requests one by one, and the link as a process of its own."""

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import time

import pytest

from tandem.netem.link_control import MAX_CLIENTS, LinkControl
from tandem.netem.link_model import LinkSettings
from tandem.netem.tcp_emulator import TcpLinkEmulator
from tests.unit.netem.conftest import Run

LOCALHOST = "127.0.0.1"
START = LinkSettings(delay_s=0.01, jitter_s=0.001, bytes_per_s=1e6)

LINK_PROCESS = """
import sys
from tandem.netem.link_control import run_link, serve_link
from tandem.netem.link_model import shape_from
serve_link(run_link(
    ("127.0.0.1", 0), ("127.0.0.1", int(sys.argv[1])), shape=shape_from(0.02), control_port=0,
    on_ready=lambda listening, control: print(listening[1], control[1], flush=True)))
"""


def new_emulator() -> TcpLinkEmulator:
    return TcpLinkEmulator((LOCALHOST, 0), (LOCALHOST, 1), START, START)


def ask(emulator: TcpLinkEmulator, **request: object) -> dict[str, object]:
    answer: dict[str, object] = json.loads(said_to(emulator, json.dumps(request).encode() + b"\n"))
    return answer


def said_to(emulator: TcpLinkEmulator, line: bytes) -> bytes:
    """The answer to one line on the control socket; nothing where the connection ends with it."""

    async def answer() -> bytes:
        async with LinkControl(emulator) as control:
            reader, writer = await asyncio.open_connection(*control.address)
            with contextlib.closing(writer):
                writer.write(line)
                writer.write_eof()
                return await reader.readline()

    return asyncio.run(answer())


def test_cut_restore_and_stats() -> None:
    emulator = new_emulator()
    assert ask(emulator, op="cut")["cut"] is True
    assert ask(emulator, op="stats")["cut"] is True
    assert ask(emulator, op="restore")["cut"] is False
    answer = ask(emulator, op="drop")
    assert answer["ok"] is True
    assert answer["connections"] == answer["up_bytes"] == 0


def test_set_keeps_what_is_left_out() -> None:
    emulator = new_emulator()
    answer = ask(emulator, op="set", rtt_s=0.1)
    expected = LinkSettings(delay_s=0.05, jitter_s=0.001, bytes_per_s=1e6)
    assert emulator.settings == (expected, expected)
    assert answer["up"] == {
        "delay_s": 0.05,
        "jitter_s": 0.001,
        "jitter_trace": None,
        "bytes_per_s": 1e6,
        "loss": 0.0,
        "loss_burst": 1.0,
        "resend_s": 0.2,
    }
    ask(emulator, op="set", mbps=20, jitter_s=0)
    expected = LinkSettings(delay_s=0.05, bytes_per_s=2.5e6)
    assert emulator.settings == (expected, expected)
    ask(emulator, op="set", mbps=None)
    assert emulator.settings[0] == LinkSettings(delay_s=0.05)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (b"{}", "op"),
        (b'{"op": "explode"}', "op"),
        (b'{"op": ["cut"]}', "op"),
        (b'{"op": "cut", "for": 3}', "for"),
        (b'{"op": "set", "rtt": 3}', "rtt"),
        (b'{"op": "set", "rtt_s": -1}', "rtt_s"),
        (b'{"op": "set", "rtt_s": true}', "rtt_s"),
        (b'{"op": "set", "rtt_s": NaN}', "rtt_s"),
        (b'{"op": "set", "mbps": 0}', "mbps"),
        (b'{"op": "set", "mbps": "20"}', "mbps"),
        (b'{"op": "set", "mbps": 1' + b"0" * 400 + b"}", "mbps"),
        (b'{"op": "set", "jitter_s": null}', "jitter_s"),
        (b'{"op": "set", "up": {"delay_s": 3}}', "up"),
        (b'{"op": "set", "rtt_s": 0.5, "mbps_down": -1}', "mbps_down"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_bad_request_is_named_and_changes_nothing(line: bytes, named: str) -> None:
    emulator = new_emulator()
    answer = json.loads(said_to(emulator, line))
    assert answer["ok"] is False
    assert str(answer["error"]).startswith(f"{named}: ")
    assert emulator.settings == (START, START)
    assert not emulator.stats().cut


def test_the_control_socket_answers_line_by_line(run: Run) -> None:
    async def test() -> None:
        emulator = new_emulator()
        async with LinkControl(emulator) as control:
            reader, writer = await asyncio.open_connection(*control.address)
            writer.write(b'{"op": "cut"}\n{"op": "nonsense"}\n{"op": "stats"}\n')
            answers = [json.loads(await reader.readline()) for _ in range(3)]
            assert [answer["ok"] for answer in answers] == [True, False, True]
            assert answers[2]["cut"] is True
            endless, endless_writer = await asyncio.open_connection(*control.address)
            endless_writer.write(b"x" * 200_000)
            with contextlib.suppress(ConnectionResetError):  # the rest of the line was never read
                assert await endless.read(-1) == b""
            endless_writer.close()
            writer.write(b'{"op": "restore"}\n')
            assert json.loads(await reader.readline())["cut"] is False
            writer.close()

    run(test())


FROM_A_WEB_PAGE = (
    b"POST / HTTP/1.1\r\nHost: 127.0.0.1:50059\r\nOrigin: http://evil.example\r\n"
    b'Content-Type: text/plain\r\nContent-Length: 14\r\n\r\n{"op": "cut"}\n'
)


@pytest.mark.parametrize(
    "words",
    [FROM_A_WEB_PAGE, b'nonsense\n{"op": "cut"}\n', b'\n{"op": "cut"}\n', b'[]\n{"op":"cut"}\n'],
)
def test_a_line_of_another_protocol_ends_its_connection(run: Run, words: bytes) -> None:
    """A web page can make a browser send this, and put a request of ours into the body."""

    async def test() -> None:
        emulator = new_emulator()
        async with LinkControl(emulator) as control:
            reader, writer = await asyncio.open_connection(*control.address)
            writer.write(words)
            with contextlib.suppress(ConnectionResetError):  # the rest was never read
                assert await asyncio.wait_for(reader.read(), 10) == b""
            assert not emulator.stats().cut
            writer.close()

    run(test())


def test_silent_clients_do_not_shut_others_out(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.netem.link_control.FIRST_LINE_S", 0.1)

    async def test() -> None:
        async with LinkControl(new_emulator()) as control:
            silent = [await asyncio.open_connection(*control.address) for _ in range(60)]
            for reader, writer in silent:
                with contextlib.suppress(ConnectionResetError):
                    assert await asyncio.wait_for(reader.read(), 10) == b""
                writer.close()
            reader, writer = await asyncio.open_connection(*control.address)
            writer.write(b'{"op": "stats"}\n')
            assert json.loads(await reader.readline())["ok"] is True
            writer.close()

    run(test())


def test_clients_are_bounded_and_those_that_are_served_stay(run: Run) -> None:
    async def test() -> None:
        async with LinkControl(new_emulator()) as control:
            standing = [await asyncio.open_connection(*control.address) for _ in range(MAX_CLIENTS)]
            for reader, writer in standing:
                writer.write(b'{"op": "stats"}\n')
                assert json.loads(await reader.readline())["ok"] is True
            reader, writer = await asyncio.open_connection(*control.address)
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()
            for reader, writer in standing:
                writer.write(b'{"op": "stats"}\n')
                assert json.loads(await reader.readline())["ok"] is True
                writer.close()

    run(test())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_link_process_forwards_obeys_and_stops(number: signal.Signals) -> None:
    with socket.create_server((LOCALHOST, 0)) as target:
        command = [sys.executable, "-c", LINK_PROCESS, str(target.getsockname()[1])]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            port, control_port = map(int, process.stdout.readline().split())
            with (
                socket.create_connection((LOCALHOST, port), 5) as client,
                socket.create_connection((LOCALHOST, control_port), 5) as control,
            ):
                served, _ = target.accept()
                with served:
                    client.sendall(b"hello")
                    assert served.recv(5) == b"hello"
                    start = time.monotonic()
                    served.sendall(b"world")
                    assert client.recv(5) == b"world"
                    assert time.monotonic() - start >= 0.01
                    control.sendall(b'{"op": "stats"}\n')
                    answer = json.loads(control.makefile().readline())
                    assert (answer["up_bytes"], answer["down_bytes"]) == (5, 5)
                    process.send_signal(number)
                    assert process.wait(10) == 0
