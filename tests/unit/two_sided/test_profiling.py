"""What an aggregator's chooser of the side knows, from where it is told to look."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tandem.core.errors import TandemError
from tandem.services.aggregator.profiling import Profiling
from tandem.settings import SettingsError
from tandem.telemetry.metrics import Metrics
from tandem.two_sided.profiling.side_metrics import SideDecisions
from tandem.two_sided.profiling.stored_fits import StoredFit, write_fits
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.placement import BothSides, SideTimes, choose_side
from tandem.two_sided.protocol.profiler_decoding import DecodeFit
from tests.unit.two_sided.prometheus_answers import healthy, served

EARLIER = BothSides(SideTimes(0.06, 0.04, 0.9), SideTimes(0.05, 0.06, 0.4))


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(CollectorRegistry(), "device")


async def test_the_request_s_own_frames_come_before_earlier_ones(metrics: Metrics) -> None:
    profiling = Profiling(Side.DEVICE, metrics, "", None)
    profiler = profiling.profiler("demo-draft", 2)
    assert profiling.sides(profiler) is None
    SideDecisions(metrics).decided(choose_side(EARLIER, Side.DEVICE), EARLIER)
    assert profiling.sides(profiler) == EARLIER
    profiler.decoded(Side.CLOUD, 10, 0.2)
    sides = profiling.sides(profiler)
    assert sides is not None
    assert sides.cloud.decode_s == pytest.approx(0.2)
    assert sides.device == EARLIER.device
    await profiling.close()


async def test_a_prometheus_server_is_asked_until_the_end(metrics: Metrics) -> None:
    with served(healthy) as address:
        profiling = Profiling(Side.DEVICE, metrics, address, None)
        async with asyncio.timeout(30):
            while (sides := profiling.sides(profiling.profiler("m", 2))) is None:
                await asyncio.sleep(0.01)
        assert sides.device.decode_s == 0.11
        await profiling.close()
        await profiling.close()


async def test_a_stored_line_holds_for_its_model_and_documents(
    metrics: Metrics, tmp_path: Path
) -> None:
    stored = {
        Side.DEVICE: StoredFit("demo-draft", 2, DecodeFit(2.0, 20_000.0, 0.01)),
        Side.CLOUD: StoredFit("demo-target", 2, DecodeFit(0.0, 20_000.0, 0.5)),
    }
    write_fits(tmp_path / "fits.json", stored)
    profiling = Profiling(Side.DEVICE, metrics, "", tmp_path / "fits.json")
    reading = profiling.profiler("demo-draft", 2).reading()
    assert reading.device_decode_s == pytest.approx(0.01, rel=0.02)
    assert reading.cloud_decode_s is None  # the other side's is its own aggregator's
    for model, documents in (("demo-draft", 3), ("another", 2)):
        assert profiling.profiler(model, documents).reading().device_decode_s is None
    await profiling.close()


async def test_what_cannot_be_used_stops_the_start(metrics: Metrics, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="TANDEM_PROMETHEUS: 'prometheus:9090' is not an http"):
        Profiling(Side.DEVICE, metrics, "prometheus:9090", None)
    with pytest.raises(SettingsError, match=r"TANDEM_PROFILE_FILE: .*doctor --profile"):
        Profiling(Side.DEVICE, metrics, "", tmp_path / "none.json")
    (tmp_path / "torn.json").write_text("{")
    with pytest.raises(TandemError, match=r"torn\.json"):
        Profiling(Side.DEVICE, metrics, "", tmp_path / "torn.json")
