"""Cuts, resets, ends and full buffers: no byte lost through the emulator, none repeated."""

import asyncio
import contextlib
import hashlib
import socket
import struct
from collections.abc import Awaitable

import pytest

from tandem.netem.delay_line import MAX_IN_FLIGHT_BYTES
from tandem.netem.link_model import LinkSettings
from tests.unit.netem.conftest import Run
from tests.unit.netem.emulated_links import (
    INSTANT,
    LOCALHOST,
    MEGABYTE,
    echo,
    echo_client,
    emulated,
    serving,
)


async def was_reset(reading: Awaitable[bytes]) -> bool:
    """Whether a read ended in a reset and not in an orderly end."""
    try:
        await reading
    except ConnectionResetError:
        return True
    return False


def reset(writer: asyncio.StreamWriter) -> None:
    tcp = writer.get_extra_info("socket")
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class Greeter:
    """Says hello, and notes of each connection whether it ended in a reset."""

    def __init__(self) -> None:
        self.resets: asyncio.Queue[bool] = asyncio.Queue()

    async def greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        self.resets.put_nowait(await was_reset(reader.read(-1)))


@pytest.mark.parametrize(
    "settings",
    [INSTANT, LinkSettings(delay_s=0.01, jitter_s=0.01), LinkSettings(bytes_per_s=10e6)],
    ids=["instant", "jittery", "narrow"],
)
def test_a_cut_loses_and_repeats_nothing(run: Run, settings: LinkSettings) -> None:
    async def test() -> None:
        async with serving(echo) as target, emulated(target, settings, settings) as emulator:
            reader, writer = await asyncio.open_connection(*emulator.address)
            writer.write(MEGABYTE[:500_000])
            received = bytearray(await reader.readexactly(200_000))
            emulator.cut()
            writer.write(MEGABYTE[500_000:])
            writer.write_eof()
            with contextlib.suppress(TimeoutError):  # what had left the link still comes
                while chunk := await asyncio.wait_for(reader.read(1 << 16), 0.05):
                    received += chunk
            assert len(received) <= 500_000
            stats = emulator.stats()
            assert stats.cut
            assert stats.up_in_flight_bytes + stats.down_in_flight_bytes > 0
            emulator.restore()
            received += await reader.read(-1)
            assert hashlib.sha256(received).digest() == hashlib.sha256(MEGABYTE).digest()
            assert emulator.stats().up_bytes == emulator.stats().down_bytes == len(MEGABYTE)
            writer.close()

    run(test())


def test_connections_made_during_a_cut_carry_nothing_until_restored(run: Run) -> None:
    async def test() -> None:
        reached = 0

        async def count_and_echo(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            nonlocal reached
            reached += 1
            await echo(reader, writer)

        async with serving(count_and_echo) as target, emulated(target) as emulator:
            emulator.cut()
            reader, writer = await asyncio.open_connection(*emulator.address)
            writer.write(b"hello")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.readexactly(5), 0.05)
            assert reached == 0
            assert emulator.stats().open_connections == 1
            emulator.restore()
            assert await reader.readexactly(5) == b"hello"
            assert reached == 1
            writer.close()

    run(test())


@pytest.mark.parametrize("cut", [False, True])
def test_drop_resets_both_ends(run: Run, cut: bool) -> None:
    async def test() -> None:
        server = Greeter()
        async with serving(server.greet) as target, emulated(target) as emulator:
            reader, writer = await asyncio.open_connection(*emulator.address)
            assert await reader.readexactly(5) == b"hello"
            if cut:
                emulator.cut()
            emulator.drop()
            assert await was_reset(reader.read(-1))
            assert await server.resets.get()
            writer.close()
            emulator.restore()
            reader, writer = await asyncio.open_connection(*emulator.address)
            assert await reader.readexactly(5) == b"hello"
            assert emulator.stats().connections == 2
            writer.close()

    run(test())


def test_drop_throws_away_what_is_under_way(run: Run) -> None:
    async def test() -> None:
        settings = LinkSettings(delay_s=5.0, bytes_per_s=1000)
        async with serving(echo) as target, emulated(target, settings) as emulator:
            reader, writer = await asyncio.open_connection(*emulator.address)
            writer.write(bytes(10_000))
            while not emulator.stats().up_in_flight_bytes:
                await asyncio.sleep(0)
            emulator.drop()
            assert emulator.stats().up_in_flight_bytes == 0
            assert await was_reset(reader.read(-1))
            writer.close()
            emulator.configure(INSTANT)
            # The ten seconds that the dropped bytes would have taken are forgotten too.
            async with echo_client(emulator) as client:
                assert await client.round_trip() < 5.0

    run(test())


