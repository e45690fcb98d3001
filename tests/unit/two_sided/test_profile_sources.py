"""The Prometheus source against real HTTP servers: a Prometheus, one that speaks its recorded
answers, and servers that are gone, slow or talk nonsense."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tandem.core.errors import InvalidArgument
from tandem.telemetry.endpoint import serve_metrics
from tandem.telemetry.metrics import Metrics
from tandem.two_sided.profiling.profile_sources import SIDES, PrometheusSource
from tandem.two_sided.protocol.profiler import Reading, combined
from tests.programs import where
from tests.unit.two_sided.prometheus_answers import FULL, healthy, served, vector


async def test_the_server_s_means_become_a_reading() -> None:
    with served(healthy) as address:
        source = PrometheusSource(address)
        assert source.reading() == Reading()
        assert await source.refresh()
        assert source.reading() == FULL


async def test_a_server_that_has_nothing_yet_knows_nothing() -> None:
    empty = b'{"status":"success","data":{"resultType":"vector","result":[]}}'
    with served(lambda query: (200, empty)) as address:
        source = PrometheusSource(address)
        assert await source.refresh()
        assert source.reading() == Reading()


@pytest.mark.parametrize("number", ["NaN", "+Inf", "-1"])
async def test_numbers_that_nobody_measured_are_left_out(number: str) -> None:
    with served(lambda query: (200, vector(number, "0.5"))) as address:
        source = PrometheusSource(address)
        await source.refresh()
        assert source.reading() == Reading(None, 0.5, None, 0.5, None, 0.5)


@pytest.mark.parametrize(
    "answer",
    [
        (500, b""),
        (200, b"<html>not a metrics server</html>"),
        (200, b"[]"),
        (200, b'{"status":"success","data":{"result":[{"metric":{"side":"device"}}]}}'),
        (200, b'{"status":"error","error":"query timed out"}'),
        (200, b" " * (2**20 + 1)),
    ],
    ids=["failing", "html", "list", "torn", "error", "endless"],
)
async def test_nonsense_is_a_server_that_is_lost(answer: tuple[int, bytes]) -> None:
    good = True
    with served(lambda query: healthy(query) if good else answer) as address:
        source = PrometheusSource(address)
        assert await source.refresh()
        good = False
        assert not await source.refresh()
        assert source.reading() == Reading()
        good = True
        assert await source.refresh()
        assert source.reading() == FULL


async def test_others_go_on_when_it_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    gone = PrometheusSource(f"http://127.0.0.1:{port}")
    assert not await gone.refresh()
    with served(healthy) as address:
        there = PrometheusSource(address)
        await there.refresh()
        assert combined([gone, there]) == FULL


async def test_a_silent_server_costs_no_more_than_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        source = PrometheusSource(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.05)
        began_s = time.perf_counter()
        assert not await source.refresh()
        assert time.perf_counter() - began_s < 2


@pytest.mark.parametrize("address", ["", "prometheus:9090", "file:///etc/passwd", "http://"])
def test_what_is_no_web_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidArgument, match="prometheus"):
        PrometheusSource(address)


async def test_a_real_server_gives_back_what_a_process_exports(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry, "device")
    for side in SIDES:
        measured = metrics.measured_side(side)
        measured.decode.set(getattr(FULL, f"{side}_decode_s"))
        measured.transfer.set(getattr(FULL, f"{side}_transfer_s"))
        measured.acceptance.set(getattr(FULL, f"{side}_acceptance"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with serve_metrics(registry, "127.0.0.1", 0) as exported:
        settings = {
            "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms"},
            "scrape_configs": [
                {
                    "job_name": "tandem",
                    "static_configs": [{"targets": [f"127.0.0.1:{exported.port}"]}],
                }
            ],
        }
        (tmp_path / "prometheus.yml").write_text(json.dumps(settings))
        process = await asyncio.create_subprocess_exec(
            where("prometheus"),
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            source = PrometheusSource(f"http://127.0.0.1:{port}")
            async with asyncio.timeout(60):
                while source.reading() != FULL:
                    await source.refresh()
                    await asyncio.sleep(0.1)
        finally:
            process.terminate()
            await process.wait()
    assert not await source.refresh()
    assert source.reading() == Reading()
