"""The TCP emulator's timing on loopback: delay, jitter, bandwidth, changed settings."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import pytest

from tandem.netem.link_model import LinkSettings, settings_from
from tandem.netem.tcp_emulator import TcpLinkEmulator
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

Measure = Callable[[], Awaitable[float]]


class CheckTakes(Protocol):
    """What the fixture `check_takes` gives."""

    async def __call__(
        self, measure: Measure, expected_s: float, tolerance_s: float = ...
    ) -> None: ...


async def shortest(measure: Measure, aim_s: float) -> float:
    """The least of repeated measurements, which a busy machine can only lengthen.

    Stops at the first below `aim_s`, or after three seconds.
    """
    deadline = time.monotonic() + 3
    least = await measure()
    while least >= aim_s and time.monotonic() < deadline:
        least = min(least, await measure())
    return least


@pytest.fixture
def check_takes(machine_lateness: Callable[[], float]) -> CheckTakes:
    """Asserts that what `measure` measures lasts `expected_s` and hardly more: 1 ms each way."""

    async def check(measure: Measure, expected_s: float, tolerance_s: float = 0.002) -> None:
        late_s = await shortest(measure, expected_s + tolerance_s) - expected_s
        assert late_s >= 0
        if late_s >= tolerance_s:  # four wake-ups: two delays, and two readers
            assert late_s < tolerance_s + 4 * machine_lateness()

    return check


@pytest.mark.parametrize("rtt_s", [0.002, 0.02, 0.2])
def test_round_trip_time(run: Run, check_takes: CheckTakes, rtt_s: float) -> None:
    async def test() -> None:
        settings = settings_from(rtt_s)
        async with (
            serving(echo) as target,
            emulated(target, settings, settings) as emulator,
            echo_client(emulator) as client,
        ):
            await check_takes(client.round_trip, rtt_s)

    run(test())


@pytest.mark.parametrize("delays", [(0.03, 0.0), (0.0, 0.03), (0.02, 0.01)])
def test_directions_have_their_own_delay(
    run: Run, check_takes: CheckTakes, delays: tuple[float, float]
) -> None:
    async def test() -> None:
        heard: asyncio.Queue[float] = asyncio.Queue()

        async def note_and_echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while chunk := await reader.read(100):
                heard.put_nowait(time.monotonic())
                writer.write(chunk)

        up, down = (LinkSettings(delay_s=delay_s) for delay_s in delays)
        async with (
            serving(note_and_echo) as target,
            emulated(target, up, down) as emulator,
            echo_client(emulator) as client,
        ):

            async def there() -> float:
                start = time.monotonic()
                await client.round_trip()
                return heard.get_nowait() - start

            async def back() -> float:
                await client.round_trip()
                return time.monotonic() - heard.get_nowait()

            for way, delay_s in zip((there, back), delays, strict=True):
                await check_takes(way, delay_s)

    run(test())


async def sink(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take a megabyte and say so."""
    while True:
        await reader.readexactly(len(MEGABYTE))
        writer.write(b"x")


async def source(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a megabyte for every byte that comes."""
    while await reader.read(1):
        writer.write(MEGABYTE)


@pytest.mark.parametrize("direction", ["up", "down"])
def test_throughput_at_20_mbps(run: Run, check_takes: CheckTakes, direction: str) -> None:
    async def test() -> None:
        delay_s = 0.03
        settings = LinkSettings(delay_s=delay_s, bytes_per_s=20e6 / 8)
        up = direction == "up"
        sides = (settings, INSTANT) if up else (INSTANT, settings)
        async with (
            serving(sink if up else source) as target,
            emulated(target, *sides) as emulator,
            echo_client(emulator) as client,
        ):

            async def transfer() -> float:
                start = time.monotonic()
                client.writer.write(MEGABYTE if up else b"x")
                await client.reader.readexactly(1 if up else len(MEGABYTE))
                return time.monotonic() - start - delay_s

            expected_s = len(MEGABYTE) * 8 / 20e6
            await check_takes(transfer, expected_s, tolerance_s=0.05 * expected_s)

    run(test())


def test_two_ports_lead_over_one_link(run: Run) -> None:
    """Each to its own target, in a bandwidth that both share."""

    async def upper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(1 << 16):
            writer.write(chunk.upper())

    async def ask(address: tuple[str, int], size: int) -> bytes:
        reader, writer = await asyncio.open_connection(*address)
        with contextlib.closing(writer):
            writer.write(b"a" * size)
            return (await reader.readexactly(size))[-1:]

    async def test() -> None:
        narrow = LinkSettings(bytes_per_s=1e6)
        async with serving(echo) as one, serving(upper) as other:
            further = (((LOCALHOST, 0), other),)
            async with TcpLinkEmulator(
                (LOCALHOST, 0), one, narrow, narrow, further=further
            ) as emulator:
                start = time.monotonic()
                answers = await asyncio.gather(*(ask(at, 60_000) for at in emulator.addresses))
                assert answers == [b"a", b"A"]
                assert time.monotonic() - start >= 0.12
                assert emulator.stats().up_bytes == 120_000

    run(test())


def test_a_shorter_delay_does_not_overtake(run: Run) -> None:
    async def test() -> None:
        async with (
            serving(echo) as target,
            emulated(target, LinkSettings(delay_s=0.1)) as emulator,
        ):
            reader, writer = await asyncio.open_connection(*emulator.address)
            start = time.monotonic()
            writer.write(b"first")
            while not emulator.stats().up_in_flight_bytes:
                await asyncio.sleep(0)
            emulator.configure(up=INSTANT)
            writer.write(b"second")
            assert await reader.readexactly(11) == b"firstsecond"
            assert time.monotonic() - start >= 0.1
            writer.close()

    run(test())