@pytest.mark.parametrize("delay_s", [0.0, 0.02])
def test_half_close_keeps_the_other_direction(run: Run, delay_s: float) -> None:
    async def test() -> None:
        async def answer_after_the_end(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            request = await reader.read(-1)
            writer.write(hashlib.sha256(request).digest())

        settings = LinkSettings(delay_s=delay_s)
        async with (
            serving(answer_after_the_end) as target,
            emulated(target, settings, settings) as emulator,
        ):
            reader, writer = await asyncio.open_connection(*emulator.address)
            writer.write(MEGABYTE)
            writer.write_eof()
            assert await reader.read(-1) == hashlib.sha256(MEGABYTE).digest()
            writer.close()
            while emulator.stats().open_connections:
                await asyncio.sleep(0)

    run(test())


@pytest.mark.parametrize("settings", [INSTANT, LinkSettings(delay_s=0.02)], ids=["now", "later"])
def test_a_reset_by_the_server_reaches_the_client(run: Run, settings: LinkSettings) -> None:
    async def test() -> None:
        async def greet_and_reset(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            writer.write(b"hello")
            await reader.readexactly(2)
            reset(writer)

        async with (
            serving(greet_and_reset) as target,
            emulated(target, settings, settings) as emulator,
        ):
            reader, writer = await asyncio.open_connection(*emulator.address)
            assert await reader.readexactly(5) == b"hello"
            writer.write(b"go")
            assert await was_reset(reader.read(-1))
            assert emulator.stats().open_connections == 0
            writer.close()

    run(test())


def test_a_reset_by_the_client_reaches_the_server(run: Run) -> None:
    async def test() -> None:
        server = Greeter()
        async with serving(server.greet) as target, emulated(target) as emulator:
            reader, writer = await asyncio.open_connection(*emulator.address)
            assert await reader.readexactly(5) == b"hello"
            reset(writer)
            assert await server.resets.get()

    run(test())


def test_a_target_that_refuses_resets_the_client(run: Run) -> None:
    async def test() -> None:
        with socket.create_server((LOCALHOST, 0)) as taken:
            nobody = taken.getsockname()
        async with emulated(nobody) as emulator:
            reader, writer = await asyncio.open_connection(*emulator.address)
            assert await was_reset(reader.read(-1))
            writer.close()

    run(test())


def test_what_is_held_is_bounded(run: Run) -> None:
    async def test() -> None:
        sent = MEGABYTE * 16
        async with serving(echo) as target, emulated(target) as emulator:
            reader, writer = await asyncio.open_connection(*emulator.address)
            writer.write(b"x")
            await reader.readexactly(1)
            emulator.cut()
            writer.write(sent)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(writer.drain(), 0.2)
            held = emulator.stats().up_in_flight_bytes
            assert MAX_IN_FLIGHT_BYTES <= held < MAX_IN_FLIGHT_BYTES + (64 << 10)
            emulator.restore()
            received = await reader.readexactly(len(sent))
            assert hashlib.sha256(received).digest() == hashlib.sha256(sent).digest()
            writer.close()

    run(test())


def test_a_reader_that_stops_stops_the_writer(run: Run) -> None:
    async def test() -> None:
        go_on = asyncio.Event()

        async def late_sink(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await go_on.wait()
            total = 0
            while chunk := await reader.read(1 << 16):
                total += len(chunk)
            writer.write(str(total).encode())

        async with serving(late_sink) as target, emulated(target) as emulator:
            reader, writer = await asyncio.open_connection(*emulator.address)
            writer.write(MEGABYTE * 32)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(writer.drain(), 0.2)
            go_on.set()
            writer.write_eof()
            assert int(await reader.read(-1)) == 32 * len(MEGABYTE)
            writer.close()

    run(test())


def test_closing_resets_what_is_open_and_frees_the_port(run: Run) -> None:
    async def test() -> None:
        async with serving(echo) as target:
            async with emulated(target) as emulator:
                address = emulator.address
                reader, writer = await asyncio.open_connection(*address)
                writer.write(b"x")
                await reader.readexactly(1)
                emulator.cut()
            assert await was_reset(reader.read(-1))
            writer.close()
            await emulator.close()
            with pytest.raises(RuntimeError, match="not started"):
                _ = emulator.address
            with socket.create_server(address):
                pass

    run(test())
